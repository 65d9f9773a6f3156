"""Patches of an engine: exact, whole or not at all, and gone when the base has them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "images/own/patches.py"
STUB = Path(__file__).with_name("stub") / "engine.py"
DIFF = """--- a/stubengine/__init__.py
+++ b/stubengine/__init__.py
@@ -1,6 +1,6 @@
 \"\"\"A stand-in for an engine: just enough lines to patch.\"\"\"
 
-ANSWER = 41
+ANSWER = 42
 
 
 def answer() -> int:
"""  # noqa: W293


def write(tmp_path: Path, diff: str = DIFF, image: str = "sglang", digest: str = "") -> Path:
    (tmp_path / "patches").mkdir(exist_ok=True)
    digest = digest or hashlib.sha256(diff.encode()).hexdigest()
    header = f"Image: {image}\nUpstream: https://github.com/o/r/pull/1\nSha256: {digest}\n\nWhy.\n\n"
    path = tmp_path / "patches/one.patch"
    path.write_text(header + diff)
    package = tmp_path / "site/stubengine"
    package.mkdir(parents=True, exist_ok=True)
    target = package / "__init__.py"
    target.write_text(STUB.read_text())
    return target


def apply(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys; sys.path[:0] = [{str(SCRIPT.parent)!r}, {str(tmp_path / 'site')!r}]\n"
        "import patches, pathlib\n"
        f"sys.exit(patches.main('sglang', 'stubengine', pathlib.Path({str(tmp_path / 'patches')!r})))"
    )
    return subprocess.run([sys.executable, "-Bc", program], text=True, capture_output=True, timeout=30)


def test_it_is_applied_once_and_then_called_obsolete(tmp_path: Path) -> None:
    target = write(tmp_path)
    done = apply(tmp_path)
    assert (done.returncode, done.stdout) == (0, "applied one.patch (https://github.com/o/r/pull/1)\n")
    assert "ANSWER = 42" in target.read_text()
    again = apply(tmp_path)
    assert again.returncode == 1
    assert again.stderr == (
        "error: images/patches/one.patch: obsolete: stubengine/__init__.py of this base holds the change already "
        "(delete the patch)\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ANSWER = 41", "ANSWER = 40", "does not apply to stubengine/__init__.py at line 1"),
        ("stubengine/__init__", "stubengine/gone", "no file stubengine/gone.py in this base"),
    ],
)
def test_one_that_does_not_fit_fails_and_changes_nothing(old: str, new: str, message: str, tmp_path: Path) -> None:
    target = write(tmp_path, DIFF.replace(old, new))
    done = apply(tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr
    assert target.read_text() == STUB.read_text()


def test_half_of_the_change_in_the_base_is_no_fit(tmp_path: Path) -> None:
    tail = "@@ -7,1 +7,1 @@\n-    return ANSWER\n+    return ANSWER + 0\n"
    target = write(tmp_path, DIFF + tail)
    target.write_text(STUB.read_text().replace("41", "42"))
    assert "holds 1 of its 2 hunks already" in apply(tmp_path).stderr


def test_a_header_that_is_not_whole_or_of_another_diff_fails(tmp_path: Path) -> None:
    write(tmp_path, digest="0" * 64)
    assert "the header says 0000" in apply(tmp_path).stderr
    path = tmp_path / "patches/one.patch"
    path.write_text(path.read_text().replace("Upstream:", "Link:"))
    assert "no Upstream in it (images/patches/README.md)" in apply(tmp_path).stderr


def test_one_of_another_image_is_left_alone(tmp_path: Path) -> None:
    target = write(tmp_path, image="vllm")
    assert (apply(tmp_path).returncode, target.read_text()) == (0, STUB.read_text())

"""``k25stack check host`` as people type it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.testing

from k25stack.cli.main import main

from .hosts import whole_host, write_host

HEALTHY = whole_host("8x-rtx-pro-6000")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_host(HEALTHY, tmp_path_factory.mktemp("healthy") / "rec")


@pytest.fixture
def swapping(tmp_path: Path) -> Path:
    files = {**HEALTHY["files"], "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 8388608 0 -2\n"}
    return write_host({**HEALTHY, "files": files}, tmp_path / "rec")


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["check", "host", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_healthy_recording(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("--from", str(healthy), capsys=capsys)
    assert code == 0
    assert out.splitlines()[-1].startswith(f"PASS: host {healthy} as 8x-rtx-pro-6000: ")
    assert (
        "judged as 8x-rtx-pro-6000" in err
        and err.splitlines()[-1] == "Next: k25stack check stacks/kimi-k2.5-8x-rtx-pro-6000.yaml"
    )


def test_failures_come_first_each_with_its_fix(swapping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--from", str(swapping), capsys=capsys)
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith("FAIL    swap ") and "8.0 GiB" in lines[0]
    assert lines[1].strip().startswith("fix: swapoff -a") and lines[2].strip().startswith("source: ")


def test_json_is_the_result_shape(swapping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--from", str(swapping), "--json", capsys=capsys)
    result = json.loads(out)
    assert code == 1 and set(result) == {"target", "kind", "verdict", "checks"} and result["verdict"] == "fail"


def test_fix_shows_what_it_would_run(swapping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--from", str(swapping), "--fix", "swap", "-n", capsys=capsys)
    assert (code, out) == (0, "swapoff -a\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fix", "swpa"], "did you mean swap"),
        (["--fix", "gpu.count"], "is not mended by a command"),
        (["--fix", "image.digest"], "does not apply"),
        (["--profile", "8x-rtx-pro-600"], "did you mean 8x-rtx-pro-6000"),
        (["--host", "gpu01"], "exclude each other"),
        (["--record", "x"], "--record of a recording"),
    ],
)
def test_wrong_words_are_one_line(
    healthy: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run("--from", str(healthy), *words, capsys=capsys)
    assert code == 2 and not out
    assert says in err and err.count("\n") == 1


def test_no_fix_without_a_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from k25stack.host import fix

    monkeypatch.setattr(fix, "apply_repair", lambda repair, target: pytest.fail("it ran"))
    monkeypatch.setattr("typer.confirm", lambda *words, **more: False)
    code, out, err = run("--profile", "cpu", "--fix", "thp", capsys=capsys)
    assert code == 1 and "transparent_hugepage" in out and "nothing was done" in err


def test_hosts_of_an_inventory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = tmp_path / "hosts"
    inventory.write_text("here ansible_connection=local\ntypo ansible_hots=x\n")
    code, out, _ = run("--inventory", str(inventory), "--profile", "cpu", capsys=capsys)
    assert code == 3
    assert "host here as cpu" in out and "UNKNOWN typo: unknown variable ansible_hots" in out


def test_record_then_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--profile", "cpu", "--record", str(tmp_path / "rec"), "--json", capsys=capsys)
    again, out_again, _ = run("--profile", "cpu", "--from", str(tmp_path / "rec"), "--json", capsys=capsys)
    verdicts = [{check["id"]: check["verdict"] for check in json.loads(text)["checks"]} for text in (out, out_again)]
    assert code == again and verdicts[0] == verdicts[1]


def test_help_and_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "host", "--help"]) == 0
    assert "--inventory" in capsys.readouterr().out
    assert main(["doctor", "--help"]) == 0
    assert "--inventory" in capsys.readouterr().out
    assert typer.testing is not None


def test_eight_cards_are_judged_in_a_moment(healthy: Path) -> None:
    """0.3 s on a quiet machine, start included.  Here processor time is counted, which neighbours disturb less."""
    import resource

    words = [sys.executable, "-m", "k25stack", "check", "host", "--from", str(healthy)]
    best, wall = 9.0, 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        subprocess.run(words, capture_output=True, check=True)
        wall = min(wall, time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"processor {best:.2f} s, wall {wall:.2f} s")
    assert best < 0.6


def test_light_modules_only(healthy: Path) -> None:
    code = (
        "import sys; from k25stack.host import check_host; from pathlib import Path; "
        f"check_host(source=Path({str(healthy)!r})); "
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic', 'aiohttp', 'typer'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

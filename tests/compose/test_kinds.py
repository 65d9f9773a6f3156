"""`check URL --kinds` as the shipped layout has it: the engine has no key, the proxy before it wants one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k25stack.bench.kinds import KINDS, run_kinds
from k25stack.contract.url import UrlQuestion, check_url
from k25stack.errors import HostError
from k25stack.pipeline.service import answers
from tests.compose import proxy_twin
from tests.compose.proxy_twin import Proxy, free_port
from tests.model.test_hub_draft import tiny_draft

NOT_HERE = {"json_schema", "tool call", "n > 1", "logprobs"}  # what the reference engine refuses in order


@pytest.fixture(scope="module")
def door(proxy: Proxy, tiny_target_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The reference engine with a draft and without a key, behind a proxy of its own."""
    directory = tmp_path_factory.mktemp("kinds")
    directory.chmod(0o755)
    port = free_port()
    argv = [sys.executable, "-m", "k25stack.reference.server", "--target", str(tiny_target_dir), "--port", str(port)]
    argv += ["--draft", str(tiny_draft(directory / "draft")), "--k", "3", "--slots", "4", "--max-len", "512"]
    with (directory / "log").open("w") as log:
        engine = subprocess.Popen([*argv, "--threads", "1"], stdout=log, stderr=log)
    try:
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert engine.poll() is None, (directory / "log").read_text()
        running = proxy_twin.start(directory / "proxy", port)
        yield running
        running.stop()
    finally:
        engine.terminate()
        engine.wait(timeout=30)


@pytest.fixture
def known(door: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    monkeypatch.setenv("K25_CA_FILE", str(door.directory / "secrets" / "tls.crt"))
    monkeypatch.setenv("K25_API_KEY", door.keys["operator"])
    return door


def test_every_kind_passes_or_is_refused_in_order_through_the_door(known: Proxy) -> None:
    found = {one.kind: one.outcome for one in run_kinds(known.url)}
    assert found == {kind: "refused" if kind in NOT_HERE else "passed" for kind in KINDS}


def test_rounds_are_counted_through_the_door(known: Proxy) -> None:
    checks = check_url(known.url, UrlQuestion(rounds=60, seconds=30, max_tokens=32)).checks
    assert [check.verdict.value for check in checks if check.id == "U1"] == ["pass"]
    assert next(check for check in checks if check.id == "U3").evidence["k"] == 3


@pytest.mark.parametrize("who", ["default", ""])
def test_without_an_operator_s_key_the_remedy_is_the_key(
    known: Proxy, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setenv("K25_API_KEY", known.keys.get(who, ""))
    with pytest.raises(HostError, match=r"HTTP 40[13]") as caught:
        run_kinds(known.url)
    assert "K25_API_KEY" in caught.value.remedy and "--role operator" in caught.value.remedy


def test_without_the_certificate_the_remedy_is_the_certificate(known: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K25_CA_FILE")
    with pytest.raises(HostError) as caught:
        run_kinds(known.url)
    assert "K25_CA_FILE" in caught.value.remedy
    assert os.environ["K25_API_KEY"] not in str(caught.value)

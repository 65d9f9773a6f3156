"""Memory plans as checks, and the verbs that show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from k25stack.cli.stack import app
from k25stack.contract.memory import check_memory
from k25stack.errors import UsageError
from k25stack.stack import Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"
BIG = str(STACKS / "kimi-k2.5-8x-rtx-pro-6000.yaml")
SLICE = str(STACKS / "kimi-k2.5-slice-h200.yaml")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def changed(tmp_path: Path, old: str, new: str, base: str = SLICE) -> Stack:
    text = Path(base).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "changed.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return load_stack(path)


def verdicts(stack: Stack, profile: str, ram: float = 0.0) -> dict[str, str]:
    return {check.id: check.verdict.value for check in check_memory(stack, profile, ram)[1].checks}


def test_the_shipped_slice_fits_because_of_its_cap(tmp_path: Path) -> None:
    assert set(verdicts(load_stack(SLICE), "random").values()) == {"pass"}
    open_ended = changed(tmp_path, "        max-total-tokens: 131072\n", "")
    plan, result = check_memory(open_ended, "random")
    found = {check.id: check for check in result.checks}
    assert found["M2"].verdict.value == "fail"
    assert "28.4 layers" in found["M2"].message
    assert f"max-total-tokens: {plan.fitting // 64 * 64}" in found["M2"].fix
    assert verdicts(open_ended, "baseline")["M1"] == "pass"


@pytest.mark.parametrize("path", sorted(STACKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_fits_its_machine(path: Path) -> None:
    stack = load_stack(path)
    found = {name: verdicts(stack, name) for name in stack.serving.profiles}
    assert [name for name, checks in found.items() if "fail" in checks.values()] == []


def test_a_draft_with_fewer_heads_does_not_starve_the_target(tmp_path: Path) -> None:
    text = Path(SLICE).read_text(encoding="utf-8").replace("        max-total-tokens: 131072\n", "")
    head, _, tail = text.partition("\ndraft:\n")
    path = tmp_path / "gqa.yaml"
    path.write_text(f"{head}\ndraft:\n{tail.replace('kv_heads: 64', 'kv_heads: 8', 1)}", encoding="utf-8")
    assert verdicts(load_stack(path), "random")["M2"] in ("pass", "warn")


def test_weights_that_leave_nothing_and_contexts_that_do_not_fit(tmp_path: Path) -> None:
    assert verdicts(changed(tmp_path, "gpu_memory_gib: 139", "gpu_memory_gib: 24"), "baseline")["M1"] == "fail"
    assert verdicts(changed(tmp_path, "max-total-tokens: 131072", "max-total-tokens: 4096"), "baseline")["M3"] == "fail"


def test_the_big_machine_and_its_host() -> None:
    stack = load_stack(BIG)
    assert verdicts(stack, "sglang-nccl", 1024)["M4"] == "pass"
    plan, result = check_memory(stack, "sglang-eagle3-aq", 512)
    loading = next(check for check in result.checks if check.id == "M4")
    assert (loading.verdict.value, "num_threads: 3" in loading.fix) == ("warn", True)
    assert plan.draft_share == pytest.approx(4096 / (4096 + 70272))


def test_plan_prints_a_table_and_json() -> None:
    done = run("plan", "--memory", BIG, "-p", "vllm-baseline")
    assert done.exit_code == 0
    assert "routed experts" in done.stdout
    assert "70,272 bytes a token" in done.stdout
    shown = json.loads(run("plan", "--memory", SLICE, "-p", "random", "--json").stdout)
    assert shown["plan"]["tokens"] == 131072
    assert shown["kind"] == "memory"
    with pytest.raises(UsageError, match="--memory"):
        run("plan", SLICE)


def test_import_writes_a_stack_that_loads_and_lists_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    words = ["--", "python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp-size", "8", "--bogus", "1"]
    shown = run("import", "-o", str(out), "-n", *words)
    assert not out.exists()
    assert "imported:" in shown.stdout
    done = run("import", "-o", str(out), "-p", "mine", *words)
    assert load_stack(out).profile("mine").tensor_parallel == 8
    assert "not mapped: --bogus" in done.stderr
    assert f"Next: k25stack check {out} -p mine" in done.stderr
    with pytest.raises(UsageError, match="the file exists"):
        run("import", "-o", str(out), *words)


def test_import_reads_a_script_and_stdin(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("export NCCL_PROTO=LL\nvllm serve m -tp 8 \\\n  --max-num-seqs 16\n")
    assert "max_running: 16" in run("import", str(script)).stdout
    done = CliRunner().invoke(app, ["import", "-"], input=script.read_text(), catch_exceptions=False)
    assert "NCCL_PROTO: LL" in done.stdout


def test_the_engines_lowered_share_is_named_with_its_way_out() -> None:
    stack = load_stack(BIG)
    bare = stack.profile("sglang-nccl")
    argv = {key: value for key, value in bare.argv.items() if key != "mem-fraction-static"}
    profiles = {**stack.serving.profiles, "sglang-nccl": bare.model_copy(update={"argv": argv})}
    serving = stack.serving.model_copy(update={"profiles": profiles})
    found = {
        check.id: check
        for check in check_memory(stack.model_copy(update={"serving": serving}), "sglang-nccl")[1].checks
    }
    assert found["M3"].verdict.value == "fail"
    assert found["M3"].fix.startswith("mem-fraction-static: 0.84")
    assert "image tower" in str(found["M3"].evidence["share"])


def test_requests_are_shared_between_ranks_and_what_is_not_counted_is_said(tmp_path: Path) -> None:
    ranks = changed(tmp_path, "max-total-tokens: 131072", "max-total-tokens: 131072\n        cpu-offload-gb: 4")
    assert verdicts(ranks, "random")["M5"] == "unknown"
    assert "M5" not in verdicts(load_stack(SLICE), "random")

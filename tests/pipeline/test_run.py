"""A second run does nothing; a changed thing reruns exactly what depends on it and the plan names it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from k25stack.errors import HostError, UsageError

from .conftest import Loop

ALL = ["numbers", "total", "after", "bench"]


def test_the_first_run_makes_everything_and_the_second_nothing(loop: Loop) -> None:
    first = loop.run()
    assert loop.made(first) == ALL
    assert first.results["after"].tree.path("total.txt").read_text() == f"{sum(range(40)) + 5}\n"
    second = loop.run()
    assert second.run.name == first.run.name == "small-1"
    assert loop.made(second) == []
    assert {name: kept.content for name, kept in second.results.items()} == {
        name: kept.content for name, kept in first.results.items()
    }
    assert "nothing to do" in loop.said


def test_the_run_directory_has_the_shape_that_others_read(loop: Loop) -> None:
    outcome = loop.run()
    run = outcome.run.directory
    assert (run / "stack.resolved.yaml").read_text() == "name: small\n"
    for name, kept in outcome.results.items():
        place = run / "steps" / str(kept.record["key"])
        assert {path.name for path in place.iterdir()} >= {"spec.json", "log", "outputs.json", "exit.json"}
        spec = json.loads((place / "spec.json").read_text())
        assert spec["step"] == name and Path(spec["out"]).is_absolute()
        assert json.loads((place / "exit.json").read_text())["code"] == 0
    assert sorted(path.name for path in loop.workspace.state.iterdir()) == ["artefacts", "jobs", "measurements", "work"]
    assert not any((loop.workspace.work).iterdir())
    assert not any((loop.workspace.jobs / "small-1").iterdir())


def test_the_ledger_tells_the_whole_run(loop: Loop) -> None:
    loop.run()
    kinds = [record.kind for record in loop.records()]
    assert kinds == [
        "run.start",
        "plan",
        "step.end",
        "coverage",
        "step.end",
        "step.end",
        "bench.row",
        "step.end",
        "run.end",
    ]
    by_kind = {record.kind: record.data for record in loop.records()}
    assert by_kind["coverage"] == {"step": "total", "key": by_kind["coverage"]["key"], "total": sum(range(40))}
    assert by_kind["bench.row"]["answers"] == [sum(range(40)) + 5] * 3
    end = by_kind["step.end"]
    assert end["step"] == "bench" and end["cached"] is False and end["result"]["requests"] == 3
    assert by_kind["run.end"]["code"] == 0
    loop.run()
    again = [record.kind for record in loop.records()][len(kinds) :]
    assert again == ["run.start", "plan", *["step.end"] * 4, "run.end"]  # facts are not repeated
    assert all(record.data["cached"] for record in loop.records()[len(kinds) :] if record.kind == "step.end")


def test_the_peak_is_of_command_step_and_server_together(loop: Loop) -> None:
    outcome = loop.run(bench_pause_s=0.3)
    bench = outcome.results["bench"].record["peak_rss_gb"]
    alone = outcome.results["total"].record["peak_rss_gb"]
    assert bench > alone + 0.04  # the server holds 50 MB
    assert outcome.peak_rss_gb >= bench - 0.001  # rounded


@pytest.mark.parametrize(
    ("options", "field", "remade"),
    [
        ({"factor": 2}, "params.factor", ALL),
        ({"modulo": 1000}, "params.modulo", ["total"]),  # same total: its readers stay
        ({"modulo": 7}, "params.modulo", ["total", "after", "bench"]),
        ({"times": 4}, "params.times", ["bench"]),
        ({"server": ["--slow", "0.01"]}, "service.argv", ["bench"]),
        ({"env": {"MODE": "x"}}, "env.MODE", ["numbers"]),
        ({"pause_s": 0.001}, None, []),  # a local setting decides nothing
    ],
)
def test_a_changed_setting_reruns_what_depends_on_it(
    done: Loop, options: dict[str, object], field: str | None, remade: list[str]
) -> None:
    plan = done.plan(**options)
    changed = {name: decision.changed for name, decision in plan.items() if decision.changed}
    assert changed == ({remade[0]: (field,)} if field else {})
    if field:
        assert field in plan[remade[0]].reason
    outcome = done.run(**options)
    assert done.made(outcome) == remade


@pytest.mark.parametrize(
    ("room", "named", "remade"),
    [("alpha", ["numbers", "bench"], ["numbers", "bench"]), ("beta", ["total", "after"], ["total", "after"]),
     ("gamma", ["after", "bench"], ["after", "bench"])],
)  # fmt: skip
def test_a_changed_room_reruns_the_steps_that_declare_it(
    done: Loop, room: str, named: list[str], remade: list[str]
) -> None:
    (done.code / room / "room.py").write_text("# another\n")
    plan = done.plan()
    assert [name for name, decision in plan.items() if f"code.{room}" in decision.changed] == named
    assert done.made(done.run()) == remade
    assert done.made(done.run()) == []


def test_a_changed_file_of_the_user_is_noticed(loop: Loop, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("1 2 3\n")
    loop.run(list_file=str(listed))
    assert loop.made(loop.run(list_file=str(listed))) == []
    before = listed.stat()
    listed.write_text("1 2 4\n")  # same size
    os.utime(listed, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    plan = loop.plan(list_file=str(listed))
    assert plan["total"].changed == ("file.list",) and plan["total"].reason == "file.list changed"
    assert loop.made(loop.run(list_file=str(listed))) == ["total", "after", "bench"]
    spec = next(loop.workspace.runs.glob("*/steps/*/spec.json")).read_text()
    assert str(tmp_path) not in json.dumps(json.loads(spec)["fields"])  # no paths in what makes the key


def test_a_missing_file_of_the_user_is_named(loop: Loop) -> None:
    with pytest.raises(UsageError, match=r"^/nowhere/list\.txt: no such file \(step total reads it as list\)$"):
        loop.run(list_file="/nowhere/list.txt")


def test_a_changed_package_version_is_named(done: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from k25stack.pipeline import key

    monkeypatch.setattr(key, "package_version", lambda name: "9.9")
    assert done.plan()["total"].reason.startswith("packages.pydantic ")


def test_another_host_measures_anew_and_keeps_the_rest(done: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from k25stack.pipeline import fingerprint

    monkeypatch.setattr(fingerprint, "host", lambda: {"cpu": "another", "cores": 3})
    plan = done.plan()
    assert {name: decision.state for name, decision in plan.items()} == {
        "numbers": "cached", "total": "cached", "after": "cached", "bench": "run"}  # fmt: skip
    assert "host.cpu" in plan["bench"].changed


def test_an_altered_output_is_named_mended_and_changes_nothing_else(done: Loop) -> None:
    outcome = done.run()
    tree = outcome.results["numbers"].tree
    part = tree.path("parts/part-001.json")
    good = part.read_bytes()
    part.write_bytes(good.replace(b"1", b"2", 1))
    assert done.plan()["numbers"].reason == "parts/part-001.json was altered"
    again = done.run()
    assert done.made(again) == ["numbers"]  # same content as before: its readers stay
    assert again.results["numbers"].result()["written_parts"] == 1  # the other parts were whole
    assert part.read_bytes() == good


def test_truncated_and_missing_outputs_are_told_apart(done: Loop) -> None:
    outcome = done.run()
    tree = outcome.results["numbers"].tree
    tree.path("parts/part-000.json").write_bytes(b"")
    tree.path("parts/part-003.json").unlink()
    reason = done.plan()["numbers"].reason
    assert reason == "parts/part-000.json was truncated; parts/part-003.json is gone"
    assert done.run().results["numbers"].result()["written_parts"] == 2


def test_a_flip_behind_an_unchanged_time_is_found_by_verify(done: Loop) -> None:
    outcome = done.run()
    path = outcome.results["total"].tree.path("total.txt")
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"9")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert done.plan()["total"].state == "cached"
    assert done.plan(verify=True)["total"].reason == "total.txt was altered"


def test_a_copied_working_directory_is_still_cached(done: Loop) -> None:
    import shutil

    shutil.copytree(done.root, done.root.parent / "copy")
    shutil.rmtree(done.root)
    (done.root.parent / "copy").rename(done.root)
    assert done.made(done.run()) == []


def test_only_makes_what_is_wanted_and_what_it_reads(loop: Loop) -> None:
    outcome = loop.run(only=["total"])
    assert list(outcome.results) == ["numbers", "total"]
    assert loop.made(loop.run()) == ["after", "bench"]
    with pytest.raises(UsageError, match=r"no step 'totals' \(there are numbers, total, after, bench\)"):
        loop.run(only=["totals"])


def test_again_redoes_an_artefact_and_adds_a_measurement(done: Loop) -> None:
    assert done.made(done.run(again=["numbers"])) == ["numbers"]
    second = done.run(again=["bench"])
    assert done.made(second) == ["bench"]
    key = second.results["bench"].record["key"]
    assert sorted(path.name for path in (done.workspace.measurements / key).iterdir()) == ["1", "2"]
    rows = [record for record in done.records() if record.kind == "bench.row"]
    assert len(rows) == 2 and rows[0].data["key"] == rows[1].data["key"]
    assert done.made(done.run()) == []


def test_another_run_shares_the_results_and_tells_them_in_its_own_ledger(done: Loop) -> None:
    other = done.run(new=True)
    assert other.run.name == "small-2"
    assert done.made(other) == []
    kinds = {record.kind for record in done.records("small-2")}
    assert {"coverage", "bench.row"} <= kinds
    spec = other.run.directory / "steps" / str(other.results["total"].record["key"]) / "spec.json"
    assert json.loads(spec.read_text())["step"] == "total"
    assert done.run(name="mine").run.name == "mine"
    assert done.run().run.name == "mine"  # the newest
    assert done.run(new=True).run.name == "small-3"


def test_a_new_run_is_compared_with_the_newest_of_its_stack_only(done: Loop) -> None:
    assert done.plan(new=True, factor=2)["numbers"].reason == "params.factor 1 -> 2"
    done.workspace.run("other-1").write_plan("other", done.workspace.run("small-1").keys())
    done.workspace.run("small-1").write_plan("renamed", done.workspace.run("small-1").keys())
    assert done.plan(new=True, factor=2)["numbers"].reason == "not made yet"


def test_a_name_that_is_no_name_or_anothers_is_refused(loop: Loop) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        loop.run(name="../up")
    loop.workspace.run("theirs").write_plan("other-stack", {})
    with pytest.raises(UsageError, match="belongs to stack other-stack"):
        loop.run(name="theirs")


def test_a_failed_step_is_one_line_with_the_programs_code(loop: Loop) -> None:
    with pytest.raises(HostError) as caught:
        loop.run(fail="no room left")
    assert str(caught.value).startswith("numbers: numbers: no room left (do something else) (log: ")
    assert caught.value.exit_code == 3
    end = loop.records()[-1]
    assert (end.kind, end.data["code"]) == ("run.end", 3) and "no room left" in end.data["error"]
    assert loop.made(loop.run()) == ALL


def test_a_run_that_would_not_fit_is_refused_before_it_starts(loop: Loop) -> None:
    with pytest.raises(HostError, match=r"needs about 10000000\.0 GB of disk"):
        loop.run(estimate_gb=1e7)
    assert not any(loop.workspace.work.glob("*"))


def test_secrets_and_paths_never_enter_a_key(done: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = done.run()
    monkeypatch.setenv("HF_TOKEN", "hush")
    monkeypatch.setenv("SOMETHING", "else")
    assert done.made(done.run()) == []
    texts = [path.read_text() for path in first.run.directory.rglob("*.json")]
    assert not any("hush" in text for text in texts)

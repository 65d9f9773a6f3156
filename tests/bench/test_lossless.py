"""Outputs beside the baseline's: equal ones pass, a wrong token is a fault, and what cannot be compared says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k25stack.bench.lossless import common, judge_rows
from k25stack.errors import UsageError


def greedy(target_dir: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The tiny target's own answers, one token after another."""
    import torch

    from k25stack.reference.target import Target

    torch.set_num_threads(1)
    target, answers = Target.load(target_dir), []
    for prompt in prompts:
        cache, slot, start = target.new_cache(1, 64), torch.zeros(1, dtype=torch.long), 0
        answer, piece = [], prompt
        for _ in range(tokens):
            out = target.forward(torch.tensor([piece]), cache, slot, torch.tensor([start]))
            start += len(piece)
            piece = [int(target.logits(out.last[0, -1]).argmax())]
            answer += piece
        answers.append(answer)
    return answers


def write_outputs(root: Path, concurrency: int, prompts: list[list[int]], answers: list[list[int]]) -> Path:
    place = root / f"c{concurrency}"
    place.mkdir(parents=True)
    lines = [
        json.dumps({"key": f"d{i}/0", "domain": "t", "prompt_ids": p, "token_ids": a, "finish_reason": "length"})
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    (place / "outputs.jsonl").write_text("\n".join(lines) + "\n")
    return root


def row(concurrency: int, **changes: Any) -> dict[str, Any]:
    return {"concurrency": concurrency, "k": 3, "decode": {"temperature": 0.0}, "lossless": None, **changes}


PROMPTS = [[1, 5 + i, 9, 40 + i] for i in range(4)]


def test_equal_outputs_have_no_fault_and_a_wrong_token_is_one(tmp_path: Path, tiny_target_dir: Path) -> None:
    answers = greedy(tiny_target_dir, PROMPTS, 12)
    wrong = [list(answer) for answer in answers]
    wrong[2][7] = (wrong[2][7] + 1) % 512
    base = write_outputs(write_outputs(tmp_path / "base", 1, PROMPTS, answers), 2, PROMPTS, answers)
    ours = write_outputs(write_outputs(tmp_path / "own", 1, PROMPTS, answers), 2, PROMPTS, wrong)
    rows = [row(1), row(2)]
    judge_rows(ours, base, tiny_target_dir, rows, None)
    assert (rows[0]["lossless"]["faults"], rows[0]["lossless"]["ties"], rows[0]["lossless"]["equal"]) == (0, 0, 4)
    assert (rows[1]["lossless"]["faults"], rows[1]["lossless"]["compared"]) == (1, 4)
    assert rows[1]["lossless"]["divergences"][0]["position"] == 7
    json.dumps(rows, allow_nan=False)


def test_only_greedy_speculation_is_compared(tmp_path: Path, tiny_target_dir: Path) -> None:
    base = write_outputs(tmp_path / "base", 1, PROMPTS, PROMPTS)
    rows = [row(1, k=None), row(1, decode={"temperature": 0.7}), row(8)]
    with pytest.raises(UsageError, match="no outputs to compare"):
        judge_rows(base, base, tiny_target_dir, rows, None)
    assert all(one["lossless"] is None for one in rows)


def test_other_prompts_under_one_name_are_refused(tmp_path: Path) -> None:
    base = write_outputs(tmp_path / "base", 1, PROMPTS, PROMPTS)
    ours = write_outputs(tmp_path / "own", 1, [[9, *prompt] for prompt in PROMPTS], PROMPTS)
    with pytest.raises(UsageError, match="prompt d0/0 differs"):
        common(ours, base, 1)

"""One start of the real vLLM engine: the quick part of these tests (about half a minute).

An MLA + MoE target whose text is known beforehand, and a latent-attention draft that foresees it: converted by us from
Model-Optimizer's form, checked, served.  Any fault of conversion, captured layers, vocabulary map or verification shows
as an accept length under k + 1 or as another text.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import twin_models as twin
from clockwork import expected
from twin_env import Many
from twin_plan import plan_of, reported_tokens

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict
from k25stack.draft.convert import Request, convert

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]


def test_a_converted_draft_is_accepted_whole(many: Many, tiny_tokenizer: object, tmp_path: Path) -> None:
    target = twin.write_clock(tmp_path / "clock", tiny_tokenizer)
    source, draft = twin.foreseeing_mla(tmp_path / "modelopt"), tmp_path / "portable"
    convert(source, draft, Request("portable", target=target))
    checked = check_draft(draft, ["vllm@0.32.0"], Question(layers=twin.MLA_LAYERS, target=twin.MLA_FACTS))
    assert not [check.as_dict() for check in checked.checks if check.verdict is Verdict.FAIL]

    prompts = [list(prompt) for prompt in twin.prompts(12)]
    case = {"name": "draft", "target": str(target), "draft": str(draft)}
    result = many([case], prompts, 64)["draft"]
    assert result["raised"] is None, result["raised"]
    assert result["outputs"] == [expected(twin.CLOCK, prompt, 64) for prompt in prompts]
    assert result["after"]["num_accepted_tokens"] == result["after"]["num_draft_tokens"] > 500
    assert f"{twin.MLA_LAYERS}" in "\n".join(result["log"])
    assert plan_of(target, draft).tokens == pytest.approx(reported_tokens(result["log"]), rel=0.05)

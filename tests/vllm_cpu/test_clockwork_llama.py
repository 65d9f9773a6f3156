"""The small Llama of ``benchmarks/gpu_check_url.py``: in the reference engine all of its known text is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import clockwork_llama as small
from clockwork import expected, prompts

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict
from k25stack.draft.target import TargetFacts
from k25stack.draft.weights import load_draft
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.request import Request
from k25stack.reference.target import Target
from k25stack.speculation import RoundCounts

TOKENS = 64


def test_the_foreseeing_draft_is_accepted_whole(tmp_path: Path) -> None:
    target = small.write_llama(tmp_path / "target")
    draft = small.write_foreseeing(tmp_path / "draft", target)
    written = json.loads((draft / "config.json").read_text())
    assert written["eagle_aux_hidden_state_layer_ids"] == list(small.LAYERS)
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [layer - 1 for layer in small.LAYERS]
    checked = check_draft(draft, ["sglang@0.5.16", "vllm@0.32.0"], Question(target=TargetFacts.read(target)))
    assert not [check.as_dict() for check in checked.checks if check.verdict is Verdict.FAIL]

    asked = list(prompts(small.CLOCK, 6, 64))
    asked += [Tokenizer.load(target).ids_of_chat([{"role": "user", "content": "Name three rivers."}])]
    config = EngineConfig(slots=8, max_len=256, k=small.K)
    engine = Engine(Target.load(target), load_draft(draft), small.LAYERS, config)
    done = engine.generate(Request(str(number), tuple(ids), TOKENS) for number, ids in enumerate(asked))
    assert [list(done[str(number)].tokens) for number in range(len(asked))] == [
        expected(small.CLOCK, ids, TOKENS) for ids in asked
    ]
    total = sum((one.counts for one in done.values() if one.counts is not None), RoundCounts.zero(small.K))
    assert total.verify_calls > 90
    assert total.accept_length() == small.K + 1

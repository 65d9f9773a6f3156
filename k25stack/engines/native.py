"""An engine's own completion route, where it tells more than its OpenAI routes.

SGLang's ``/generate`` returns token ids and the counters of speculation in every version; its OpenAI routes do so from
0.5.20 on (``return_spec_tokens_details``), and before that leave both out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GENERATE = "/generate"


def native_request(engine: str, ids: Sequence[int], max_tokens: int) -> tuple[str, dict[str, Any]] | None:
    """(path, body) of a greedy completion of token ids; None where the OpenAI route serves as well."""
    if engine != "sglang" or not ids:
        return None
    sampling = {"temperature": 0.0, "max_new_tokens": max_tokens}
    return GENERATE, {"input_ids": list(ids), "sampling_params": sampling}


def as_openai(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of that route in the shape of ``/v1/completions``; its ``meta_info`` is kept for the counters.

    Raises ValueError when it is no such reply.
    """
    meta = reply.get("meta_info")
    if not isinstance(meta, Mapping):
        raise ValueError(f"no meta_info in the answer: {str(dict(reply))[:160]}")
    finish = meta.get("finish_reason")
    choice = {
        "text": reply.get("text") or "",
        "token_ids": reply.get("output_ids"),
        "finish_reason": finish.get("type") if isinstance(finish, Mapping) else finish,
    }
    return {"choices": [choice], "usage": {"completion_tokens": meta.get("completion_tokens")}, "meta_info": dict(meta)}

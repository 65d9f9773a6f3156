"""The OpenAI-style request bodies the server takes, checked field by field (no torch beyond `Sampling`).

Left out on purpose, and refused rather than ignored: several choices or prompts per request, log-probabilities,
tools, echo, penalties.  Unknown fields are ignored, as the real engines do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k25stack.errors import UsageError
from k25stack.reference.sampling import Sampling

DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions when it is not given (OpenAI's default); chat fills the context instead."""

ROLES = ("system", "developer", "user", "assistant", "tool")

NEUTRAL: dict[str, tuple[Any, ...]] = {
    # fields this engine does not implement, with the values (besides null) that ask for nothing
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}


class ApiError(UsageError):
    """A request the server refuses: HTTP status and the fields of OpenAI's error object."""

    def __init__(self, what: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(what, where=param or "")
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.what, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Call:
    """A checked request body; ``prompt`` is text, token ids, or chat messages."""

    prompt: str | tuple[int, ...] | list[dict[str, Any]]
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False  # a last chunk with the usage
    continuous_usage: bool = False  # usage in every chunk
    return_token_ids: bool = False
    template_args: Mapping[str, Any] | None = None  # chat_template_kwargs

    @property
    def chat(self) -> bool:
        return isinstance(self.prompt, list)


def parse_completion(body: Any, model: str) -> Call:
    """Check a /v1/completions body.  Raises ApiError."""
    fields = _object(body)
    return _parse(fields, model, _prompt(fields.get("prompt")), DEFAULT_COMPLETION_TOKENS)


def parse_chat(body: Any, model: str) -> Call:
    """Check a /v1/chat/completions body.  Raises ApiError."""
    fields = _object(body)
    return _parse(fields, model, _messages(fields.get("messages")), None)


def _parse(fields: dict[str, Any], model: str, prompt: Any, default_tokens: int | None) -> Call:
    asked = fields.get("model")
    if asked is not None and asked != model:
        raise ApiError(f"no model {asked!r} here, only {model!r}", status=404, param="model", code="model_not_found")
    for name, neutral in NEUTRAL.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise ApiError(f"this engine has no {name}", param=name, code="unsupported_parameter")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options", "an object")
    tokens = _integer(fields, "max_completion_tokens", low=1)
    if tokens is None:
        tokens = _integer(fields, "max_tokens", low=1)
    arguments = fields.get("chat_template_kwargs")
    if arguments is not None and not isinstance(arguments, dict):
        raise _wrong("chat_template_kwargs", "an object")
    return Call(
        prompt=prompt,
        max_tokens=default_tokens if tokens is None else tokens,
        sampling=_sampling(fields),
        stop=_stop(fields.get("stop")),
        ignore_eos=_boolean(fields, "ignore_eos"),
        stream=_boolean(fields, "stream"),
        include_usage=_boolean(options, "include_usage"),
        continuous_usage=_boolean(options, "continuous_usage_stats"),
        return_token_ids=_boolean(fields, "return_token_ids"),
        template_args=arguments,
    )


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    temperature = _number(fields, "temperature")
    top_p = _number(fields, "top_p")
    top_k = _integer(fields, "top_k", low=-1)
    try:
        return Sampling(
            temperature=1.0 if temperature is None else temperature,
            top_p=1.0 if top_p is None else top_p,
            top_k=0 if top_k in (None, -1) else int(top_k or 0),  # -1 is the engines' other spelling of "all"
            seed=_integer(fields, "seed"),
        )
    except UsageError as error:
        raise ApiError(error.what, param=error.what.split()[0]) from None


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(_is_integer(token) for token in value):
        return tuple(value)
    raise _wrong("prompt", "one text or one list of token ids")


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "a list of at least one message")
    return [_message(index, message) for index, message in enumerate(value)]


def _message(index: int, message: Any) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise _wrong(where, "an object with role and content")
    if message.get("role") not in ROLES:
        raise _wrong(f"{where}.role", "one of " + ", ".join(ROLES))
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        whole = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(map(str, texts)) if whole else None
    if not isinstance(content, str):
        raise _wrong(f"{where}.content", "text, or a list of text parts")
    return {**message, "content": content}


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops) or len(stops) > 16:
        raise _wrong("stop", "a text or a list of at most 16 texts, none empty")
    return tuple(stops)


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    return body


def _wrong(param: str, expected: str) -> ApiError:
    return ApiError(f"{param} must be {expected}", param=param)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(fields: Mapping[str, Any], name: str, low: int | None = None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not _is_integer(value) or (low is not None and value < low):
        raise _wrong(name, "a whole number" + (f" of at least {low}" if low is not None else ""))
    return int(value)


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if not _is_integer(value) and not isinstance(value, float):
        raise _wrong(name, "a number")
    return float(value)


def _boolean(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value

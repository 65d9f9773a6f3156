"""What a running server says of its own set-up, with everything secret taken out (standard library only).

SGLang answers with its resolved arguments and its launch command, API keys included; vLLM with its version alone.
Accept figures in there are not read: they are means over an unknown past.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATHS: Mapping[str, tuple[str, ...]] = {
    "sglang": ("/server_info", "/get_server_info"),  # the second is the name in older versions
    "vllm": ("/version",),
    "reference": (),
}
HIDDEN = "[redacted]"
SECRET = re.compile(r"api[-_]?key|token$|secret|password|passwd|credential|keyfile|authorization|cookie", re.IGNORECASE)
# Words of a command line: the option and its value, in one word or two.
SECRET_WORDS = re.compile(
    r"(--[\w-]*(?:api-key|token|secret|password|keyfile-password)(?:=|\s+))(\"[^\"]*\"|'[^']*'|\S+)"
)
URL_LOGIN = re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@")
BEARER = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9-]{8,}|Bearer\s+\S+)")
PLAIN_WORDS = ("num_token", "max_token", "token_map", "total_token", "prefill_token", "tokens")


@dataclass(frozen=True)
class ServerFacts:
    """The part that decides about speculation; None where the server does not say."""

    version: str | None = None
    algorithm: str | None = None
    draft: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    max_running: int | None = None
    continuous_decode_steps: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)  # redacted


def facts_of(engine: str, info: Mapping[str, Any]) -> ServerFacts:
    """Read the answer of one of ``PATHS``; keeps a redacted copy."""
    clean = redacted(info)
    version = info.get("version")
    version = version if isinstance(version, str) else None
    if engine != "sglang":
        return ServerFacts(version=version, raw=clean)

    def whole(name: str) -> int | None:
        value = info.get(name)
        return value if type(value) is int else None

    def text(name: str) -> str | None:
        value = info.get(name)
        return value if isinstance(value, str) else None

    return ServerFacts(
        version=version,
        algorithm=text("speculative_algorithm"),
        draft=text("speculative_draft_model_path"),
        steps=whole("speculative_num_steps"),
        topk=whole("speculative_eagle_topk"),
        draft_tokens=whole("speculative_num_draft_tokens"),
        max_running=whole("max_running_requests"),
        continuous_decode_steps=whole("num_continuous_decode_steps"),
        raw=clean,
    )


def redacted(value: Any, name: str = "") -> Any:
    """The same JSON without secrets: values under secret names, options of command lines, logins in addresses."""
    if secret_name(name) and value not in (None, "", False, True):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(key): redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # no number in JSON
    if isinstance(value, Sequence):
        return words(value)
    return value


def words(value: Sequence[Any]) -> list[Any]:
    """A list; the word after a secret option is hidden."""
    result: list[Any] = []
    hide = False
    for item in value:
        result.append(HIDDEN if hide and isinstance(item, str) else redacted(item))
        hide = isinstance(item, str) and item.startswith("--") and "=" not in item and secret_name(item)
    return result


def secret_name(name: str) -> bool:
    low = name.lower().lstrip("-")
    return bool(SECRET.search(low)) and not any(word in low for word in PLAIN_WORDS)


def clean_text(text: str) -> str:
    text = SECRET_WORDS.sub(rf"\1{HIDDEN}", text)
    return BEARER.sub(HIDDEN, URL_LOGIN.sub(rf"\1{HIDDEN}@", text))

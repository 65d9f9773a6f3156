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
# Parts of a name (apiKey, X-Api-Key and API_KEY are api, key) that say: its value is secret.
SECRET_PARTS = re.compile(
    "secrets?|passwords?|passwd|passphrase|pwd|credentials?|authorization|auth|bearer|cookies?|jwt|keyfile|signature|sig"
    "|sas|apikeys?"
)
SECRET_KEYS = re.compile("api|access|private|secret|license|encryption|ssh|signing|account|master|auth")
SECRET_TOKENS = re.compile("hf|hub|access|auth|api|bearer|refresh|session")  # of the plural: others are counts
PLAIN_TOKENS = re.compile(  # of a tokenizer, and of what is counted or timed
    "eos|bos|pad|unk|sep|cls|mask|image|video|audio|start|end|stop|special|think|per|first|last|next|inter|prompt|input"
    "|output|draft"
)
PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-_. ]+")
VALUE = re.compile(
    r"""(?:Basic|Bearer|Digest)\s+[^\s"']+|\[[^\]]*+\]?|\\*+"[^"\\]*+\\*+"|\\*+'[^'\\]*+\\*+'|[^\s,;&"')}\]]+""",
    re.I,
)
NO_VALUE = re.compile(r"""[\\"'\[\]]*(?:none|null|true|false)?[\\"'\[\]]*""", re.I)  # whether a key is set may be seen
SEVERAL = re.compile("--api[-_]key")  # vLLM takes several keys behind one
MORE = re.compile(r"(?:[ \t]++[^\s;&|<>-]\S*+)++")
# name=value, "name": "value", Name: value; and --name value.  No pattern may take more than linear time.
NAME = r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z][\w.-]*+)"
ASSIGNED = re.compile(rf"""{NAME}\\*+["']?\s*+[=:]\s*+(?!//)""")
OPTION = re.compile(r"(?<!\S)(?P<name>--[A-Za-z][\w-]*+)\s++(?!--)")
# A login of curl's, not the two numbers of docker's.
USER = re.compile(r"""((?<!\S)(?:-u|--user|--proxy-user)[\s=]++)(?!\d+:\d+(?:[\s;,"']|\Z))[^\s:]++:\S++""")
URL_LOGIN = re.compile(r"""((?<![\w+.-])\w[\w+.-]*+://)[^/\s?#"',]+@""")
KNOWN = re.compile(
    r"""(?i:\bbearer\s+[^\s"']+)|\b(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|sk-[A-Za-z0-9-]{8,}"""
    r"""|sk_(?:live|test)_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[abprs]-[\w-]{8,}|AKIA[0-9A-Z]{8,}|nvapi-[\w-]{8,}"""
    r"""|eyJ\w{8,400}\.[\w-]{1,4000}\.[\w-]+)"""
    r"""|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,30}KEY-----|\Z)"""
)


@dataclass(frozen=True)
class ServerFacts:
    """The part that decides about speculation; None where the server does not say."""

    version: str | None = None
    model: str | None = None  # path or name of the target
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
        model=text("model_path"),
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
    if secret_name(name) and not empty(value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {clean_text(str(key)): redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # no number in JSON
    if isinstance(value, Sequence):
        return words(value)
    return value


def words(value: Sequence[Any]) -> list[Any]:
    """A list; what comes after a secret option, up to the next one, is hidden."""
    result: list[Any] = []
    hide = False
    for item in value:
        option = isinstance(item, str) and item.startswith("-")
        result.append(HIDDEN if hide and not option and not empty(item) else redacted(item))
        if option:
            hide = item.startswith("--") and "=" not in item and secret_name(item)
    return result


def empty(value: Any) -> bool:
    """Nothing that could be a secret: absent, or a switch."""
    return value is None or isinstance(value, bool) or value == ""


def secret_name(name: str) -> bool:
    """Whether what is called so is a secret: API_KEY, hf_token, X-Amz-Signature; not eos_token, max_tokens."""
    parts = [part.lower() for part in PARTS.split(name) if part]
    for before, part in zip(["", *parts], parts, strict=False):
        if SECRET_PARTS.fullmatch(part) or (part in ("key", "keys") and SECRET_KEYS.fullmatch(before)):
            return True
    last, before = (parts or [""])[-1], parts[-2] if len(parts) > 1 else ""
    if last == "tokens":
        return SECRET_TOKENS.fullmatch(before) is not None
    return last == "token" and not PLAIN_TOKENS.fullmatch(before)


def clean_text(text: str) -> str:
    """A text without secrets: assigned values, options, logins and the shapes of known keys."""
    text = USER.sub(rf"\1{HIDDEN}", URL_LOGIN.sub(rf"\1{HIDDEN}@", text))
    return KNOWN.sub(HIDDEN, hidden(OPTION, hidden(ASSIGNED, text)))


def hidden(pattern: re.Pattern[str], text: str) -> str:
    """The text without the values that follow what ``pattern`` finds under a secret name."""
    pieces, done = [], 0
    for found in pattern.finditer(text):
        if found.start() < done or not secret_name(found["name"]):
            continue
        value = VALUE.match(text, found.end())
        if value is None or NO_VALUE.fullmatch(value[0]):
            continue
        more = MORE.match(text, value.end()) if SEVERAL.fullmatch(found["name"]) and pattern is OPTION else None
        pieces += [text[done : found.end()], HIDDEN]
        done = (more or value).end()
    return "".join([*pieces, text[done:]])

"""What the supervisor is told: one JSON object, every key with a default.

Times are seconds.  The supervisor knows no engine: metric names and log lines come with the policy, written by whoever
renders it (``k25stack.engines.supervise``).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from k25stack.errors import UsageError

ENGINES = ("sglang", "vllm", "reference", "fake")
STAY_DOWN = ("gpu_lost", "gpu_reset")  # fatal markers after which a restart cannot help
WARM = "warm"  # load phase from the first good health answer (or its own marker) to the first warm request
T = TypeVar("T")


@dataclass(frozen=True)
class Counters:
    """Metric names; samples of all names and labels of one list are added up."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # anything that grows while the engine works, prompt tokens too


@dataclass(frozen=True)
class Warm:
    """A request that must be answered in full before the engine counts as ready.

    Engines compile kernels when a request first needs them, so one of each kind that users send is asked for.  The name
    names its load phase: ``warm`` alone, or ``warm NAME``.
    """

    url: str
    body: Mapping[str, Any]
    name: str = ""

    @property
    def phase(self) -> str:
        return f"{WARM} {self.name}".rstrip()


@dataclass(frozen=True)
class Ready:
    """Where the supervisor answers /ready, /status and /metrics."""

    host: str = "127.0.0.1"
    port: int = 8099


@dataclass(frozen=True)
class Restart:
    """At most ``max`` restarts within ``window_s``; the n-th waits backoff_s * 2^(n-1), at most backoff_max_s."""

    max: int = 3
    backoff_s: float = 5.0
    backoff_max_s: float = 120.0
    window_s: float = 3600.0


@dataclass(frozen=True)
class Holder:
    """What the lease's record says beside the process itself."""

    who: str = "k25stack-watch"
    purpose: str = "serve"
    cards: int = 0


@dataclass(frozen=True)
class Policy:
    engine: str = "fake"
    health_url: str = "http://127.0.0.1:30000/health"
    metrics_url: str | None = None  # None: no heartbeat by tokens, health alone
    counters: Counters = field(default_factory=Counters)
    warm: tuple[Warm, ...] = ()  # one after the other; empty: ready once health answers 200
    ready: Ready = field(default_factory=Ready)
    ready_s: float = 1800.0  # a start that takes longer has failed
    heartbeat_s: float = 20.0  # T: time between two looks
    misses: int = 3  # in a row
    compile_s: float = 900.0  # a stall while a compiler runs below the engine is no miss for so long
    restart: Restart = field(default_factory=Restart)
    grace_s: float = 120.0  # from SIGTERM to the last SIGKILL
    history: Path | None = None  # the supervisor's own ledger file, <writer>.jsonl
    lease: Path | None = None  # locked while the engine is up
    holder: Holder = field(default_factory=Holder)
    load_markers: Mapping[str, str] = field(default_factory=dict)  # phase -> pattern of the log line that begins it
    fatal_markers: Mapping[str, str] = field(default_factory=dict)  # cause -> pattern of a log line

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that `from_json` reads back."""
        values = asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @property
    def kill_s(self) -> float:
        """The part of the grace that the engine has between SIGTERM and SIGKILL."""
        return min(10.0, self.grace_s / 4)


def load(path: Path) -> Policy:
    """Read a policy file.  Raises UsageError: one line with the file, the key and what is expected."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=str(path)) from None
    return from_json(raw, str(path))


def from_json(raw: Any, where: str = "policy") -> Policy:
    """Judge a decoded JSON object.  Raises UsageError for an unknown key or a value of another kind."""
    policy = Policy(**_take(raw, where, READERS))
    for name, text in (*policy.load_markers.items(), *policy.fatal_markers.items()):
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"marker {name} is no pattern: {error}", where=where) from None
    if policy.metrics_url and not (policy.counters.running and policy.counters.tokens):
        raise UsageError("metrics_url without counters.running and counters.tokens", where=where,
                         remedy="name the engine's metrics, or leave metrics_url out")  # fmt: skip
    return policy


def _take(raw: Any, where: str, readers: Mapping[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Every given key through its reader; absent keys keep their default."""
    if not isinstance(raw, dict):
        raise UsageError(f"an object is expected, not {_kind(raw)}", where=where)
    for key in raw:
        if key not in readers:
            raise UsageError(f"unknown key {key!r}", where=where, remedy=f"one of {', '.join(sorted(readers))}")
    return {key: readers[key](value, f"{where}: {key}") for key, value in raw.items()}


def _part(kind: Callable[..., T], **readers: Callable[[Any, str], Any]) -> Callable[[Any, str], T]:
    def read(raw: Any, where: str) -> T:
        try:
            return kind(**_take(raw, where, readers))
        except TypeError:  # a key without a default
            parts = inspect.signature(kind).parameters.values()
            needed = ", ".join(part.name for part in parts if part.default is part.empty)
            raise UsageError(f"keys {needed} are needed", where=where) from None

    return read


def _warm(raw: Any, where: str) -> tuple[Warm, ...]:
    """Null, one object (without a name), or a list of objects with names of their own."""
    if raw is None:
        return ()
    read = _part(Warm, url=_url, body=_object, name=_label)
    if not isinstance(raw, (list, tuple)):
        return (read(raw, where),)
    found = tuple(read(one, f"{where}: {number}") for number, one in enumerate(raw))
    if len({one.name for one in found}) < len(found):
        raise UsageError("two requests have one name", where=where, remedy="name each after what it warms")
    return found


def _maybe(reader: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    return lambda raw, where: None if raw is None else reader(raw, where)


def _text(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or not raw:
        raise UsageError(f"text is expected, not {_kind(raw)}", where=where)
    return raw


def _label(raw: Any, where: str) -> str:
    return "" if raw == "" else _text(raw, where)


def _engine(raw: Any, where: str) -> str:
    if raw not in ENGINES:
        raise UsageError(f"unknown engine {raw!r}", where=where, remedy=f"one of {', '.join(ENGINES)}")
    return str(raw)


def _url(raw: Any, where: str) -> str:
    parts = urlsplit(_text(raw, where))
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise UsageError(f"not http://HOST:PORT/PATH: {raw}", where=where)
    return str(raw)


def _path(raw: Any, where: str) -> Path:
    path = Path(_text(raw, where))
    if not path.is_absolute():
        raise UsageError(f"an absolute path is expected: {raw}", where=where)
    return path


def _history(raw: Any, where: str) -> Path:
    path = _path(raw, where)
    if path.suffix != ".jsonl":
        raise UsageError(f"a ledger file is named <writer>.jsonl: {raw}", where=where)
    return path


def _number(least: float, most: float) -> Callable[[Any, str], float]:
    def read(raw: Any, where: str) -> float:
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not least <= raw <= most:
            raise UsageError(f"a number from {least:g} to {most:g} is expected, not {raw!r}", where=where)
        return float(raw)

    return read


def _whole(least: int, most: int) -> Callable[[Any, str], int]:
    def read(raw: Any, where: str) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise UsageError(f"a whole number from {least} to {most} is expected, not {raw!r}", where=where)
        return raw

    return read


def _names(raw: Any, where: str) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)):
        raise UsageError(f"a list of names is expected, not {_kind(raw)}", where=where)
    return tuple(_text(name, where) for name in raw)


def _patterns(raw: Any, where: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise UsageError(f"an object of patterns is expected, not {_kind(raw)}", where=where)
    return {str(name): _text(text, f"{where}.{name}") for name, text in raw.items()}


def _object(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise UsageError(f"an object is expected, not {_kind(raw)}", where=where)
    return raw


def _kind(raw: Any) -> str:
    return "null" if raw is None else type(raw).__name__


DAY = 86400.0
READERS: dict[str, Callable[[Any, str], Any]] = {
    "engine": _engine,
    "health_url": _url,
    "metrics_url": _maybe(_url),
    "counters": _part(Counters, running=_names, waiting=_names, tokens=_names),
    "warm": _warm,
    "ready": _part(Ready, host=_text, port=_whole(0, 65535)),
    "ready_s": _number(0.1, 7 * DAY),
    "heartbeat_s": _number(0.1, 3600.0),
    "misses": _whole(1, 100),
    "compile_s": _number(0.0, DAY),
    "restart": _part(
        Restart,
        max=_whole(0, 1000),
        backoff_s=_number(0.0, DAY),
        backoff_max_s=_number(0.0, DAY),
        window_s=_number(1.0, 30 * DAY),
    ),
    "grace_s": _number(0.1, DAY),
    "history": _maybe(_history),
    "lease": _maybe(_path),
    "holder": _part(Holder, who=_text, purpose=_text, cards=_whole(0, 4096)),
    "load_markers": _patterns,
    "fatal_markers": _patterns,
}

"""What kind of thing a target of ``k25stack check`` is, and which checks it gets.

The first kind of ``KINDS`` that recognises the target judges it.  To add a kind: write its check, add its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question, attempt
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.contract.stack import check_stack
from k25stack.draft.provenance import CONFIG, PROVENANCE
from k25stack.draft.target import DRAFT_KEYS, TargetFacts, read_object
from k25stack.errors import UsageError

DEFAULT_ENGINES = ("reference", "sglang@0.5.20", "vllm@0.31.0")
PICKLED_DRAFTS = ("pytorch_model*.bin", "*.pt", "*.pth")


@dataclass(frozen=True)
class Options:
    """What the command line may say besides the target; each kind uses its part."""

    engines: tuple[str, ...] = DEFAULT_ENGINES
    target: Path | None = None  # of a draft: model directory or config.json
    layers: tuple[int, ...] | None = None
    context: int | None = None
    states: Path | None = None  # that a draft was trained on; beside states: another extraction of their text
    profile: str = ""
    gpu: str = ""  # of a stack or a launch line, as sm120; a stack's own card if left out
    nccl: str = ""  # version of NCCL
    deep: bool = False
    draft: Path | None = None  # that a server serves, or that states are for
    baseline: str | None = None  # address of the same target without a draft
    samples: Path | None = None  # held-out rows to ask a server
    log: Path | None = None  # of a server
    rounds: int | None = None  # to be seen on a server
    seconds: float | None = None  # to spend on a server
    kinds: bool = False  # one request of every kind to a server


@dataclass(frozen=True)
class Kind:
    name: str
    recognises: Callable[[str], bool]
    judge: Callable[[str, Options], Result]


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def is_stack(target: str) -> bool:
    return Path(target).suffix in (".yaml", ".yml")


def is_states(target: str) -> bool:
    return (Path(target) / "manifest.json").is_file()


def is_draft(target: str) -> bool:
    """A directory with a draft's config, or with weights and no config of another model."""
    directory = Path(target)
    if (directory / PROVENANCE).exists():
        return True
    if (directory / CONFIG).exists():
        config, problem = attempt(lambda: read_object(directory / CONFIG), {})
        named = str(config.get("architectures", "")).lower()
        return bool(problem) or "eagle" in named or any(key in config for key in DRAFT_KEYS)
    return any(any(directory.glob(pattern)) for pattern in ("*.safetensors", *PICKLED_DRAFTS))


def require_draft(options: Options) -> None:
    """Raises UsageError when --draft names something else."""
    if options.draft is not None and not is_draft(str(options.draft)):
        raise UsageError("no draft", where=f"--draft {options.draft}", remedy="give a draft directory")


def require_states(options: Options) -> None:
    """Raises UsageError when --states names something else."""
    if options.states is not None and not is_states(str(options.states)):
        raise UsageError("no manifest.json", where=f"--states {options.states}", remedy="give a directory of states")


def judge_draft(target: str, options: Options) -> Result:
    facts = TargetFacts.read(options.target) if options.target else None
    require_states(options)
    question = Question(options.layers, facts, options.context, options.states, options.deep)
    return check_draft(Path(target), options.engines, question)


def judge_states(target: str, options: Options) -> Result:
    from k25stack.contract.states import StatesQuestion, check_states

    require_draft(options)
    require_states(options)
    question = StatesQuestion(options.target, options.draft, options.layers, options.deep, options.states)
    return check_states(Path(target), question)


def judge_url(target: str, options: Options) -> Result:
    from k25stack.contract.url import UrlQuestion, check_url

    require_draft(options)
    given = {name: value for name in ("rounds", "seconds") if (value := getattr(options, name)) is not None}
    question = UrlQuestion(
        options.draft,
        options.target,
        options.samples,
        options.baseline,
        options.log,
        options.layers,
        kinds=options.kinds,
        **given,
    )
    return check_url(target, question)


def judge_host(target: str, options: Options) -> Result:
    """This machine, by the profile that fits its cards; ``k25stack check host`` alone has more options."""
    from k25stack.host import check_host

    checks = check_host()["checks"]
    return Result("host", "host", tuple(Check(**{**one, "verdict": Verdict(one["verdict"])}) for one in checks))


KINDS = (
    Kind("host", lambda target: target == "host", judge_host),
    Kind("url", is_url, judge_url),
    Kind(
        "stack", is_stack, lambda target, options: check_stack(Path(target), options.profile, options.gpu, options.nccl)
    ),
    Kind("states", is_states, judge_states),
    Kind("draft", is_draft, judge_draft),
)


def check_target(target: str, options: Options) -> Result:
    """Judge one target by its kind.  Raises UsageError when it is missing or of no known kind."""
    for kind in KINDS:
        if kind.recognises(target):
            return kind.judge(target, options)
    known = ", ".join(kind.name for kind in KINDS)
    if not Path(target).exists():
        address = re.fullmatch(r"(?:https?://)?([\w.-]+:\d+.*)", target, re.IGNORECASE)
        remedy = f"an address begins with http: http://{address[1]}" if address else f"what can be checked: {known}"
        raise UsageError("no such file or directory", where=target, remedy=remedy)
    around = str(Path(target).parent)
    inside = Path(target).is_file() and (is_states(around) or is_draft(around))
    remedy = f"give its directory: {around}" if inside else f"give one of: {known}"
    raise UsageError("not a thing that can be checked", where=target, remedy=remedy)

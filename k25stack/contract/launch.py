"""Checks of one launch line (C10, C11 of the engine contract): refused before a server is started.

Each rule is a small function that looks at one `Launch` and yields results; it is a row of ``TABLE``.  Ids:

====  ===========================================  ====  ===========================================
L0    the version has an option catalogue          L20   backend without kernels for the card
L1    unknown or ambiguous option                  L21   precision lowered without saying so
L2    abbreviated option                           L22   batches without a graph
L3    bad value                                    L30   prefix cache on while states are taken
L4    deprecated option                            L31   states of the last layer only
L5    dead option (T10)                            L40   code of an unpinned model
L6    word too many or too few                     L41   an API open to every interface
L7    option given twice                           L42   a key on the command line
L8    a --config file that cannot be read
L9    options that stop the engine together
L10   EAGLE with an EAGLE-3 draft (T1)             L43   version below the security floor
L11   speculation capped at 48 requests (T9)       L44   ``serve`` said twice
L12   steps, topk and draft tokens disagree        L45   small shared memory
L13   draft missing                                L46   image not pinned by digest
L14   draft options without an algorithm           L47   environment that changes what is measured
L15   draft inherits the quantization              N0-3  NCCL
L16   draft inherits the attention backend
L17   draft inherits random weights
L18   options without effect on an EAGLE-3 draft
====  ===========================================  ====  ===========================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from k25stack.contract import launch_draft, launch_gpu, launch_options, launch_safety
from k25stack.contract.finding import Check, Result
from k25stack.contract.launch_line import Launch
from k25stack.engines.command import read_command, typed
from k25stack.engines.versions import version_key
from k25stack.errors import UsageError

GPUS = {"sm80": "A100", "sm86": "A40, RTX 30", "sm89": "L40S, RTX 40", "sm90": "H100, H200", "sm100": "B200",
        "sm103": "B300", "sm120": "RTX PRO 6000 Blackwell, RTX 50", "sm121": "GB10"}  # fmt: skip


Rule = Callable[[Launch], Iterator[Check]]
TABLE: tuple[Rule, ...] = (
    *launch_options.RULES,
    *launch_draft.RULES,
    *launch_gpu.RULES,
    *launch_safety.RULES,
)


def check_launch(launch: Launch) -> tuple[Check, ...]:
    """Every rule over one launch."""
    return tuple(check for rule in TABLE for check in rule(launch))


def is_launch(words: Sequence[str]) -> bool:
    """Whether the words are a command line and not targets: an option among them, or a program that starts servers."""
    words = typed(words)
    return any(word.startswith("-") for word in words) or bool(read_command(words).launcher)


def check_argv(words: Sequence[str], engine: str = "", gpu: str = "", nccl: str = "") -> Result:
    """Judge a launch line as it is typed; ``engine`` as sglang@0.5.20, needed where the line does not tell it.

    Raises UsageError when no engine or version is known, or when the two contradict.
    """
    command = read_command(words := typed(words))
    named, _, version = engine.partition("@")
    if named and command.engine and named != command.engine:
        raise UsageError(f"a launch of {command.engine}, not of {named}", where="--engine", remedy="leave it out")
    found, version = named or command.engine, version or command.version
    if not found or not version:
        missing = "engine" if not found else "version"
        remedy = f"give --engine {'vllm@0.31.0' if found == 'vllm' else 'sglang@0.5.20'}"
        raise UsageError(f"the line does not tell the {missing}", where="check", remedy=remedy)
    require_version(version, "--engine")
    launch = Launch(command, found, version, gpu=gpu_name(gpu), nccl=require_version(nccl, "--nccl"))
    return Result(" ".join(words[:6]) + (" ..." if len(words) > 6 else ""), "launch", check_launch(launch))


def require_version(text: str, where: str) -> str:
    """The text itself; empty is fine.  Raises UsageError for what does not begin with a number."""
    if text and not version_key(text):
        raise UsageError(f"{text!r} is no version", where=where, remedy="as 0.5.20 or 2.29.7")
    return text


def gpu_name(text: str) -> str:
    """``sm120`` from sm120, sm_120, 12.0 or 120; empty from nothing.  Raises UsageError for anything else."""
    if not text:
        return ""
    found = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)[af]?", text.strip().lower())
    name = f"sm{found.group(1)}{found.group(2)}" if found else ""
    if name not in GPUS:
        known = ", ".join(f"{key} ({cards})" for key, cards in GPUS.items())
        raise UsageError(f"{text!r} is no card that is known", where="--gpu", remedy=f"one of {known}")
    return name

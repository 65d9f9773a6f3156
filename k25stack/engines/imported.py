"""A launch line turned into a serving profile, and a list of what has no place in one (standard library only).

Typed keys take what they can hold; every other option goes under ``argv`` by its full name.  Nothing is dropped in
silence: what belongs elsewhere in the stack file, what was rewritten and what could not be read is listed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.engines.catalogue import Catalogue, catalogue, judge_name, remarks, versions
from k25stack.engines.command import Command
from k25stack.engines.configfile import expanded
from k25stack.engines.facts import LaunchFacts, launch_facts
from k25stack.engines.info import HIDDEN, clean_text, redacted, secret_name
from k25stack.engines.scan import Given, Scan, scan, served
from k25stack.engines.sglang import OWN as SGLANG_OWN
from k25stack.engines.vllm import OWN as VLLM_OWN
from k25stack.errors import UsageError

TYPED = {"tensor_parallel": "tensor_parallel", "context": "context", "max_running": "max_running"}
SPECULATIVE = ("algorithm", "draft", "draft_revision", "steps", "topk", "rows", "draft_attention", "speculative")
WRITTEN = {"method", "model", "revision", "num_speculative_tokens", "attention_backend", "draft_load_config"}  # in JSON
ELSEWHERE = {
    "model": "target.source",
    "revision": "target.source.revision",
    "served_name": "target.name",
    "host": "serving.host",
    "port": "serving.port",
}
ALWAYS = ("--enable-metrics", "--speculative-draft-load-format")  # written by the stack itself where they are needed
OWN = {"sglang": SGLANG_OWN, "vllm": VLLM_OWN}  # options that the stack writes from other keys
NEW = re.compile(r"(?:write |and )([a-z][a-z0-9-]+)(?:: (\w+))?")  # in a remark: what to write instead
SECRET = re.compile(
    r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE)(_?ID|_FILE|_PATH)?|(.*_)?(PASS|PAT|AUTH|JWT)",
    re.IGNORECASE,
)
# Their variables say what they are: NCCL_IB_PKEY and SGLANG_USE_AITER_FP8_PER_TOKEN are none.
PLAIN_NAMES = re.compile(r"(SGLANG|SGL|VLLM|NCCL|CUDA)_")
NO_SECRETS = "a secret does not belong into a stack file"
SET = re.compile(r"\b([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S+)")
# Variables of the machine or the image, not of a way to serve.
AMBIENT = re.compile(r"PATH|LD_LIBRARY_PATH|HOME|HOSTNAME|PWD|TERM|LANG|LC_\w+|SHLVL|USER|DEBIAN_FRONTEND|"
                     r"(NVIDIA|NV)_\w+|CUDA_(?!DEVICE_|LAUNCH_|MODULE_)\w+|PYTHON\w*|PIP_\w+|HF_\w+|"
                     r"HUGGING\w+|\w*_VERSION|_")  # fmt: skip
CARDS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# What docker sets by itself, and `docker inspect` tells like anything else.
DOCKERS_OWN = (("--shm-size", 64 << 20), ("--ipc", "private"), ("--network", "bridge"), ("--network", "default"))
RUNNING = {"sglang": 48, "vllm": 256}  # requests that run at once when the line does not say


@dataclass
class Imported:
    """A profile as plain values of the stack file, and what to know about it."""

    profile: dict[str, Any]
    elsewhere: list[str] = field(default_factory=list)  # belongs under another key of the stack file
    changed: list[str] = field(default_factory=list)  # taken over in another form
    unmapped: list[str] = field(default_factory=list)  # has no place, or could not be read


def import_command(command: Command, engine: str = "", version: str = "") -> Imported:
    """The profile of a launch line.  Raises UsageError when the engine is not told, or has no options to read."""
    name = engine or command.engine
    if not name or not versions(name):
        raise UsageError("the line does not tell the engine", where="import", remedy="give --engine sglang@0.5.20")
    newest = versions(name)[-1]
    known = catalogue(name, version or command.version or newest)
    assert known is not None
    renamed: list[str] = []
    own, refused = served(known, command.launcher, command.words)
    file = expanded(known, own)
    line = scan(known, list(new_spellings(list(file.words), known, renamed)))
    line.refusals += refused
    bad = {
        refusal.word for refusal in line.refusals if refusal.kind in ("value", "missing")
    }  # listed below, and no part of a file
    line.given = [given for given in line.given if given.spelled not in bad]
    facts = launch_facts(line, command.env)
    result = Imported({"engine": name, "version": known.version}, changed=renamed)
    if file.problem:
        result.unmapped.append(f"{file.problem} ({file.remedy})")
    if not (version or command.version):
        result.changed.append(f"version {newest}: the line names none, the newest known one is taken")
    for meaning, key in TYPED.items():
        value = facts.get(meaning, 1)
        if value < 1:  # -1 or auto
            result.changed.append(f"{key} left out: {facts.spell(meaning)} {value} leaves it to the engine")
        elif meaning in facts.values:
            result.profile[key] = value
    if facts.speculates:
        result.profile |= speculative(facts, result)
    result.elsewhere += [f"{ELSEWHERE[key]}: {facts.values[key]}" for key in ELSEWHERE if key in facts.values]
    if facts.get("load_format") == "dummy":
        result.elsewhere.append(f"target.source: {{kind: dummy, seed: {facts.get('dummy_seed', 1)}}}")
    argv = dict(options(line, facts, result))
    if argv:
        result.profile["argv"] = argv
    env = environment(command.env, result)
    if env:
        result.profile["env"] = env
    for refusal in line.refusals:
        finding = refusal.finding
        target = result.changed if finding is not None and finding.problem == "abbreviated" else result.unmapped
        if refusal.kind != "required":
            target.append(f"{refusal.word}: {refusal.message} ({refusal.fix})")
    surroundings(command, result)
    for notes in (result.elsewhere, result.changed, result.unmapped):
        notes[:] = map(told, notes)
    return result


def told(note: str) -> str:
    """A note without secrets: notes stand in the head of the file."""
    if note.endswith(NO_SECRETS):
        return note
    return clean_text(SET.sub(lambda found: f"{found[1]}={HIDDEN}" if secret_variable(found[1]) else found[0], note))


def new_spellings(words: list[str], known: Catalogue, renamed: list[str]) -> Iterator[str]:
    """The words with old options under the names that they have now (from the reviewed table)."""
    table = remarks(known.engine, known.version)
    for word in words:
        name, equals, attached = word.partition("=")
        remark = table.get(name.lstrip("-")) if name.startswith("--") else None
        new = NEW.findall(remark.instead) if remark and remark.kind == "renamed" else []
        if remark is None or not new or any(f"--{option}" not in known.options for option, _ in new):
            yield word
            continue
        renamed.append(f"{name}: {remark.instead}")
        for option, value in new:
            yield f"--{option}"
            if value:
                yield value
        if equals:
            yield attached


def speculative(facts: LaunchFacts, result: Imported) -> dict[str, Any]:
    """The typed section of a draft, under its key; nothing, and a note, for speculation that is none with EAGLE-3."""
    steps, topk, rows = facts.get("steps"), facts.get("topk", 1), facts.get("rows")
    chosen = str(facts.get("algorithm") or "draft_model")
    if chosen.upper() not in ("EAGLE3", "EAGLE", "NEXTN") or (chosen.upper() != "EAGLE3" and not facts.get("draft")):
        told = {facts.spell(meaning): facts.get(meaning) for meaning in SPECULATIVE if meaning in facts.values}
        what = ", ".join(f"{name} {value}" for name, value in told.items())
        result.unmapped.append(f"speculation with {chosen}: a profile holds an EAGLE-3 draft or none ({what})")
        return {}
    if steps is not None and type(steps) is not int:  # out of vLLM's JSON
        result.unmapped.append(f"num_speculative_tokens {steps!r}: no whole number")
        steps = None
    if chosen.upper() != "EAGLE3":
        result.changed.append(
            f"speculative.algorithm eagle3: the line has {chosen}, which bypasses an EAGLE-3 draft's fc"
        )
    config = facts.get("speculative")
    for key in sorted(set(config) - WRITTEN) if isinstance(config, Mapping) else ():
        result.unmapped.append(f'"{key}" of --speculative-config: {json.dumps(config[key], default=str)}')
    section: dict[str, Any] = {"algorithm": "eagle3", "k": steps or 3, "topk": topk}
    if steps is None:
        result.changed.append("speculative.k 3: the line names no steps, which the engine sets for this target")
    if topk > 1:
        section["draft_tokens"] = rows or topk * (steps or 3)
    elif rows not in (None, section["k"] + 1):
        result.changed.append(
            f"draft tokens {section['k'] + 1}: a chain verifies k + 1 rows, {rows} would be rewritten"
        )
    draft = str(facts.get("draft") or "own")
    if not facts.get("draft"):
        result.changed.append("speculative.draft own: the line names none")
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", draft) is not None
    section["draft"] = draft if hub or draft == "own" or draft.startswith(("/", ".")) else f"./{draft}"
    if hub and facts.get("draft_revision"):
        section["draft_revision"] = str(facts.get("draft_revision"))
    if facts.get("draft_attention"):
        section["attention_backend"] = facts.get("draft_attention")
    if "max_running" not in facts.values:
        result.profile["max_running"] = running = RUNNING[facts.engine]
        result.changed.append(f"max_running {running}: not in the line; {facts.engine} sets about that by itself (T9)")
    return {"speculative": section}


def options(line: Scan, facts: LaunchFacts, result: Imported) -> Iterator[tuple[str, Any]]:
    """What goes under ``argv``, by full name; typed, foreign and dead options are left out."""
    taken = {facts.written[meaning] for meaning in (*TYPED, *ELSEWHERE) if meaning in facts.written}
    if facts.speculates:
        taken |= {facts.written[meaning] for meaning in SPECULATIVE if meaning in facts.written}
    if facts.get("load_format") == "dummy":
        taken |= {facts.written[meaning] for meaning in ("load_format", "dummy_seed") if meaning in facts.written}
    for given in line.given:
        name = given.option.name
        if name in taken or name in ALWAYS:
            continue
        bare = (given.spelled.replace("_", "-") if given.opposite else name).lstrip("-")
        finding = judge_name(line.known, name.lstrip("-"))
        if finding is not None and finding.problem == "dead":
            result.unmapped.append(f"{name}: {finding.message} ({finding.remedy})")
            continue
        if finding is not None and finding.problem == "replaced":
            result.changed.append(f"{name}: {finding.message} ({finding.remedy})")
        if bare in OWN[line.known.engine]:
            result.elsewhere.append(f"{OWN[line.known.engine][bare]}: {' '.join(given.words)}")
            continue
        plain = plain_value(given)
        if "key" in bare or "password" in bare or secret_name(bare) or holds_secret(plain):
            result.unmapped.append(f"{name}: {NO_SECRETS}")
            continue
        yield bare, plain


def holds_secret(value: Any) -> bool:
    """Whether a value, or the JSON that its text is, has a secret in it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    return bool(redacted(value) != value)


def plain_value(given: Given) -> Any:
    """As the stack file writes it: true, a value, a list, or a mapping that becomes JSON."""
    if given.option.nargs == 0:
        return True
    value = given.value
    words = [
        item if isinstance(item, int | float | str) else word
        for item, word in zip(given.values, given.words, strict=True)
    ]
    if isinstance(value, Mapping):
        return dict(value)
    return words if isinstance(value, list) and given.option.nargs not in (None, "?") else words[0] if words else True


def secret_variable(name: str) -> bool:
    """Whether a variable's name says that its value is secret: STRIPE_KEY too, which no option would be called."""
    return secret_name(name) or (SECRET.fullmatch(name) is not None and not PLAIN_NAMES.match(name))


def environment(env: Mapping[str, str], result: Imported) -> dict[str, str]:
    """Variables of the launch; secrets and those of the machine stay out, and secrets are named."""
    kept = {}
    for name, value in env.items():
        if secret_variable(name) or clean_text(value) != value:
            result.unmapped.append(f"{name}: {NO_SECRETS}")
        elif name in CARDS and value not in ("", "all"):
            result.unmapped.append(f"{name}={value}: which cards are taken is no part of a profile")
        elif AMBIENT.fullmatch(name):
            continue
        elif re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            kept[name] = value
        else:
            result.unmapped.append(f"{name}={value}: no variable that a profile can hold")
    return kept


def surroundings(command: Command, result: Imported) -> None:
    """The container and the programs around the launch."""
    if command.repeated:
        result.changed.append(f"`{' '.join(command.repeated)}` left out: the image's entrypoint has said it")
    if leading := " ".join(word for word in command.leading if word not in ("exec", "env")):
        result.unmapped.append(f"{leading}: programs before the launch")
    run = command.container
    if run is None:
        return
    if run.image:
        result.elsewhere.append(f"images and profile.image: {run.image}")
    shown = {"--shm-size": run.shm_bytes, "--ipc": run.ipc, "--network": run.network,
             "--privileged": run.privileged or None}  # fmt: skip
    given = {name: value for name, value in shown.items() if value and (name, value) not in DOCKERS_OWN}
    result.unmapped += [f"{name} {value}: of the container" for name, value in given.items()]
    result.unmapped += [f"-p {port}: of the container" for port in run.ports]
    result.unmapped += [f"{option}: of the container" for option in run.other]

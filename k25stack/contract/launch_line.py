"""What the launch checks look at: one line, read once, and what is known around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.catalogue import Catalogue, catalogue
from k25stack.engines.command import Command
from k25stack.engines.configfile import Expanded, expanded
from k25stack.engines.facts import LaunchFacts, launch_facts
from k25stack.engines.scan import Refusal, Scan, scan, served
from k25stack.errors import UsageError


@dataclass(frozen=True)
class Launch:
    """One launch line and what is known around it."""

    command: Command
    engine: str
    version: str
    gpu: str = ""  # as "sm120"; empty: not told
    group: str = ""  # what the checks are filed under
    eagle3: bool | None = None  # the draft is an EAGLE-3 one; None: not known
    mla: bool | None = None  # the target has latent attention; None: not known
    requests: int = 0  # as many at once will be asked of it; 0: not known
    nccl: str = ""  # NCCL's version
    env: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def known(self) -> Catalogue:
        found = catalogue(self.engine, self.version)
        if found is None:
            raise UsageError(f"no option catalogue for {self.engine}", where="check", remedy="sglang or vllm")
        return found

    @cached_property
    def served(self) -> tuple[list[str], list[Refusal]]:
        """The words that the engine's parser gets from its launcher, and what the launcher refuses."""
        return served(self.known, self.command.launcher, self.command.words)

    @cached_property
    def config(self) -> Expanded:
        """The words with those of a ``--config`` file among them."""
        return expanded(self.known, self.served[0])

    @cached_property
    def line(self) -> Scan:
        found = scan(self.known, self.config.words)
        found.refusals += self.served[1]
        if self.config.problem:  # the file may hold what the line lacks
            found.refusals = [one for one in found.refusals if one.kind != "required"]
        return found

    @cached_property
    def facts(self) -> LaunchFacts:
        return launch_facts(self.line, {**self.command.env, **self.env})

    @property
    def label(self) -> str:
        return self.group or f"{self.engine}@{self.version}"

    def finding(
        self, id: str, verdict: Verdict, message: str, evidence: Mapping[str, object], fix: str, source: str
    ) -> Check:
        return Check(id, self.label, verdict, message, evidence, fix, source)

"""What a stack file says about starting one profile, beside the profile itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k25stack.engines.protocol import Launch
from k25stack.errors import UsageError

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

MADE = ("own", "random")  # drafts that a run makes: they have no name until then


def model_name(stack: Stack) -> str | None:
    """Hub name or directory of the target; None when a step has to make it first."""
    source = stack.target.source
    if source.kind == "hub":
        return source.repo
    return source.path if source.kind == "dir" else None


def draft_name(profile: Profile) -> str | None:
    """Hub name or directory of the draft; None without speculation or when a step has to make it first."""
    named = profile.speculative.draft if profile.speculative else None
    return None if named in MADE else named


def launch_of(
    stack: Stack,
    profile: Profile,
    *,
    model: str | None = None,
    draft: str | None = None,
    host: str | None = None,
    port: int | None = None,
) -> Launch:
    """The launch of ``profile``; ``model`` and ``draft`` are the realised directories where there are such.

    Raises UsageError when target or draft is made by a step and not given.
    """
    target, source = stack.target, stack.target.source
    place = model or model_name(stack)
    if place is None:
        raise UsageError(f"the target ({source.kind}) is made by a run", where=stack.name, remedy="give its directory")
    if profile.speculative and not (draft or draft_name(profile)):
        raise UsageError(f"the draft ({profile.speculative.draft}) is made by a run", where=stack.name,
                         remedy="give its directory")  # fmt: skip
    return Launch(
        model=place,
        served_name=target.name,
        host=host or stack.serving.host,
        port=port or stack.serving.port,
        context=target.context,
        family=target.family,
        draft=(draft or draft_name(profile)) if profile.speculative else None,
        revision=source.revision if source.kind == "hub" and model is None else None,
        draft_revision=profile.speculative.draft_revision if profile.speculative and draft is None else None,
        dummy_seed=source.seed if source.kind == "dummy" else None,
        threads=stack.host.threads,
        seed=stack.data.seed,
    )

"""``k25stack``: the list of verbs, each loaded when it is called, and the one place where errors become exit codes.

Exit codes: 0 fine, 1 a finding or failure, 2 usage or not that kind of thing, 3 environment or unreachable,
4 drift; 130 after Ctrl-C.  stdout is data, stderr is for people; ``--debug`` anywhere shows the traceback.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import typer
import typer.core
import typer.main

from k25stack.cli import start
from k25stack.cli.output import say
from k25stack.errors import HostError, K25Error

HERE = Path(__file__).resolve().parent


class Verb(NamedTuple):
    module: str
    attribute: str
    help: str


VERBS = {
    "run": Verb("run", "run", "The whole loop of a stack, or a part of it; -n prints the plan with reasons."),
    "status": Verb("watching", "status", "Runs, what they are doing, the GPU lease, disk."),
    "logs": Verb("watching", "logs", "The log of a step; -f follows it."),
    "stop": Verb("watching", "app", "End a run that is going on; finished parts stay."),
    "stack": Verb("stack", "app", "The stack file: one typed YAML file that decides a whole run."),
    "host": Verb("host", "app", "Bring hosts up, undo it; advise and measure NCCL's settings."),
    "check": Verb("check", "app", "Judge a host, stack, draft, states directory or running server."),
    "doctor": Verb("check", "app", "The same as check host."),
    "serve": Verb("serve", "app", "Serve a profile in containers; promote and rollback."),
    "bench": Verb("bench", "app", "Measure a running server, compare measurements."),
    "draft": Verb("draft", "app", "Inspect, convert and score a draft."),
    "report": Verb("report", "app", "The status document of a run, and notes for it."),
}


class Verbs(typer.core.TyperGroup):
    """A group that knows its commands by name and imports one when it is called."""

    words: Sequence[str] = ()  # what follows the verb

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, verb in VERBS.items() if (HERE / f"{verb.module}.py").exists()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        verb = VERBS[cmd_name]
        found = getattr(import_module(f"k25stack.cli.{verb.module}"), verb.attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        found.rich_markup_mode = None  # plain help everywhere: rich alone takes longer to load than the rest
        narrow = start.narrowed(found, self.words)
        return typer.main.get_command(found) if narrow is None else typer.main.get_group(narrow)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(self.list_commands(ctx))  # type: ignore[assignment]  # names to suggest
        if args[0] == "doctor":
            args = ["check", "host", *args[1:]]
        self.words = args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name].help) for name in self.list_commands(ctx)])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("interrupted", remedy="nothing is half-written") from None


class Stopped(K25Error):
    """Ctrl-C outside a run."""

    exit_code = 130


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="From a bare 8-GPU host to a verified, speculation-accelerated Kimi-K2.5 endpoint, reproducibly.",
    epilog="Exit codes: 0 fine, 1 finding or failure, 2 usage, 3 environment, 4 drift, 130 interrupted. "
    "--debug anywhere shows tracebacks.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from k25stack import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    """From a bare 8-GPU host to a verified, speculation-accelerated Kimi-K2.5 endpoint, reproducibly."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    start.prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in own
    if debug:
        words = [word for word in own if word != "--debug"] + words[len(own) :]
    try:
        typer.main.get_command(app)(args=words, prog_name="k25stack")
    except K25Error as error:
        if debug:
            raise
        return _fail(error)
    except OSError as error:
        if debug:
            raise
        return _fail(of_system(error))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # of a log: nobody reads it any more
            return 0
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def of_system(error: OSError) -> HostError:
    """What the operating system refused, where, and what to do."""
    remedies = {
        errno.ENOSPC: "free space, run again",
        errno.EDQUOT: "the quota is used up: free space, run again",
        errno.EROFS: "it is read-only: work in another directory",
        errno.EACCES: "check the permissions, or work in another directory",
        errno.EPERM: "check the permissions, or work in another directory",
        errno.ENOTDIR: "a file stands where a directory is needed",
    }
    remedy = remedies.get(error.errno or 0, "--debug shows where it happened")
    return HostError(error.strerror or str(error), where=str(error.filename or ""), remedy=remedy)


def _fail(error: K25Error) -> int:
    say(f"error: {error}", err=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

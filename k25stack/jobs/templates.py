"""The templates and the filters that quote everything that goes into them.

A list stays a list: a word of a command is quoted by itself, never joined to a line and split again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import HostError, UsageError

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from jinja2.bccache import Bucket

CLONE = Path(__file__).resolve().parents[2] / "templates"
INSTALLED = "share/k25stack/templates/"
PLAIN = re.compile(r"[A-Za-z0-9._:/=,%+@-]+")  # what a line of #SBATCH takes without quoting


@cache
def directory() -> Path:
    """Where the templates are: in the clone, or beside the installed package.  Raises HostError when neither."""
    if CLONE.is_dir():
        return CLONE
    from importlib.metadata import PackageNotFoundError, files

    try:
        for file in files("k25stack") or ():
            if INSTALLED in file.as_posix() and file.suffix == ".j2":
                return Path(str(file.locate())).resolve().parent
    except PackageNotFoundError:
        pass
    raise HostError("the templates are not installed", where=str(CLONE), remedy="install k25stack again")


def fill(name: str, /, **values: Any) -> str:
    """The text of a template.  An unknown variable is an error, not an empty text."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(directory()),
        undefined=StrictUndefined,
        bytecode_cache=_compiled(),
        optimized=False,  # each template is filled once
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        sh=shell,
        yaml=yaml_text,
        yamllist=yaml_list,
        source=json_text,
        directive=directive,
        comment=comment,
        python=ascii,
    )
    return made


def _compiled() -> BytecodeCache:
    """Compiled templates where Python keeps its own compiled files: compiling takes longer than filling.

    None can be out of date.  jinja2 compares the hash of the source; everything else that decides the code (this file,
    the versions of jinja2 and Python) is in the file's name.  Where nothing can be written, nothing is kept.
    """
    from importlib.util import cache_from_source

    from jinja2 import FileSystemBytecodeCache, __version__

    class Kept(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                if not sys.dont_write_bytecode:
                    place.mkdir(parents=True, exist_ok=True)
                    super().dump_bytecode(bucket)

    place = Path(cache_from_source(__file__)).parent
    parts = (__version__.encode(), sys.version.encode(), Path(__file__).read_bytes())
    return Kept(str(place), f"%s.{hashlib.sha256(b'/'.join(parts)).hexdigest()[:16]}.jinja")


def shell(value: object) -> str:
    """One word of a shell.  Raises UsageError for a NUL, which no command line can hold."""
    text = str(value)
    if "\0" in text:
        raise UsageError("a NUL cannot be part of a command", where=text.replace("\0", "\\0")[:40])
    quoted = shlex.quote(text)
    return f"'{text}'" if quoted == text and "," in text else quoted


def json_text(value: object) -> str:
    """A quoted YAML text; variables of compose stay variables."""
    text = json.dumps(str(value), ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def yaml_text(value: object) -> str:
    """A quoted YAML text in which a ``$`` is a ``$``, not the beginning of a variable."""
    return json_text(value).replace("$", "$$")


def yaml_list(values: Sequence[object]) -> str:
    return "[" + ", ".join(yaml_text(value) for value in values) + "]"


def directive(value: object) -> str:
    """A value of ``#SBATCH``, which knows no quoting.  Raises UsageError for any other than plain characters."""
    text = str(value)
    if not PLAIN.fullmatch(text):
        raise UsageError(f"{text!r} cannot stand in a batch file's header", remedy="letters, digits and . _ - / : only")
    return text


def comment(value: object) -> str:
    """Text for a comment: one line of printable characters."""
    return "".join(sign if sign.isprintable() else " " for sign in str(value))

"""One POSIX shell script that reads every source at once and answers with length-prefixed sections.

It runs with dash, bash, and busybox's ash, locally or as the only command of an SSH session.  Everything runs in
parallel; what has not ended at the limit is killed and reported with exit code 124, even when it cannot be killed
(a program that waits for a dead card).  Sections arrive as::

    <boundary> <index> <exit code> <bytes>\\n<bytes of output>\\n

and the stream ends with ``<boundary> end``, so that a broken connection is told from a short answer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from k25stack.host.seen import Reading
from k25stack.host.sources import Source

LARGEST = 8 << 20  # bytes of one section
SUDO_FAILED = 96  # of the whole script: the password for sudo was refused
NO_ROOM = 97  # of the whole script: no place for temporary files

BODY = r"""
umask 077
LC_ALL=C LANG=C SYSTEMD_COLORS=0; export LC_ALL LANG SYSTEMD_COLORS
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/cuda/bin:/usr/local/nvidia/bin; export PATH
T=
for d in /dev/shm /run "${TMPDIR:-/tmp}" /var/tmp; do
  [ -d "$d" ] && [ -w "$d" ] && T=$(mktemp -d "$d/k25.XXXXXX" 2>/dev/null) && mkfifo "$T/done" 2>/dev/null && break
  [ -n "$T" ] && rm -rf "$T"
  T=
done
[ -n "$T" ] || exit 97
trap 'rm -rf "$T"' EXIT
trap 'exit 98' HUP INT TERM
exec 3<>"$T/done"
file() { [ -e "$1" ] || return 66; [ -r "$1" ] || return 77; cat "$1"; }
files() {
  for f in "$@"; do [ -f "$f" ] && { grep -H '' "$@" 2>/dev/null; return 0; }; done
  return 66
}
paths() { for f in "$@"; do { [ -e "$f" ] || [ -L "$f" ]; } && printf '%s\n' "$f"; done; return 0; }
command_() { cd / && "$@"; }
run() {
  i=$1; shift
  (
    ( "$@" ) </dev/null >"$T/$i" 2>"$T/$i.e" 3>&- & p=$!
    echo $p >"$T/$i.p"; wait $p; echo $? >"$T/$i.r"; echo "$i" >&3
  ) 2>/dev/null &
}
answer() {
  r=124
  [ -e "$T/$1.r" ] && [ ! -e "$T/$1.late" ] && read -r r <"$T/$1.r"
  [ "$r" = 0 ] || cat "$T/$1.e" >>"$T/$1" 2>/dev/null
  s=$(wc -c <"$T/$1"); s=$((s))
  [ "$s" -le @LARGEST@ ] || { r=125; s=0; }
  printf '%s %s %s %s\n' @BOUNDARY@ "$1" "$r" "$s"
  head -c "$s" "$T/$1"
  echo
  : >"$T/$1.sent"
}
printf '%s begin %s\n' @BOUNDARY@ "$(id -u)"
( sleep @LIMIT@ & s=$!; trap 'kill $s; exit 0' TERM; wait $s; echo limit >&3 ) >/dev/null 2>&1 </dev/null &
watch=$!
n=@COUNT@
@JOBS@
while [ "$n" -gt 0 ]; do
  read -r i <&3 || break
  [ "$i" = limit ] && break
  answer "$i"
  n=$((n - 1))
done
kill "$watch" 2>/dev/null
i=0
while [ "$i" -lt @COUNT@ ]; do
  if [ ! -e "$T/$i.sent" ]; then
    [ -e "$T/$i.r" ] || : >"$T/$i.late"
    [ -e "$T/$i.p" ] && read -r p <"$T/$i.p" && kill -9 "$p" 2>/dev/null
    answer "$i"
  fi
  i=$((i + 1))
done
printf '%s end\n' @BOUNDARY@
"""

# With a password sudo reads it from its standard input, never from an argument.  Without root and sudo the body runs
# as the user, and what that user may not read is reported so.
LAUNCH = r"""
body=@BODY@
pw=@PASSWORD@
if [ "$(id -u)" = 0 ] || ! command -v sudo >/dev/null 2>&1; then sh -c "$body"
elif [ -n "$pw" ]; then
  printf '%s\n' "$pw" | sudo -S -p '' true 2>/dev/null || exit 96
  printf '%s\n' "$pw" | sudo -S -p '' sh -c "$body"
elif sudo -n true 2>/dev/null; then sudo -n sh -c "$body" </dev/null
else sh -c "$body" </dev/null
fi
"""


@dataclass(frozen=True)
class Answer:
    readings: tuple[Reading, ...]  # in the order of the sources
    root: bool


def build(sources: Sequence[Source], boundary: str, limit_s: int, password: str = "", become: bool = True) -> str:
    """The script.  ``boundary`` must not occur in any output: give a random one."""
    if not re.fullmatch(r"[A-Za-z0-9]{16,64}", boundary):
        raise ValueError("a boundary is 16 to 64 letters and digits")
    jobs = "\n".join(f"run {index} {_job(source)}" for index, source in enumerate(sources))
    body = BODY
    marks = {"LARGEST": LARGEST, "BOUNDARY": boundary, "LIMIT": limit_s, "COUNT": len(sources), "JOBS": jobs}
    for mark, value in marks.items():
        body = body.replace(f"@{mark}@", str(value))
    if not become:
        return body
    return LAUNCH.replace("@PASSWORD@", shlex.quote(password)).replace("@BODY@", shlex.quote(body))


def _job(source: Source) -> str:
    if source.kind == "command":
        return "command_ " + shlex.join(source.argv)
    if source.kind == "file":
        return "file " + shlex.quote(source.what)
    # A glob: everything but its stars is quoted.
    return f"{source.kind} " + "*".join(shlex.quote(part) if part else "" for part in source.what.split("*"))


def parse(stream: bytes, boundary: str, count: int) -> Answer:
    """The sections of a whole answer.  Raises ValueError that says how far it got."""
    mark = boundary.encode()
    opening = re.search(rb"(?:^|\n)" + mark + rb" begin (\d+)\n", stream)
    if opening is None:
        raise ValueError("the host answered something else")
    position = opening.end()
    found: dict[int, Reading] = {}
    head = re.compile(mark + rb" (\d+) (\d+) (\d+)\n")
    while section := head.match(stream, position):
        index, rc, size = (int(group) for group in section.groups())
        end = section.end() + size
        if end + 1 > len(stream) or index >= count:
            break
        found[index] = Reading(stream[section.end() : end].decode("utf-8", errors="replace"), rc)
        position = end + 1
    if not stream.startswith(mark + b" end", position) or len(found) != count:
        raise ValueError(f"the answer broke off after {len(found)} of {count} parts")
    return Answer(tuple(found[index] for index in range(count)), opening.group(1) == b"0")

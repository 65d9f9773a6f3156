"""Scripts as people keep them: the launch in them, what the script sets, and what only a shell could tell."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.engines.shell import Shell, find, split, statements
from k25stack.engines.sources import read_script
from k25stack.errors import UsageError

SGLANG, VLLM = "python3 -m sglang.launch_server", "vllm serve"


@pytest.mark.parametrize(
    ("script", "words", "env"),
    [
        (f"{VLLM} m \\\n  -tp 8 \\\n  --port 1 # here\n", "m -tp 8 --port 1", {}),
        (f"{SGLANG} --tp-size 8 `# ranks` \\\n  --port 1 > log 2>&1 &\nwait\n", "--tp-size 8 --port 1", {}),
        (f"export A=1 B='2 3'  # both\n{VLLM} m", "m", {"A": "1", "B": "2 3"}),
        (f"A=1; B=2 && export A\n{VLLM} m --port $B", "m --port 2", {"A": "1"}),
        (f"export A=1\nunset A\n{VLLM} m", "m", {}),
        (f"declare -x A=1\nB=2\n{VLLM} m", "m", {"A": "1"}),
        (f'args=(\n  --tp-size 8  # cards\n  --host "a b"\n)\nargs+=(--port 1)\n{SGLANG} "${{args[@]}}"',
         "--tp-size 8 --host 'a b' --port 1", {}),
        (f'ARGS="--tp-size 8 --port 1"\nRUN="{SGLANG}"\n$RUN $ARGS', "--tp-size 8 --port 1", {}),
        (f"P=${{PORT:-1}}\n{VLLM} m --port ${{P}}", "m --port 1", {}),
        (f"P=2\n{VLLM} m --port ${{PORT:-${{OTHER:-\"$P\"}}}}", "m --port 2", {}),
        (f"cat <<< word\nX=$((1<<4))\necho '<<A'\nexport A=1\n{VLLM} m", "m", {"A": "1"}),
        (f"source .venv/bin/activate\n{VLLM} m", "m", {}),
        (f'SPEC=\'{{"a": "b c"}}\'\n{VLLM} m -sc "$SPEC"', "m -sc '{\"a\": \"b c\"}'", {}),
        (f"{VLLM} m -sc '{{\n  \"a\": 1\n}}' --port 1", "m -sc '{\n  \"a\": 1\n}' --port 1", {}),
        (f"if [ -z \"$X\" ]; then\n  {VLLM} m --port 1\nfi", "m --port 1", {}),
        (f"start() {{ A=1 {VLLM} m; }}\nstart", "m", {"A": "1"}),
        (f"case $1 in\nup) {VLLM} m ;;\nesac", "m", {}),
        (f"( cd /x && exec numactl -N 0 {SGLANG} --port 1 ) |& tee log", "--port 1", {}),
        (f"ssh host <<'EOF'\ncd /x && {VLLM} m --port 1\nEOF\n", "m --port 1", {}),
        (f"cat <<EOF\nIt's not started yet.\nEOF\n{VLLM} m", "m", {}),
        (f"tmux new -d -s s 'A=1 {VLLM} m --port 1'", "m --port 1", {"A": "1"}),
        (f'bash -c "\n  # now\n  export A=1\n  {VLLM} m \\\n    -tp 8\n  echo done\n"', "m -tp 8", {"A": "1"}),
        (f"echo 'start: {VLLM} x'\npkill -f '{SGLANG}'\n{VLLM} m", "m", {}),
        (f"{VLLM} m 2> err --port 1 >> out < /dev/null", "m --port 1", {}),
        (f"srun -n 1 {VLLM} m || exit 1", "m", {}),
        (f"A=1\r\n{VLLM} m \\\r\n --port $A\r\n", "m --port 1", {}),
    ],
)  # fmt: skip
def test_the_launch_of_a_script(script: str, words: str, env: dict[str, str]) -> None:
    command, unclear = read_script(script, "s.sh")
    assert command.words == shlex.split(words)
    assert command.env == env
    assert unclear == []


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"{VLLM} m --port $PORT", "not set in the script: $PORT"),
        (f'P="$X"\n{VLLM} m --port $P', "not set in the script: $X"),
        (f"{VLLM} $1", "not a plain word: $1"),
        (f'{VLLM} m "$@"', "not a plain word: $@"),
        (f"{VLLM} m --port ${{P%%x}}", "not a plain word: ${P%%x}"),
        (f"{VLLM} m --port $(cat port)", "the output of a command: $(cat port)"),
        (f"export A=`cat a`\n{VLLM} m", "A: the output of a command: `cat a`"),
        (f"{VLLM} m $'a\\'b'", "not a plain word: $'a\\'b'"),
        (f"{VLLM} m --port ${{PORT:-$P}}", "not set in the script: $P"),
        (f"set -a; . ./env\n{VLLM} m", "sets variables that the script does not show: . ./env"),
        (f"export $(cat env)\n{VLLM} m", "sets variables that the script does not show: export $(cat env)"),
        (f"{VLLM} m &\n{VLLM} n --port 2 &", "another launch, not taken: vllm serve n --port 2"),
        (f"{VLLM} m -tp 8 \\\n  # -dp 2 \\\n  --port 1\n",
         "--port 1: stands alone, since a comment ends the command before it"),
    ],
)  # fmt: skip
def test_what_only_a_shell_could_tell_is_named(script: str, told: str) -> None:
    assert read_script(script, "s.sh")[1] == [told]


def test_quotes_that_do_not_match_and_scripts_without_a_launch() -> None:
    for script in (f"{VLLM} 'm", "echo 'vllm serve m'", "docker ps", "", "'"):
        with pytest.raises(UsageError, match=r"s\.sh"):
            read_script(script, "s.sh")


def test_no_secret_of_a_script_is_told() -> None:
    key = "sk-abcdefghijkl"
    _, unclear = read_script(
        f"{VLLM} m --port $(curl -H 'Authorization: Bearer {key}' x)\n{VLLM} n --api-key {key}", "s"
    )
    assert len(unclear) == 2
    assert not any(key in one for one in unclear)


WORD = st.text("ab $\"'\\#;&|(){}<>=\n`-", max_size=8)


@given(st.lists(WORD.map(shlex.quote), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_quoted_words_come_back_as_a_shell_gives_them(words: list[str]) -> None:
    (statement,) = statements(" ".join(["echo", *words]))
    assert split(statement, Shell(), []) == shlex.split(" ".join(["echo", *words]))


@given(st.text("ab \"'\\#;&|(){}<>=\n`$-@*1", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read(text: str) -> None:
    find(text, lambda words: "a" in words)
    list(statements(text))


SETS = (
    "A=1", "B='2 3'", "export A=4", "A+=5", "L=(x 'y z' $A)", "L+=(w)", "# a 'quote without an end", "true && B=6",
    "if true; then\n A=7\nfi", "cat <<EOF >/dev/null\nit's $A\nEOF", 'export D="$A-$B"', "unset A; A=8",
    "unset A; A=${A:-16}", 'B="$A" ; A="$B$A"',
    "A=11 true", "true; true | cat", "case x in\n x) B=12 ;;\nesac", "[[ -n $A ]] && B=13",
    "declare -x A=14", "readonly R=1", 'A="${Z:-${Y:-15}}"', "B=${A:-'q r'}",
)  # fmt: skip
SHOWN = (
    "a", "'b c'", '"d e"', "$A", "${B}", '"$A"', '"${C:-x y}"', '"${C:-"x y"}"', "${C:-'x y'}", "${C:-$B}",
    '"${C:-$B}"', '"${C:-}"', "${C:-}", "f\\ g", "h#i", "'j#k'", '"l\'m"', "\\\n", "--y=$A", '--z="$B q"', '{"k":1}',
    "'{\"k\": [1]}'", "1>/dev/null", "2>&1", "<<<w", "${A}n", "$A$B", '""', "''", "\"$A\"'$B'\"c\"", "`# note`",
    "${L[@]}", '"${L[@]}"', '"${L[*]}"', '"p${L[@]}q"', "a=b",
)  # fmt: skip


@given(st.lists(st.sampled_from(SETS), max_size=4), st.lists(st.sampled_from(SHOWN), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_words_are_those_that_bash_makes(sets: list[str], shown: list[str]) -> None:
    script = "\n".join(["A=0 B=0", "L=(l)", *sets, " ".join(["show", *shown])])
    shows = 'exec 9>&1\nshow() { for one in "$@"; do printf \'%s\\0\' "$one" >&9; done; }\n'
    done = subprocess.run(["bash", "-c", shows + script], capture_output=True, text=True, check=True)
    found = find(script, lambda words: words[:1] == ["show"])
    assert found is not None
    assert (found.words[1:], found.unclear) == (done.stdout.split("\0")[:-1], [])


def test_the_words_are_plain_json_where_the_script_has_json() -> None:
    command, _ = read_script(f'S=\'{{"method":"eagle3"}}\'\n{VLLM} m --speculative-config="$S"', "s.sh")
    assert json.loads(command.words[1].partition("=")[2]) == {"method": "eagle3"}


@pytest.mark.parametrize(
    "script",
    ["cat <<A\n" * 3000, "cat <<< a\n" * 3000, "".join(f"cat <<A{n}\n" for n in range(2000)), "A=$A$A\n" * 60,
     "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60, "# a\n" * 100_000],
    ids=["heredocs", "herestrings", "marks", "doubled", "doubled list", "comments"],
)  # fmt: skip
def test_no_script_fills_the_memory_or_the_stack(script: str) -> None:
    """60 lines of ``A=$A$A`` are 2^60 characters; 1,000 here-documents without an end were a traceback."""
    command, _ = read_script(f"A=1\n{script}\n{VLLM} m", "s.sh")
    assert command.words == ["m"]

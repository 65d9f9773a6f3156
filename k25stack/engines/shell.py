"""Shell scripts taken apart: simple commands, their words, the variables set before them (standard library only).

Understood are quotes, line continuations, comments (also ``\\`# ...\\```), here-documents, arrays, defaults
(``${A:-b}``) and ``export A=b``; redirections are left out.  Nothing is run: what only a shell could tell (output of
commands, the script's own arguments) stays as it is written and is named.  Branches, functions and subshells are not
followed: whatever is assigned above the launch counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HEREDOC = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
NESTED = 8  # here-documents inside of one another that are looked into
RESERVED = re.compile(r"(?:\{|\}|!|then|do|else|if|elif|while|until|time)(?:\s+|$)")
ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
DECLARES = ("export", "readonly", "local", "declare", "typeset")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(\[[@*]\])|:?[-=]((?:\$\{[^{}]{0,999}+\}|[^}]){0,999}+))?\}|([A-Za-z_]\w*))")
GROWN = 2 << 20  # characters that variables may put in, in all (Linux takes no longer command): A=$A$A doubles
REDIRECTION = re.compile(r"[<>][<>&|-]*")
OPEN_QUOTE = "a quote without its end"
ONLY_A_SHELL = re.compile(r"\$(?:\{[^}]*\}|[@*#?!$\d-]|'(?:[^'\\]|\\.)*+')", re.DOTALL)
ELSEWHERE = re.compile(r"(?:source|\.)\s+(?!\S*(?:activate|bashrc|profile|conda\.sh)\b)", re.DOTALL)  # sets variables


@dataclass
class Shell:
    """What a script has set so far."""

    variables: dict[str, list[str]] = field(default_factory=dict)  # one text, or the words of an array
    exported: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, list[str]] = field(default_factory=dict)  # of a variable: what of its value is not known
    elsewhere: list[str] = field(default_factory=list)  # commands that set variables which the script does not show
    grown: int = 0  # characters that variables put in


@dataclass(frozen=True)
class Found:
    """The first command of a script that was looked for."""

    words: list[str]
    exported: dict[str, str]
    unclear: list[str]  # what of it, and of its environment, is not known
    others: list[str]  # further such commands

    @property
    def broken(self) -> bool:
        """Its quotes do not match."""
        return any(one.startswith(OPEN_QUOTE) for one in self.unclear)


def find(text: str, wanted: Callable[[list[str]], bool]) -> Found | None:
    """The first command whose words are ``wanted``, with what the script exports before it; None when there is none."""
    shell, first = Shell(), None
    others: list[str] = []
    for statement in statements(text):
        unclear: list[str] = []
        words = split(statement, shell, unclear)
        if first is not None and words and words[0].startswith("-"):
            first.unclear.append(f"{' '.join(words)[:80]}: stands alone, since a comment ends the command before it")
        elif wanted(words):
            if first is None:
                plain = {name: value for name, value in shell.exported.items() if name not in shell.doubts}
                dark = [f"{name}: {why}" for name in shell.exported if name not in plain for why in shell.doubts[name]]
                dark = [one for one in dark if not one.startswith("PATH:")]
                first = Found(words, plain, [*unclear, *dark, *shell.elsewhere], others)
            else:
                others.append(" ".join(words))
        else:
            remember(statement, words, shell, unclear)
    return first


def statements(text: str, inside: int = 0) -> Iterator[str]:
    """Simple commands as they stand, comments left out; a list in parentheses is one word of its assignment."""
    text = text.replace("\r\n", "\n")
    piece: list[str] = []
    at, quote, depth, pending = 0, "", 0, []
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        if char == "\\" and quote != "'" and following:
            piece.append((" " if not quote else "") if following == "\n" else char + following)
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (not piece or piece[-1][-1:] in ("", " ", "\t", "\n", "(")):
            end = text.find("\n", at)
            at = end if end >= 0 else len(text)
            continue
        elif text.startswith("`#", at) or text.startswith(("$(", "`"), at):
            end = closing(text, at)
            piece.append("" if text.startswith("`#", at) else text[at:end])
            at = end
            continue
        elif char == "(" and "".join(piece[-1:]) == "=":
            depth += 1
        elif char == ")" and depth:
            depth -= 1
        elif char in "\n;|()" or (char == "&" and following != ">" and "".join(piece[-1:]) != ">"):
            if depth and char == "\n":
                piece.append(" ")
                at += 1
                continue
            pending += HEREDOC.findall("".join(piece)) if inside < NESTED else []
            yield from finished(piece)
            piece, at = [], at + 1
            if char == "\n":
                for _, mark in pending:
                    body, at = heredoc(text, at, mark)
                    yield from statements(body, inside + 1)
                pending = []
            continue
        piece.append(char)
        at += 1
    yield from finished(piece)


def finished(piece: list[str]) -> Iterator[str]:
    statement = "".join(piece).strip()
    while found := RESERVED.match(statement):
        statement = statement[found.end() :]
    if statement:
        yield statement


def closing(text: str, at: int) -> int:
    """Where the output of a command that begins at ``at`` ends."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return end + 1 if end > 0 else len(text)
    depth = 0
    for place in range(at + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    return len(text)


def heredoc(text: str, at: int, mark: str) -> tuple[str, int]:
    """(the text of a here-document that begins at ``at``, the place behind its mark)."""
    found = re.compile(rf"^\t*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(text, at)
    return (text[at : found.start()], found.end()) if found else ("", at)  # no mark: 1<<4, or a text in quotes


def remember(statement: str, words: list[str], shell: Shell, unclear: list[str]) -> None:
    """What a command that is no launch sets."""
    declares = bool(words) and words[0] in DECLARES
    if ELSEWHERE.match(statement) or (words[:1] == ["export"] and unclear and not any("=" in one for one in words)):
        shell.elsewhere.append(f"sets variables that the script does not show: {statement[:80]}")
    if array := re.fullmatch(r"(?:\w+\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)", statement, re.DOTALL):
        name, adds, inner = array.groups()
        before = shell.variables.get(name, []) if adds else []
        shell.variables[name] = [*before, *split(inner, shell, unclear)]
        shell.doubts.pop(name, None) if not unclear and not adds else shell.doubts.setdefault(name, []).extend(unclear)
        return
    if words[:1] == ["unset"]:
        for name in words[1:]:
            shell.exported.pop(name, None)
            shell.variables.pop(name, None)
    found = [(word, ASSIGN.fullmatch(word)) for word in words[declares:] if not (declares and word.startswith("-"))]
    if not declares and not all(match for _, match in found):
        return
    exports = declares and (words[0] == "export" or "-x" in words)
    for word, match in found:
        if match is None:
            if exports and word in shell.variables:
                shell.exported[word] = " ".join(shell.variables[word])
            continue
        name, adds, value = match.groups()
        shell.variables[name] = ["".join(shell.variables.get(name, [""])[:1]) + value if adds else value]
        shell.doubts.pop(name, None)
        if unclear:
            shell.doubts[name] = list(unclear)
        if exports or name in shell.exported:
            shell.exported[name] = shell.variables[name][0]


@dataclass
class Words:
    """The words of a command while it is read."""

    ended: list[str] = field(default_factory=list)
    word: str = ""
    begun: bool = False  # an empty word in quotes is one too
    drop: bool = False  # the word is where a redirection goes to

    def add(self, text: str) -> None:
        self.word, self.begun = self.word + text, True

    def end(self) -> None:
        if self.begun and not self.drop:
            self.ended.append(self.word)
        self.drop = self.drop and not self.begun
        self.word, self.begun = "", False

    def redirect(self) -> None:
        """The word so far stands alone, unless it is the number of what is redirected."""
        if not re.fullmatch(r"\d|&", self.word):
            self.end()
        self.word, self.begun, self.drop = "", False, True


def split(statement: str, shell: Shell, unclear: list[str]) -> list[str]:
    """The words of one command: quotes removed, variables put in, redirections left out."""
    words = Words()
    at, quote = 0, ""
    while at < len(statement):
        char, following = statement[at], statement[at + 1 : at + 2]
        stop = at + 1
        if char == "\\" and quote != "'" and following:
            words.add(following if not quote or following in '"\\$`' else char + following)
            stop = at + 2
        elif char in "'\"" and quote in ("", char):
            quote = "" if quote else char
            words.add("")
        elif quote == "'":
            words.add(char)
        elif statement.startswith(("$(", "`"), at):
            stop = closing(statement, at)
            unclear.append(f"the output of a command: {statement[at:stop][:80]}")
            words.add(statement[at:stop])
        elif given := VARIABLE.match(statement, at):
            stop = given.end()
            for place, one in enumerate(value(given, shell, unclear, quoted=bool(quote))):
                if place:
                    words.end()
                words.add(one)
        elif dark := ONLY_A_SHELL.match(statement, at):
            unclear.append(f"not a plain word: {dark.group(0)}")
            words.add(dark.group(0))
            stop = dark.end()
        elif not quote and char.isspace():
            words.end()
        elif not quote and (arrow := REDIRECTION.match(statement, at)):
            words.redirect()
            stop = arrow.end()
        else:
            words.add(char)
        at = stop
    if quote:
        unclear.append(f"{OPEN_QUOTE}: {' '.join(statement.split())[:80]}")
    words.end()
    return words.ended


def value(given: re.Match[str], shell: Shell, unclear: list[str], quoted: bool) -> list[str]:
    """The words that a variable stands for; itself, and a word about it, where the script does not say."""
    name, default = given.group(1) or given.group(4), given.group(3)
    if name in shell.variables:
        found = shell.variables[name]
        shell.grown += sum(map(len, found)) + len(found)
        if shell.grown > GROWN:
            unclear.append(f"longer than any command may be: {given.group(0)}")
            return [given.group(0)]
        unclear.extend(doubt for doubt in shell.doubts.get(name, []) if doubt not in unclear)
    elif default is not None:
        found = split(f'"{default}"' if quoted else default, shell, unclear)
        return [" ".join(found)] if quoted else found
    else:
        unclear.append(f"not a plain word: {given.group(0)}" if name.isdigit() else f"not set in the script: ${name}")
        return [given.group(0)]
    if quoted and given.group(2) == "[@]":
        return found
    return [" ".join(found)] if quoted else " ".join(found).split()

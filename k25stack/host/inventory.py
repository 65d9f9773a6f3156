"""Hosts of an Ansible inventory: a file in INI or YAML form, with group_vars and host_vars beside it.

This reads what says where a host is and how to log in.  It is no Ansible: templates and vaults are not opened, plugins
and scripts are not run.  A fault of one host is that host's alone; the others go on.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack.errors import HostError, UsageError
from k25stack.host.collect import Target

MOST_HOSTS = 1000
LOGIN = (
    "ansible_host",
    "ansible_port",
    "ansible_user",
    "ansible_connection",
    "ansible_ssh_private_key_file",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_host",
    "ansible_ssh_port",
    "ansible_ssh_user",
    "ansible_ssh_pass",
    "ansible_password",
    "ansible_become",
    "ansible_become_user",
    "ansible_become_method",
    "ansible_become_password",
    "ansible_become_pass",
    "ansible_python_interpreter",
    "ansible_ssh_pipelining",
    "ansible_ssh_args",
    "ansible_shell_type",
    "ansible_sudo_pass",
    "ansible_ssh_executable",
    "ansible_ssh_transfer_method",
    "ansible_remote_tmp",
    "ansible_ssh_retries",
    "ansible_private_key_file",
)
PROFILE = "k25stack_profile"
FAULT = "a fault of the line"  # no variable can have this name


@dataclass
class Group:
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    vars: dict[str, Any] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)


def read_inventory(path: Path, opened: bool = False) -> list[Target | HostError]:
    """One entry per host, in order: where it is, or what is wrong with its lines.  Raises UsageError for the file.

    ``opened``: somebody else opens templates and vaults, so they are no fault; what they hold is left empty here.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="give an inventory file"
        ) from None
    except UnicodeDecodeError:
        raise UsageError("no text file", where=str(path), remedy="give an inventory in INI or YAML form") from None
    groups = _yaml(text, path) if path.suffix in (".yml", ".yaml") else _ini(text, path)
    names = list(dict.fromkeys(name for group in groups.values() for name in group.hosts))
    if not names:
        raise UsageError("no host in it", where=str(path), remedy="write one host a line")
    if len(names) > MOST_HOSTS:
        raise UsageError(f"{len(names)} hosts", where=str(path), remedy=f"at most {MOST_HOSTS} at a time")
    return [_target(name, groups, path, opened) for name in names]


def without_faults(text: str) -> str:
    """An INI inventory whose host lines all parse: those with a word that is no name=value become comments."""
    found, hosts = [], True
    for line in text.splitlines():
        words = line.split()
        if line.strip().startswith("["):
            hosts = ":" not in line.partition("]")[0]
        elif hosts and words and words[0][0] not in "#;" and _faulty(line):
            line = f"# {line}"
        found.append(line)
    return "\n".join(found) + "\n"


def _faulty(line: str) -> bool:
    content = Group()
    _host_line(line.strip(), content, "")
    return any(FAULT in variables for variables in content.hosts.values())


def _target(name: str, groups: dict[str, Group], path: Path, opened: bool) -> Target | HostError:
    try:
        return _login(name, _variables(name, groups, path), opened)
    except HostError as error:
        return error


def _variables(name: str, groups: dict[str, Group], path: Path) -> dict[str, Any]:
    """Variables of a host: of all, of its groups (the nearer ones win), of its files, of its own line."""
    merged: dict[str, Any] = {}
    for group in _groups_of(name, groups):
        merged |= groups[group].vars if group in groups else {}
        merged |= _file_vars(path.parent / "group_vars", group)
    merged |= _file_vars(path.parent / "host_vars", name)
    for content in groups.values():
        merged |= content.hosts.get(name, {})
    return merged


def _groups_of(name: str, groups: dict[str, Group]) -> list[str]:
    """``all`` first, parents before children."""
    depth: dict[str, int] = {"all": 0}

    def visit(group: str, level: int) -> None:
        if level > 50:
            raise HostError(f"group {group} contains itself", where=name, remedy="mend the :children sections")
        depth[group] = max(depth.get(group, 0), level)
        for parent, other in groups.items():
            if group in other.children:
                visit(parent, level + 1)

    for group, content in groups.items():
        if name in content.hosts and group != "all":
            visit(group, 1)
    nearest = max(depth.values())
    return sorted(depth, key=lambda group: (0 if group == "all" else nearest + 1 - depth[group], group))


def _file_vars(directory: Path, name: str) -> dict[str, Any]:
    for path in (directory / name, directory / f"{name}.yml", directory / f"{name}.yaml"):
        if path.is_file():
            found = _load(path.read_text(encoding="utf-8", errors="replace"), path)
            return found if isinstance(found, dict) else {}
    return {}


def _login(name: str, found: dict[str, Any], opened: bool) -> Target:
    """Raises HostError that names the host and the variable."""
    if FAULT in found:
        raise HostError(found[FAULT], where=name, remedy="write name=value")
    for key in found:
        if (
            key.startswith("ansible_")
            and key not in LOGIN
            and (near := difflib.get_close_matches(key, LOGIN, n=1, cutoff=0.8))
        ):
            raise HostError(f"unknown variable {key}", where=name, remedy=f"did you mean {near[0]}?")

    def text(*keys: str) -> str:
        value = next((found[key] for key in keys if key in found), "")
        if isinstance(value, str) and ("{{" in value or value.startswith("$ANSIBLE_VAULT")):
            if opened:
                return ""
            raise HostError(
                f"{keys[0]} is a template or a vault, which is not opened here",
                where=name,
                remedy="give the value; a sudo password may also come as K25_BECOME_PASSWORD",
            )
        return str(value)

    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:%\[\]][0-9A-Fa-f:.%\[\]]*", name):
        raise HostError("this is no host name", where=name, remedy="mend the line; variables are written name=value")
    if text("ansible_connection") == "local":
        return Target(name, profile=text(PROFILE))
    port = text("ansible_port", "ansible_ssh_port")
    if port and (not port.isdigit() or not 0 < int(port) < 65536):
        raise HostError(f"ansible_port {port!r} is no port", where=name, remedy="write a number")
    user = text("ansible_user", "ansible_ssh_user")
    host = text("ansible_host", "ansible_ssh_host") or name
    options = [
        word for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args") for word in _words(text(key), key, name)
    ]
    become = text("ansible_become").lower() not in ("false", "no", "0")
    return Target(
        name,
        f"{user}@{host}" if user else host,
        int(port) if port else None,
        str(Path(key).expanduser())
        if (key := text("ansible_ssh_private_key_file", "ansible_private_key_file"))
        else "",
        tuple(options),
        become,
        text("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
        text(PROFILE),
    )


def _words(text: str, key: str, name: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise HostError(f"{key} has an open quote", where=name, remedy="close it") from None


def _ini(text: str, path: Path) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    group, kind = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        where = f"{path}:{number}"
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = re.fullmatch(r"\[([\w.-]+)(?::(\w+))?\](?:\s*[#;].*)?", line)
            if section is None:
                raise UsageError(
                    f"no section: {line}", where=where, remedy="write [group], [group:vars] or [group:children]"
                )
            group, kind = section.group(1), section.group(2) or "hosts"
            if kind not in ("hosts", "vars", "children"):
                near = difflib.get_close_matches(kind, ["vars", "children"], n=1)
                raise UsageError(
                    f"unknown kind of section {kind!r}", where=where, remedy=f"did you mean {(near or ['vars'])[0]}?"
                )
            groups.setdefault(group, Group())
            continue
        content = groups.setdefault(group, Group())
        if kind == "children":
            content.children.append(line.split()[0])
        elif kind == "vars":
            key, equals, value = line.partition("=")
            if not equals:
                raise UsageError(f"no name=value: {line}", where=where, remedy="write name=value")
            content.vars[key.strip()] = value.strip().strip("\"'")
        else:
            _host_line(line, content, where)
    if unknown := sorted({child for one in groups.values() for child in one.children} - groups.keys()):
        near = difflib.get_close_matches(unknown[0], list(groups), n=1)
        raise UsageError(
            f"no group {unknown[0]!r}", where=str(path), remedy=f"did you mean {near[0]}?" if near else "define it"
        )
    return groups


def _host_line(line: str, content: Group, where: str) -> None:
    """``gpu[01:20] ansible_host=... `` ; a word without "=" makes the host unusable, not the inventory."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    variables: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        variables[key] = value if equals else ""
        if not equals:
            variables[FAULT] = f"{where}: {word} is no name=value"
    for name in _expand(words[0]):
        content.hosts.setdefault(name, {}).update(variables)


def _expand(name: str) -> Iterator[str]:
    """``gpu[01:03]`` -> gpu01, gpu02, gpu03; letters too."""
    found = re.search(r"\[(\w+):(\w+)\]", name)
    if not found:
        yield name
        return
    first, last = found.group(1), found.group(2)
    if first.isdigit() and last.isdigit() and int(last) - int(first) < MOST_HOSTS:
        words = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha():
        words = [chr(code) for code in range(ord(first), ord(last) + 1)]
    else:
        yield name
        return
    for word in words:
        yield from _expand(name[: found.start()] + word + name[found.end() :])


def _load(text: str, path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Knows Ansible's tags well enough to keep a vault as one."""

    Loader.add_constructor("!vault", lambda loader, node: "$ANSIBLE_VAULT")
    Loader.add_constructor("!unsafe", lambda loader, node: str(node.value))
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(
            f"no YAML: {getattr(error, 'problem', None) or error}", where=where, remedy="mend the line"
        ) from None


def _yaml(text: str, path: Path) -> dict[str, Group]:
    found = _load(text, path)
    groups: dict[str, Group] = {}
    if not isinstance(found, dict):
        raise UsageError("no mapping of groups", where=str(path), remedy="begin with all:, then hosts: or children:")
    for name, content in found.items():
        _yaml_group(str(name), content, groups, str(path))
    return groups


def _yaml_group(name: str, content: Any, groups: dict[str, Group], where: str) -> None:
    group = groups.setdefault(name, Group())
    if content is None:
        return
    if not isinstance(content, dict):
        raise UsageError(f"group {name} is no mapping", where=where, remedy="write hosts:, vars: or children: below it")
    for key, value in content.items():
        if key not in ("hosts", "vars", "children"):
            near = difflib.get_close_matches(str(key), ["hosts", "vars", "children"], n=1)
            raise UsageError(
                f"group {name}: unknown key {key!r}", where=where, remedy=f"did you mean {(near or ['hosts'])[0]}?"
            )
        if value is None:
            continue
        if not isinstance(value, dict):
            raise UsageError(
                f"group {name}: {key} is no mapping", where=where, remedy="write one entry a line, each with a colon"
            )
        if key == "vars":
            group.vars |= value
        elif key == "children":
            for child, below in value.items():
                group.children.append(str(child))
                _yaml_group(str(child), below, groups, where)
        else:
            for pattern, variables in value.items():
                for host in _expand(str(pattern)):
                    group.hosts.setdefault(host, {}).update(variables if isinstance(variables, dict) else {})

"""Text to token ids and back, and the target's chat template, without transformers.

The template is rendered as the engines do it: Jinja2 in a sandbox, ``trim_blocks`` and ``lstrip_blocks`` on, the loop
control extension, ``raise_exception``, ``strftime_now`` and a ``tojson`` that does not escape HTML (transformers,
"Writing a chat template").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, UsageError
from k25stack.files import read_json, sha256_text

Message = Mapping[str, Any]


class Tokenizer:
    """The tokenizer and chat template of one model directory."""

    def __init__(self, backend: Any, template: str, special: dict[str, str], eos_ids: tuple[int, ...]) -> None:
        self._backend = backend
        self._template_text = template
        self._template: Any = None
        self.special = special  # bos_token, eos_token, ... as the template sees them
        self.eos_ids = eos_ids

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Raises UsageError naming the files that are missing, DamageError for one that cannot be read."""
        from tokenizers import Tokenizer as Backend

        missing = missing_files(directory)
        if missing:
            what = f"target without tokenizer: {', '.join(missing)} missing"
            raise UsageError(what, where=str(directory), remedy="add the tokenizer files of the model")
        try:
            backend = Backend.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the binding raises plain Exception for a file it cannot parse
            raise DamageError(f"not a tokenizer: {error}", where=str(directory / "tokenizer.json")) from None
        # Lengths are counted by this project, never cut or padded in silence.
        backend.no_truncation()
        backend.no_padding()
        config = _json(directory / "tokenizer_config.json")
        special = {k: _content(v) for k, v in config.items() if k.endswith("_token") and isinstance(v, (str, dict))}
        eos_ids = _eos_ids(directory, backend, special)
        if not eos_ids:
            remedy = "add eos_token_id to generation_config.json"
            raise UsageError("no end-of-sequence token is known", where=str(directory), remedy=remedy)
        return cls(backend, _template(directory, config), special, eos_ids)

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def template_hash(self) -> str:
        """Hex sha256 of the chat template's text: samples made with another one are not comparable."""
        return sha256_text(self._template_text)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; nothing is added, special tokens spelt out in the text become their ids."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(e.ids) for e in self._backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are no whole character yet become the replacement character."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def token_id(self, text: str) -> int | None:
        """The id of one token's exact spelling, or None."""
        found = self._backend.token_to_id(text)
        return None if found is None else int(found)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_args: Any,
    ) -> str:
        """The conversation as the model sees it.

        Raises UsageError when there is no template, there are no messages, or the template refuses them.
        """
        from jinja2 import TemplateError

        if not self._template_text:
            raise UsageError("the target has no chat template", remedy="add chat_template.jinja to its directory")
        if not messages:
            raise UsageError("no messages", remedy="give at least one")
        try:
            if self._template is None:
                self._template = _environment().from_string(self._template_text)
            text: str = self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                **{**self.special, **template_args},
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise UsageError(f"the chat template refuses these messages: {error}") from None
        return text

    def ids_of_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **template_args: Any
    ) -> list[int]:
        """Token ids of :meth:`render_chat`; the template writes every special token itself."""
        return self.encode(self.render_chat(messages, add_generation_prompt=add_generation_prompt, **template_args))


def missing_files(directory: Path) -> list[str]:
    """Names of the tokenizer files that a usable target must have and this directory has not."""
    return [name for name in ("tokenizer.json", "tokenizer_config.json") if not (directory / name).is_file()]


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _template(directory: Path, config: dict[str, Any]) -> str:
    """The template's text: its own file first, then tokenizer_config.json; empty when there is none."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template") or ""
    if isinstance(found, list):  # several named templates: the one called default
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), "")
    return str(found)


def _eos_ids(directory: Path, backend: Any, special: dict[str, str]) -> tuple[int, ...]:
    """Every id that ends a response, in the order of generation_config.json, config.json, the tokenizer."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        value = _json(path).get("eos_token_id") if path.is_file() else None
        found += value if isinstance(value, list) else [] if value is None else [value]
    spelt = backend.token_to_id(special.get("eos_token", ""))
    found += [] if spelt is None else [spelt]
    return tuple(dict.fromkeys(int(token) for token in found))


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token.get("content", ""))


def _json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except ValueError as error:
        raise DamageError(f"not JSON: {error}", where=str(path), remedy="restore the file") from None
    if not isinstance(value, dict):
        raise DamageError("not a JSON object", where=str(path), remedy="restore the file")
    return value

"""The light tokenizer says exactly what transformers says, and names what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k25stack.errors import DamageError, UsageError
from k25stack.model.tokenizer import Tokenizer

CONTENT = st.text(max_size=30) | st.sampled_from(
    ["<|im_end|>", "  two  spaces\n\n", "12345 67", "你好", "{{ x }}", "a\r\nb"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT}),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def theirs(tiny_target_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_target_dir)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, prompt=st.booleans())
def test_chat_ids_equal_transformers(
    tiny_target_dir: Path, theirs: Any, messages: list[dict[str, str]], prompt: bool
) -> None:
    ours = Tokenizer.load(tiny_target_dir)
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert ours.render_chat(messages, add_generation_prompt=prompt) == expected
    ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
    assert ours.ids_of_chat(messages, add_generation_prompt=prompt) == ids
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


TOOLS_TEMPLATE = """{%- if tools %}
    {{- tools | tojson }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 8 %}{{ raise_exception('too many') }}{% endif %}
    {{- bos_token + message['content'] | trim }}
{%- endfor %}
{%- if thinking %}<think>{% endif %}
"""


def test_tools_loop_controls_and_arguments_as_in_transformers(tmp_path: Path, tiny_target_dir: Path) -> None:
    from transformers import AutoTokenizer

    directory = tmp_path / "target"
    shutil.copytree(tiny_target_dir, directory)
    (directory / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    messages = [{"role": r, "content": f" {r} <&> é "} for r in ("system", "user", "assistant")]
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>'\"", "parameters": {}}}]
    ours, theirs = Tokenizer.load(directory), AutoTokenizer.from_pretrained(directory)
    expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False, thinking=True)
    assert ours.render_chat(messages, add_generation_prompt=False, tools=tools, thinking=True) == expected
    with pytest.raises(UsageError, match="too many"):
        ours.render_chat(messages * 4)
    assert ours.template_hash != Tokenizer.load(tiny_target_dir).template_hash


def test_encode_batch_is_encode(tiny_target_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_target_dir)
    texts = ["", "one", "two <|im_end|> three"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.token_id("<|im_end|>") == 2
    assert tokenizer.token_id("nowhere") is None
    assert tokenizer.size == 512


@pytest.mark.parametrize(
    ("generation", "expected"), [({"eos_token_id": [5, 2]}, (5, 2)), ({"eos_token_id": 7}, (7, 2)), ({}, (2,))]
)
def test_every_end_of_sequence_token_counts(
    tmp_path: Path, tiny_target_dir: Path, generation: dict[str, Any], expected: tuple[int, ...]
) -> None:
    directory = tmp_path / "target"
    shutil.copytree(tiny_target_dir, directory)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    assert Tokenizer.load(directory).eos_ids == expected


def test_a_template_cannot_reach_python(tmp_path: Path, tiny_target_dir: Path) -> None:
    directory = tmp_path / "target"
    shutil.copytree(tiny_target_dir, directory)
    (directory / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UsageError, match="refuses"):
        Tokenizer.load(directory).render_chat([{"role": "user", "content": "x"}])


def test_missing_and_broken_files_are_named(tmp_path: Path, tiny_target_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"target without tokenizer: tokenizer\.json, tokenizer_config\.json missing"):
        Tokenizer.load(tmp_path)
    directory = tmp_path / "target"
    shutil.copytree(tiny_target_dir, directory)
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(DamageError, match=r"tokenizer_config\.json: not JSON"):
        Tokenizer.load(directory)
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UsageError, match="no chat template"):
        Tokenizer.load(directory).render_chat([{"role": "user", "content": "x"}])
    with pytest.raises(UsageError, match="no messages"):
        Tokenizer.load(tiny_target_dir).render_chat([])
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(DamageError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(directory)


def test_neither_transformers_nor_torch_is_imported(tiny_target_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from k25stack.model.tokenizer import Tokenizer;"
        "Tokenizer.load(Path(sys.argv[1])).ids_of_chat([{'role': 'user', 'content': 'x'}]);"
        "sys.exit(sorted({'transformers', 'torch', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_target_dir)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() in ("", "[]")

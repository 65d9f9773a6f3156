"""Foreign input of every kind that a check reads: whatever is in it, a finding or one line, never a traceback."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_cases import kimi_case, write_case

from k25stack import engines
from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict
from k25stack.contract.probe import read
from k25stack.contract.states import check_states
from k25stack.draft.inspect import inspect_draft
from k25stack.engines.info import facts_of
from k25stack.errors import K25Error
from k25stack.model.tensorfile import read_header

WEIRD: list[Any] = [None, True, 0, -1, 1.5, math.nan, math.inf, 10**30, "", "x", "7168", [], [None], ["2", "6"],
                    [2.0, 30], [[2]], {}, {"a": 1}, "\ud800"]  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000
FILES = {"nothing": "", "a list": "[]", "null": "null", "deep": DEEP, "NaN": '{"hidden_size": NaN}', "cut": '{"a": ',
         "no text": b"\xff\xfe\x00", "a byte order mark": "\ufeff{}"}  # fmt: skip
ALL = ("reference", "sglang@0.5.9", "sglang@0.5.23", "vllm@0.31.0", "vllm@0.33.0")


def put(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_case(tmp_path / "draft", kimi_case())


def judged(draft: Path) -> Verdict:
    """The verdict; whatever else happens than a K25Error fails the test."""
    result = check_draft(draft, ALL, Question())
    json.dumps(result.as_dict(), allow_nan=False)
    return result.verdict


def test_configs_and_records_of_any_content(draft: Path) -> None:
    before = judged(draft)
    for name in ("config.json", "k25stack.json"):
        good = (draft / name).read_bytes()
        values = json.loads(good)
        texts = [*FILES.values(), *(json.dumps({**values, key: one}) for key in values for one in WEIRD[::2])]
        for text in texts:
            put(draft / name, text)
            judged(draft)
            if text in FILES.values() and name == "config.json":
                assert judged(draft) is Verdict.FAIL, text[:40]
        put(draft / name, good)
    assert judged(draft) is before


def headers(data: bytes) -> Iterator[bytes]:
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = next(name for name in header if name != "__metadata__")
    wrong: list[Any] = [{**header, name: {**header[name], key: one}} for key in header[name] for one in WEIRD]
    wrong += [{**header, "__metadata__": one} for one in WEIRD if one != {}]
    for text in (*(json.dumps(one) for one in wrong), DEEP, "[]", "null", '{"a": NaN}'):
        raw = text.encode("utf-8", "surrogatepass")
        yield len(raw).to_bytes(8, "little") + raw + body


def test_weights_of_any_header(draft: Path) -> None:
    path = draft / "model.safetensors"
    for data in headers(path.read_bytes()):
        put(path, data)
        assert judged(draft) is Verdict.FAIL
        with pytest.raises(K25Error):
            read_header(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "k25stack.json"])
def test_what_is_no_file(draft: Path, name: str) -> None:
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/dev/zero")):
        path = draft / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        make(path)
        judged(draft)
        if name != "k25stack.json":
            with pytest.raises((K25Error, OSError)):
                inspect_draft(draft)


RECORD = {"file": "shards/a.safetensors", "sha256": "0" * 64, "bytes": 1, "tokens": 1, "response_tokens": 1, "docs": 1,
          "split": "train", "key": "k"}  # fmt: skip
META = {"engine": "e", "engine_version": "1", "layers": [2, 3, 5], "hidden": 8, "template_hash": "t",
        "target_revision": "r", "dtype": "bfloat16", "last_norm": "post", "tp": 1, "decode": {}}  # fmt: skip


def test_manifests_of_any_content(tmp_path: Path) -> None:
    manifest = {"schema": 1, "meta": META, "shards": [RECORD]}
    texts: list[str | bytes] = list(FILES.values())
    texts += [json.dumps({**manifest, "shards": [{**RECORD, key: one}]}) for key in RECORD for one in WEIRD]
    texts += [json.dumps({**manifest, "meta": {**META, key: one}}) for key in META for one in WEIRD]
    texts += [json.dumps({**manifest, key: one}) for key in manifest for one in WEIRD]
    for name in ("../../etc/passwd", "/etc/passwd", "a\0b", "."):
        texts.append(json.dumps({**manifest, "shards": [{**RECORD, "file": name}]}))
    for text in texts:
        put(tmp_path / "manifest.json", text)
        try:
            result = check_states(tmp_path)
        except K25Error as error:
            assert "\n" not in str(error)
        else:
            json.dumps(result.as_dict(), allow_nan=False)
            assert result.verdict is Verdict.FAIL  # the shard is not there


REPLY: dict[str, Any] = {
    "choices": [{"text": "a", "message": {"content": "a"}, "token_ids": [1], "finish_reason": "stop"}],
    "usage": {"completion_tokens": 12},
    "meta_info": {"spec_verify_ct": 8, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 24,
                  "spec_correct_drafts_histogram": [5, 3], "completion_tokens": 12},
}  # fmt: skip


def replies() -> Iterator[dict[str, Any]]:
    for one in WEIRD:
        for key in REPLY:
            yield {**REPLY, key: one}
        yield {**REPLY, "choices": [one]}
        yield {"sglext": one}
        yield {"sglext": {"spec_tokens_details": one}}
        for key in REPLY["choices"][0]:
            yield {**REPLY, "choices": [{**REPLY["choices"][0], key: one}]}
        for key in REPLY["meta_info"]:
            yield {**REPLY, "meta_info": {**REPLY["meta_info"], key: one}}


def test_replies_of_any_shape() -> None:
    assert read(REPLY)[0] == {"text": "a", "token_ids": (1,), "finish_reason": "stop"}
    for reply in replies():
        with contextlib.suppress(ValueError):
            read(reply)
        with contextlib.suppress(K25Error):  # counters that contradict each other
            engines.get("sglang").request_counters(reply)


def test_what_a_server_says_of_itself() -> None:
    known = {"version": "0.5.20", "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}
    for key in known:
        for one in WEIRD:
            facts = facts_of("sglang", {**known, key: one})
            json.dumps(facts.raw, allow_nan=False)

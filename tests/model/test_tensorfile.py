"""The container: read by the safetensors library, deterministic, and every lie in a header is caught."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from k25stack.errors import DamageError
from k25stack.model.tensorfile import Part, read_header, write_tensors

TYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "F16": np.float16}
SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(sorted(TYPES)), SHAPES), max_size=5
)
METADATA = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3)


@settings(max_examples=60, deadline=None)
@given(tensors=TENSORS, metadata=METADATA, seed=st.integers(0, 99))
def test_what_is_written_is_read_by_the_library(
    tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str], seed: int
) -> None:
    tensors.pop("__metadata__", None)
    random = np.random.default_rng(seed)
    arrays = {n: random.integers(0, 99, s).astype(TYPES[t]) for n, (t, s) in tensors.items()}
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    parts = [
        Part(n, tensors[n][0], arrays[n].shape, [memoryview(row) for row in arrays[n].reshape(-1)[:, None]])
        for n in order
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.safetensors"
        written = write_tensors(path, parts, metadata)
        raw = path.read_bytes()
        assert (written.bytes, written.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())
        header = read_header(path)
        assert header.metadata == metadata
        assert {n: (i.dtype, i.shape) for n, i in header.tensors.items()} == tensors
        read = load_file(path)
        assert all(np.array_equal(read[name], array) for name, array in arrays.items())
        assert all(info.begin % read[name].dtype.itemsize == 0 for name, info in header.tensors.items())
        backwards = dict(reversed(metadata.items()))
        assert write_tensors(path, parts, backwards).sha256 == written.sha256


def small(path: Path) -> bytes:
    data = np.arange(6, dtype=np.float32)
    write_tensors(path, [Part("a", "F32", (2, 2), [data[:4]]), Part("b", "U8", (8,), [data[4:]])], {"k": "v"})
    return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=200), keep=st.integers(0, 300), place=st.integers(0, 300))
@example(raw=b"", keep=0, place=0)
def test_no_input_gives_anything_but_a_header_or_one_error(raw: bytes, keep: int, place: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.safetensors"
        whole = small(path)
        path.write_bytes(whole[:keep][:place] + raw + whole[:keep][place + len(raw) :])
        try:
            read_header(path)
        except DamageError as error:
            assert "\n" not in str(error)


def changed(**entry: object) -> dict[str, dict[str, object]]:
    header: dict[str, dict[str, object]] = {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]},
    }
    header["a"].update(entry)
    return header


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (changed(shape=[2, 3]), r"a says F32 \[2, 3\] but spans 16 bytes"),
        (changed(dtype="F99"), "a has the unknown type 'F99'"),
        (changed(shape=[-2, -2]), "sizes that are no counts"),
        (changed(shape=[1, 2], data_offsets=[0, 8]), "b starts at byte .*, not"),
        (changed(shape=[8], data_offsets=[0, 32]), "b starts at byte"),
        (changed(data_offsets=[0]), "wrong header"),
        ({**changed(), "c": {"dtype": "U8", "shape": [1], "data_offsets": [24, 25]}}, "truncated: .* the header needs"),
        ({"a": changed()["a"]}, "longer than its header says"),
        ({**changed(), "__metadata__": {"k": 1}}, "metadata that is not text"),
        ([], "wrong header"),
    ],
)
def test_a_lying_header_is_named(tmp_path: Path, header: object, message: str) -> None:
    path = tmp_path / "a.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    with pytest.raises(DamageError, match=message):
        read_header(path)


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = f'{{"a":{entry},"a":{entry}}}'.encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + b"x")
    with pytest.raises(DamageError, match="given twice"):
        read_header(tmp_path / "a")


def test_a_part_of_the_wrong_size_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a: 3 bytes given"):
        write_tensors(tmp_path / "a.safetensors", [Part("a", "U8", (4,), [b"abc"])], {})
    assert not list(tmp_path.iterdir())

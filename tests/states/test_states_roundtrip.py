"""What is written is what is read: exact for bf16, within the format's step for fp8."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_row import Row
from shard_rows import HIDDEN, document, meta, rows, write

from k25stack.errors import DamageError, UsageError
from k25stack.states.document import Document, from_fp8, to_fp8
from k25stack.states.manifest import Manifest, bytes_per_token, plan_shards
from k25stack.states.reader import open_states
from k25stack.states.writer import ShardWriter

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=8)


def equal(left: Document, right: Document) -> bool:
    names = ("token_ids", "loss_mask", "aux", "last", "argmax")
    same = all(torch.equal(getattr(left, name), getattr(right, name)) for name in names)
    return same and (left.name, left.domain) == (right.name, right.domain)


@settings(max_examples=25, deadline=None)
@given(train=LENGTHS, held_out=LENGTHS, room=st.integers(1, 60))
def test_bf16_is_exact_in_plan_order_and_by_random_access(
    train: list[tuple[int, int]], held_out: list[tuple[int, int]], room: int
) -> None:
    samples = [*rows(held_out, "held_out"), *rows(train)]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        write(out, samples, tokens_per_shard=room)
        states = open_states(out, check_hashes=True)
        assert [r.split for r in states.manifest.shards] == sorted(
            (r.split for r in states.manifest.shards), reverse=True
        )
        for split in ("train", "held_out"):
            wanted = [row for row in samples if row.split == split]
            refs = states.refs(split)
            assert [len(ref) for ref in refs] == [len(row.prompt_ids) + len(row.response_ids) for row in wanted]
            assert [ref.response_tokens for ref in refs] == [len(row.response_ids) for row in wanted]
            for ref, row in reversed(list(zip(refs, wanted, strict=True))):
                assert equal(states.load(ref), document(row))
        assert states.manifest.tokens == sum(len(doc) for doc in states.documents())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), exponent=st.integers(-12, 12), tokens=st.integers(1, 9))
def test_fp8_keeps_every_group_within_e4m3_error(seed: int, exponent: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([1.0, 30.0, 900.0]).repeat_interleave(HIDDEN) * 2.0**exponent
    states = (torch.randn(tokens, 3 * HIDDEN, generator=generator) * spread).to(torch.bfloat16)
    back = from_fp8(*to_fp8(states, 3)).float().reshape(tokens, 3, HIDDEN)
    exact = states.float().reshape(tokens, 3, HIDDEN)
    # Normal values keep 3 mantissa bits (half a step is 2**-4) and bf16 adds 2**-8; below the format's smallest
    # normal value the step is fixed: 2**-10 of scale, where scale is the group's largest value / 448.
    scale = exact.abs().amax(-1, keepdim=True) / 448
    assert ((back - exact).abs() <= exact.abs() * (2**-4 + 2**-8) + scale * 2**-10).all()


def test_fp8_of_a_zero_row_is_zero() -> None:
    values, scales = to_fp8(torch.zeros(2, 3 * HIDDEN, dtype=torch.bfloat16), 3)
    assert torch.equal(from_fp8(values, scales), torch.zeros(2, 3 * HIDDEN, dtype=torch.bfloat16))
    assert (scales > 0).all()


def test_fp8_shards_are_half_as_wide_and_read_back_as_bf16(tmp_path: Path, samples: list[Row]) -> None:
    write(tmp_path, samples, dtype="float8_e4m3fn")
    states = open_states(tmp_path, check_hashes=True)
    for ref, row in zip(states.refs("held_out"), samples[-2:], strict=True):
        read, exact = states.load(ref), document(row)
        assert read.aux.dtype == torch.bfloat16
        torch.testing.assert_close(read.aux, exact.aux, rtol=0.07, atol=float(exact.aux.abs().max()) * 2**-18)
        assert torch.equal(read.token_ids, exact.token_ids)
    assert bytes_per_token(7168) == 57_344 + 9
    assert bytes_per_token(7168, "float8_e4m3fn") == 57_344 // 2 + 9 + 16


def test_equal_content_gives_equal_bytes(tmp_path: Path, samples: list[Row]) -> None:
    write(tmp_path / "a", samples)
    write(tmp_path / "b", samples)
    left, right = Manifest.read(tmp_path / "a"), Manifest.read(tmp_path / "b")
    assert left == right
    assert [s.file for s in left.shards] == [f"shards/{i:05d}.safetensors" for i in range(len(left.shards))]


def test_a_shard_is_read_by_the_safetensors_library_too(states_dir: Path) -> None:
    from safetensors import safe_open

    with safe_open(states_dir / "shards/00000.safetensors", framework="pt") as file:
        assert file.metadata()["layers"] == "[2,3,5]"
        assert file.metadata()["last_norm"] == "post"
        assert file.get_tensor("aux").dtype == torch.bfloat16
        assert file.get_tensor("token_ids").dtype == torch.int32
        assert bytes(file.get_tensor("doc_ids").tolist()).decode().split("\n")[0] == "train0000/0"


def test_rows_of_bf16_are_views_of_the_mapped_file(states_dir: Path) -> None:
    states = open_states(states_dir)
    first, second = states.refs()[2:4]  # two documents of one shard
    assert states.load(first).aux.untyped_storage().data_ptr() == states.load(second).aux.untyped_storage().data_ptr()


def test_plan_keeps_splits_apart_and_fills_shards(samples: list[Row]) -> None:
    plans = plan_shards(samples, meta(), 20 * bytes_per_token(HIDDEN))
    assert [(p.split, p.members) for p in plans] == [
        ("train", (0,)),
        ("train", (1,)),
        ("train", (2, 3)),
        ("train", (4, 5)),
        ("held_out", (6,)),
        ("held_out", (7,)),
    ]
    assert sum(p.tokens for p in plans) == sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
    assert max(p.tokens for p in plans) <= 20


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no samples"),
        ([Row("a", 0, "d", "test", [1], [2])], "a/0: unknown split 'test'"),
        ([Row("a", 0, "d", "train", [], [2])], "a/0: a sample without prompt"),
        ([Row("a", 0, "d", "train", [1], [2])] * 2, "a/0: the same document twice"),
    ],
)
def test_bad_samples_are_refused_by_name(bad: list[Row], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_shards(bad, meta(), 1000)


def test_wrong_states_never_reach_a_file(tmp_path: Path, samples: list[Row]) -> None:
    plans = plan_shards(samples, meta(), 1 << 20)
    writer = ShardWriter(tmp_path, meta())
    good = document(samples[0])
    nan = good.aux.clone()
    nan[2, 3] = float("nan")
    wrong = {
        "aux is": document(samples[0], hidden=HIDDEN * 2),
        "not finite": Document.from_sample(samples[0], nan, good.last, good.argmax),
        "planned train0000/0": document(samples[1]),
    }
    for message, bad in wrong.items():
        with pytest.raises(DamageError, match=message), writer.open(plans[0]) as shard:
            shard.add(bad)
    with pytest.raises(DamageError, match="1 documents of 8 tokens"), writer.open(plans[0]) as shard:
        shard.add(good)
    assert not list((tmp_path / "shards").iterdir())
    with pytest.raises(DamageError, match=r"00000\.safetensors: this planned shard was not written"):
        writer.finish(plans)

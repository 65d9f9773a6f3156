"""``stack import``: a rendered profile comes back as itself, and what has no place is listed."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import pytest

from k25stack import engines
from k25stack.engines.command import read_command
from k25stack.engines.imported import import_command
from k25stack.engines.importtext import import_launch
from k25stack.engines.launch import draft_name, launch_of, model_name
from k25stack.errors import UsageError
from k25stack.stack import Profile, Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"


@cache
def stack_of(stem: str) -> Stack:
    return load_stack(STACKS / f"{stem}.yaml")


PROFILES = [
    (path.stem, name)
    for path in sorted(STACKS.glob("kimi*.yaml"))
    for name in stack_of(path.stem).serving.profiles  # every profile of a real engine
]


def rendered(stem: str, name: str, profile: Profile | None = None) -> tuple[list[str], dict[str, str]]:
    stack = stack_of(stem)
    chosen = profile or stack.profile(name)
    start = launch_of(
        stack,
        chosen,
        model=None if model_name(stack) else "/run/target",
        draft=None if draft_name(chosen) else "/run/draft",
    )
    engine = engines.get(chosen.engine)
    return engine.argv(chosen, start), engine.env(chosen, start)


@pytest.mark.parametrize(("stem", "name"), PROFILES)
def test_a_rendered_profile_comes_back_as_itself(stem: str, name: str) -> None:
    """Render, import, render: the same command line, word for word up to the order of options."""
    argv, env = rendered(stem, name)
    stack = stack_of(stem)
    version = stack.profile(name).version
    words = [*(f"{key}={value}" for key, value in env.items()), *argv]
    found = import_command(read_command(words), version=version)
    assert found.unmapped == []
    again = Profile.model_validate_json(json.dumps(found.profile))
    back, back_env = rendered(stem, name, again)
    assert sorted(back) == sorted(argv)
    assert back_env == env


def test_the_text_loads_and_names_what_it_left_out(tmp_path: Path) -> None:
    line = (
        "NCCL_P2P_LEVEL=SYS python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --bogus 3 "
        "--disable-cuda-graph --num-continuous-decode-steps 4 --cuda-graph-max-bs=64 --api-key hunter2 --host 0.0.0.0"
    )
    out = tmp_path / "mine.yaml"
    text, notes = import_launch(shlex.split(line), "", "kimi-k2.5-8x-rtx-pro-6000", "mine", out)
    out.write_text(text)
    profile = load_stack(out).profile("mine")
    assert (profile.engine, profile.version, profile.tensor_parallel) == ("sglang", "0.5.20", 8)
    assert profile.env == {"NCCL_P2P_LEVEL": "SYS"}
    assert profile.argv == {
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "cuda-graph-max-bs-decode": 64,
    }
    told = "\n".join(f"{title}: {line}" for title, line in notes)
    for word in ("--bogus", "--num-continuous-decode-steps", "--api-key", "serving.host: 0.0.0.0", "target.source"):
        assert word in told
    assert "hunter2" not in text


def test_what_the_line_does_not_say_and_the_stack_does_is_told() -> None:
    line = "CUDA_VISIBLE_DEVICES=0,1 CUDA_LAUNCH_BLOCKING=1 sglang serve --model-path /m --speculative-algorithm EAGLE3"
    base = "kimi-k2.5-8x-rtx-pro-6000"
    for engine, assumed in (
        ("", [f"version 0.5.20: the line names none, that of {base} is taken"]),
        ("sglang@0.5.16", []),
    ):
        text, notes = import_launch([line], engine, base, "x", None)
        said = [note for _, note in notes]
        assert [note for note in said if note.startswith("version ")] == assumed
        assert "speculative.draft own: the line names none" in said
        assert "CUDA_VISIBLE_DEVICES=0,1: which cards are taken is no part of a profile" in said
        assert "CUDA_LAUNCH_BLOCKING: '1'" in text and "VISIBLE" not in text.split("extends:")[1]


def test_a_systemd_unit_is_a_launch(tmp_path: Path) -> None:
    unit = tmp_path / "sglang.service"
    unit.write_text("""# by hand
[Unit]
Description=sglang
[Service]
EnvironmentFile=-/etc/sglang.env
Environment=NCCL_P2P_LEVEL=SYS "FOO=a b"
ExecStartPre=/bin/sleep 1
ExecStart=-/opt/venv/bin/python -m sglang.launch_server --model-path /m \\
    --tp-size 8
""")
    text, notes = import_launch([str(unit)], "sglang@0.5.20", "kimi-k2.5-8x-rtx-pro-6000", "x", None)
    assert "tensor_parallel: 8" in text and "NCCL_P2P_LEVEL: SYS" in text and "FOO: a b" in text
    assert any("/etc/sglang.env" in note for _, note in notes)


def test_an_eagle_line_becomes_eagle3_and_says_why() -> None:
    line = (
        "sglang serve m --speculative-algorithm EAGLE --speculative-draft-model-path drafts/of/mine "
        "--speculative-num-steps 5"
    )
    found = import_command(read_command(shlex.split(line)), version="0.5.20")
    assert found.profile["speculative"] == {"algorithm": "eagle3", "k": 5, "topk": 1, "draft": "./drafts/of/mine"}
    assert found.profile["max_running"] == 48
    told = " ".join(found.changed)
    assert "bypasses" in told
    assert "48" in told


def test_vllm_json_and_negative_flags() -> None:
    line = (
        "vllm serve m -tp 8 --no-enable-prefix-caching "
        """--speculative-config '{"method":"eagle3","model":"a/b","num_speculative_tokens":3}' --max-num-seqs 16"""
    )
    found = import_command(read_command(shlex.split(line)), version="0.31.0")
    assert found.profile["speculative"]["draft"] == "a/b"
    assert found.profile["argv"] == {"no-enable-prefix-caching": True}
    assert found.unmapped == []


@pytest.mark.parametrize(
    "line",
    [
        "sglang serve m --speculative-algorithm EAGLE3 --speculative-draft-model-path a/b --speculative-num-steps 3 "
        "--speculative-draft-model-revision abc",
        """vllm serve m --speculative-config '{"method":"eagle3","model":"a/b","revision":"abc"}' """,
    ],
)
def test_the_revision_of_a_draft_is_a_key_of_its_own(line: str) -> None:
    found = import_command(read_command(shlex.split(line)), version="0.5.20" if line[0] == "s" else "0.31.0")
    assert (found.profile["speculative"]["draft"], found.profile["speculative"]["draft_revision"]) == ("a/b", "abc")
    assert "argv" not in found.profile


def test_a_container_keeps_its_own_things_apart() -> None:
    line = (
        "docker run -e HF_TOKEN=x -e NCCL_PROTO=LL --shm-size 32g -p 8000:8000 vllm/vllm-openai:v0.31.0 serve m -tp 8"
    )
    found = import_command(read_command(shlex.split(line)))
    assert found.profile["env"] == {"NCCL_PROTO": "LL"}
    assert found.profile["version"] == "0.31.0"
    assert any("vllm-openai" in line for line in found.elsewhere)
    assert any("shm" in line for line in found.unmapped)
    assert any("entrypoint" in line for line in found.changed)
    assert "x" not in found.profile["env"].values()


@pytest.mark.parametrize("line", ["ls -l", "python -m k25stack.reference.server --target m"])
def test_what_is_no_launch_of_a_real_engine_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="does not tell the engine"):
        import_command(read_command(shlex.split(line)))


def test_a_value_that_is_none_is_left_out_and_listed() -> None:
    """A file that would not load is no import."""
    line = "sglang serve m --tp-size eight --mem-fraction-static much --port 30000"
    found = import_command(read_command(shlex.split(line)), version="0.5.20")
    assert found.profile == {"engine": "sglang", "version": "0.5.20"}
    assert [text.partition(":")[0] for text in found.unmapped] == ["--tp-size", "--mem-fraction-static"]


def test_secrets_are_named_and_what_only_sounds_so_is_kept() -> None:
    """An engine's and NCCL's own variables were taken for keys by the end of their names."""
    kept = {"TOKENIZERS_PARALLELISM": "false", "NCCL_IB_PKEY": "1", "SGLANG_USE_AITER_FP8_PER_TOKEN": "1"}
    secrets = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "STRIPE_KEY"]
    line = " ".join([*(f"{name}={value}" for name, value in kept.items()), *(f"{name}=a" for name in secrets)])
    found = import_command(read_command(shlex.split(f"{line} HOME=/ vllm serve m")), version="0.31.0")
    assert found.profile["env"] == kept
    assert [text.partition(":")[0] for text in found.unmapped] == secrets


@pytest.mark.parametrize(
    ("line", "version", "section", "note"),
    [
        ("vllm serve m --max-model-len auto", "0.31.0", None, "context left out: --max-model-len -1"),
        ("sglang serve m --speculative-algorithm NGRAM --speculative-num-draft-tokens 12", "0.5.20", None,
         "speculation with NGRAM: a profile holds an EAGLE-3 draft or none (--speculative-algorithm NGRAM"),
        ("sglang serve m --speculative-algorithm EAGLE --speculative-num-steps 3", "0.5.20", None,
         "speculation with EAGLE"),
        ("""vllm serve m --speculative-config '{"method":"mtp","num_speculative_tokens":1}'""", "0.31.0", None,
         "speculation with mtp"),
        ("""vllm serve m --speculative-config '{"method":"eagle3","model":"/d","num_speculative_tokens":5,"""
         """"draft_tensor_parallel_size":1}'""", "0.31.0", {"algorithm": "eagle3", "k": 5, "topk": 1, "draft": "/d"},
         '"draft_tensor_parallel_size" of --speculative-config: 1'),
    ],
)  # fmt: skip
def test_what_a_profile_cannot_hold_is_left_out_and_listed(
    line: str, version: str, section: dict[str, object] | None, note: str
) -> None:
    found = import_command(read_command(shlex.split(line)), version=version)
    Profile.model_validate_json(json.dumps(found.profile))
    assert found.profile.get("speculative") == section
    assert any(text.startswith(note) for text in found.changed + found.unmapped)


def test_keys_and_short_flags_of_vllm_are_taken_over() -> None:
    line = "vllm serve m -ep --kv-transfer-config.kv_connector X --kv-transfer-config.kv_role=kv_both -cc.mode 3"
    argv = import_command(read_command(shlex.split(line)), version="0.31.0").profile["argv"]
    assert argv == {
        "enable-expert-parallel": True,
        "kv-transfer-config": {"kv_connector": "X", "kv_role": "kv_both"},
        "compilation-config": {"mode": 3},
    }


def test_no_secret_is_written_down() -> None:
    line = (
        "srun --export=GITHUB_PAT=ghp_aaaaaaaaaaaaaaaaaaaa env MY_PASS=p1 DB_PASSPHRASE=p2 PROXY=http://u:p3@h:1 "
        "LOGIN=hf_p4p4p4p4p4p4 python3 -m sglang.launch_server --model-path m --admin-api-key p5 "
        """--model-loader-extra-config '{"token":"p6"}' --ssl-keyfile-password p7 --served-model-name sk-p8p8p8p8p8"""
    )
    found = import_command(read_command(shlex.split(line)), version="0.5.20")
    text = json.dumps([found.profile, found.elsewhere, found.changed, found.unmapped])
    assert [secret for secret in ("ghp_", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8") if secret in text] == []
    hub = import_command(read_command(shlex.split("vllm serve m --hf-token hf_x")), version="0.31.0")
    assert "argv" not in hub.profile

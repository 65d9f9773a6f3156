"""What a rendered job promises: words stay words, nothing is unpinned, drift is seen, a wrong setting never starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.cli.main import main
from k25stack.errors import ContractError, UsageError
from k25stack.jobs import Health, Job, Mount
from k25stack.jobs.dockererrors import explain
from k25stack.jobs.images import image_key, pinned
from k25stack.jobs.render import container_words, sbatch, script, service, service_text
from k25stack.jobs.serving import Places, serving_job
from k25stack.jobs.templates import fill, shell
from k25stack.stack import Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"
BIG = STACKS / "kimi-k2.5-8x-rtx-pro-6000.yaml"
PLACES = Places(model="/srv/model", draft="/srv/draft", job="/srv/job")
TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)
IMAGE = "them/image@sha256:" + "ab" * 32
JOB = Job("run", "step", "key", ("program",), Path("/log"), image=IMAGE, health=Health("/ready", 8099, 60.0))


@pytest.fixture(scope="module")
def big() -> Stack:
    return load_stack(BIG)


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_words_reach_the_program_through_bash_as_they_were(words: list[str]) -> None:
    text = script(replace(JOB, argv=("printf", "%s\\0", *words), health=None))
    done = subprocess.run(["bash", "-c", text], capture_output=True, timeout=20, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT)
def test_values_reach_compose_as_they_were(value: str, place: str) -> None:
    job = replace(JOB, env={"A": value}, mounts=(Mount("/x" + place, "/y" + place),))
    read = yaml.safe_load(service_text(job, "s"))["s"]
    assert read["environment"]["A"] == value.replace("$", "$$")  # compose reads $$ as $
    assert read["volumes"][0]["target"] == "/y" + place.replace("$", "$$")
    assert read["volumes"][0]["source"] == "/x" + place  # compose's own variables may stand there


@settings(max_examples=25, deadline=None)
@given(TEXT)
def test_values_reach_srun_as_they_were(value: str) -> None:
    job = replace(JOB, image=None, argv=("printf", "%s", value), env={"NAME": value})
    text = sbatch(job).replace("srun --kill-on-bad-exit=1 --", "").replace("printf\n", "printf\n", 1)
    done = subprocess.run(["bash", "-c", text], capture_output=True, timeout=20, check=True)
    assert done.stdout.decode() == value


def test_an_unknown_variable_of_a_template_is_an_error() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        fill("service.yaml.j2", job=JOB)


def test_a_batch_header_takes_plain_words_only() -> None:
    with pytest.raises(UsageError, match="cannot stand in a batch file's header"):
        sbatch(replace(JOB, run="a b\n#SBATCH --uid=0"))
    with pytest.raises(UsageError, match="NUL"):
        shell("a\0b")


def test_a_batch_file_names_no_place_that_a_node_cannot_know() -> None:
    with pytest.raises(UsageError, match="no absolute path"):
        sbatch(replace(JOB, mounts=(Mount("${MODEL}", "/m"),)))


def test_commas_and_quotes_survive_dockers_mount_option() -> None:
    words = container_words(replace(JOB, mounts=(Mount('/a,b"c', "/d"),)))
    assert words[words.index("--mount") + 1] == 'type=bind,"source=/a,b""c",target=/d,readonly'


@pytest.mark.parametrize("image", ["them/image:1", "them/image", "", "k25stack.evil/x:1", "them/image@sha256:short"])
def test_an_image_without_digest_is_refused_with_the_command_that_pins_it(image: str) -> None:
    with pytest.raises(UsageError, match=r"has no digest.*k25stack stack pin engine"):
        pinned(image, "engine")
    with pytest.raises(UsageError, match="stack pin"):
        service(replace(JOB, image=image))


def test_images_that_were_built_here_need_none() -> None:
    assert pinned("k25stack/cpu:local") == "k25stack/cpu:local"
    assert image_key(IMAGE) == "ab" * 6 and len(image_key("k25stack/cpu:local")) == 12


def test_a_served_profile_sees_everything_at_its_one_place(big: Stack) -> None:
    job = serving_job(big, "sglang-eagle3-own", PLACES)
    targets = {mount.target: mount.writable for mount in job.mounts}
    assert targets == {
        "/etc/k25stack/job": False, "/models/target": False, "/models/draft": False, "/cache": True, "/runs": True,
        "/etc/k25stack/nccl.env": False, "/run/lock/k25stack": True,
    }  # fmt: skip
    assert job.argv[job.argv.index("--model-path") + 1] == "/models/target"
    assert job.argv[job.argv.index("--speculative-draft-model-path") + 1] == "/models/draft"
    assert job.argv[job.argv.index("--host") + 1] == "0.0.0.0"
    assert job.policy is not None and job.policy["lease"] == "/run/lock/k25stack/gpu.lease"
    assert job.gpus == 8 and job.shm_bytes == 32 << 30
    assert job.image is not None and job.image.startswith("lmsysorg/sglang:v0.5.20@sha256:")


def test_a_service_has_no_more_rights_than_it_needs(big: Stack) -> None:
    read = service(serving_job(big, None, PLACES))
    assert read["cap_drop"] == ["ALL"] and read["security_opt"] == ["no-new-privileges:true"]
    assert read["read_only"] is True and read["user"] == "10001:10001" and "ports" not in read
    assert not {"privileged", "pid", "network_mode", "ipc"} & read.keys()


def test_an_own_image_keeps_the_kernels_of_its_base_apart(big: Stack) -> None:
    base = serving_job(big, "sglang-nccl", PLACES)
    ours = serving_job(big, "sglang-nccl", replace(PLACES, image="k25stack/sglang:local"))
    other = serving_job(big, "vllm-baseline", replace(PLACES, image="k25stack/vllm:local"))
    assert base.ground is not None and ours.ground is not None and other.ground is not None
    assert base.ground.jit == ours.ground.jit != other.ground.jit


def test_a_draft_needs_a_place(big: Stack) -> None:
    with pytest.raises(UsageError, match="no place of the draft"):
        serving_job(big, "sglang-eagle3-own", Places(model="/m"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_P2P_LEVEL", "sys", "NCCL_P2P_LEVEL"),
        ("NCCL_PROTO", "LL,Fast", "NCCL_PROTO"),
        ("NCCL_PROTOO", "LL", "did you mean NCCL_PROTO"),
        ("NCCL_OF_MY_OWN", "1", "NCCL_OF_MY_OWN"),
    ],
)
def test_a_wrong_nccl_setting_is_not_rendered(big: Stack, name: str, value: str, says: str) -> None:
    profile = big.profile("sglang-nccl")
    wrong = profile.model_copy(update={"env": {name: value}})
    serving = big.serving.model_copy(update={"profiles": {**big.serving.profiles, "sglang-nccl": wrong}})
    with pytest.raises(ContractError, match=says):
        serving_job(big.model_copy(update={"serving": serving}), "sglang-nccl", PLACES)


class Said:
    """What a call of the command line gave."""

    def __init__(self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
        self.returncode = main(["stack", "render", *words])
        self.stdout, self.stderr = capsys.readouterr()


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    return lambda *words: Said(capsys, words)


def test_drift_is_exit_4_with_the_difference_and_the_command(render: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    made = render(str(BIG), "-p", "sglang-nccl", "--to", "script", "-o", str(file))
    assert made.returncode == 0 and "--check" in made.stderr
    assert render(str(BIG), "-p", "sglang-nccl", "--to", "script", "--check", str(file)).returncode == 0
    file.write_text(file.read_text().replace("give NCCL_PROTO LL", "give NCCL_PROTO Simple"))
    seen = render(str(BIG), "-p", "sglang-nccl", "--to", "script", "--check", str(file))
    assert seen.returncode == 4
    assert "-give NCCL_PROTO Simple" in seen.stdout and "+give NCCL_PROTO LL" in seen.stdout
    assert f"--profile sglang-nccl -o {file}" in seen.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "yaml"), "no form 'yaml'"),
        (("--to", "script", "--step", "train", "-p", "own"), "two things"),
        (("--to", "script", "--step", "trian"), "no step 'trian'"),
        (("--to", "script", "-p", "ownn"), "no profile 'ownn'"),
        (("--to", "compose", "-p", "own"), "names no image"),
        (("--to", "compose", "-p", "own", "--image", "x:1"), "k25stack stack pin"),
        (("--to", "script", "--check", "/no/such"), "cannot be compared"),
        (("--to", "script", "-p", "own", "--gpus", "amd", "--image", "k25stack/cpu:local"), "no way to ask for cards"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(render: Callable[..., Said], words: tuple[str, ...], says: str) -> None:
    extra = ("--image", "k25stack/cpu:local") if "--check" in words else ()
    done = render(str(STACKS / "smollm2-cpu.yaml"), *words, *extra)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and last.startswith("error: ") and says in last and "Traceback" not in done.stderr


def test_a_step_is_rendered_for_a_node(render: Callable[..., Said]) -> None:
    done = render(
        str(STACKS / "smollm2-cpu.yaml"), "--step", "train", "--to", "sbatch", "--image", "k25stack/train:local"
    )
    assert done.returncode == 0 and "  k25stack/train:local\n  -m\n  k25stack.train.main\n" in done.stdout
    assert "  --entrypoint\n  /opt/k25stack/bin/python\n" in done.stdout, "the engine's own python3 does not see us"
    assert f"  --user\n  {os.getuid()}:{os.getgid()}\n" in done.stdout, "it writes into this user's directory"


def test_slurm_writes_where_a_node_has_a_directory() -> None:
    inside = (Mount("runs", "/runs", writable=True),)
    assert "\n#SBATCH --output=run.step-%j.log\n" in sbatch(
        replace(JOB, health=None, log=Path("/runs/step.log"), mounts=inside)
    )
    assert "\n#SBATCH --output=/srv/log\n" in sbatch(replace(JOB, health=None, log=Path("/srv/log"), mounts=inside))
    shared = (Mount("/srv", "/srv", writable=True),)
    assert "\n#SBATCH --output=/srv/log\n" in sbatch(replace(JOB, health=None, log=Path("/srv/log"), mounts=shared))


def test_policy_is_what_the_supervisor_reads(big: Stack) -> None:
    from k25stack.watch.policy import from_json

    for name in big.serving.profiles:
        job = serving_job(big, name, PLACES)
        assert from_json(json.loads(json.dumps(job.policy))).engine == big.profile(name).engine


# What engines of several versions say, in their own words.
@pytest.mark.parametrize(
    ("said", "says"),
    [
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "the engine has no GPU runtime"),
        ('could not select device driver "cdi" with capabilities: [[]]', "the engine does not do CDI"),
        (
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7",
            "no such CDI device nvidia.com/gpu=7",
        ),
        ("unknown or invalid runtime name: nvidia", "the engine has no runtime nvidia"),
        ("No such image: a/b@sha256:12", "image a/b@sha256:12 is not on this machine"),
        ("extract: write /var/lib/x: no space left on device", "no space left on the disk of /var/lib/x (free some"),
        ("no space left on device", "no space left on the disk of the engine's data directory (free some there"),
        ("error setting rlimits for ready process: error setting rlimit type 8: operation not permitted", "memlock"),
        ('exec: "python3": executable file not found in $PATH: unknown', "the image lacks the program"),
        ("something else entirely", "the engine refused: something else entirely"),
    ],
)
def test_every_refusal_of_an_engine_has_its_own_line(said: str, says: str) -> None:
    error = explain(said, "image", "step")
    assert says in str(error) and error.remedy and error.exit_code == 3

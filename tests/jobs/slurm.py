"""A real Slurm of one node for tests: this machine's munged, slurmctld and slurmd, in directories of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from k25stack.jobs.control import wait_for

PACKAGES = "slurmctld slurmd slurm-client munge"
DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{os.environ['PATH']}:/usr/sbin"
SETTINGS = """ClusterName=k25
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.sock
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={run}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={place}/ended
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty when there can."""
    if os.getuid() != 0:
        return "not root"
    missing = [name for name in (*DAEMONS, "sbatch", "srun", "sacct") if shutil.which(name, path=PATH) is None]
    return f"no {missing[0]} (apt-get install {PACKAGES})" if missing else ""


class Slurm:
    """The cluster.  Its eight cards are terminals of this host: Slurm wants files, and nobody opens them."""

    def __init__(self, place: Path) -> None:
        self.place, self.run = place, Path(f"/run/k25-slurm-{os.getpid()}")
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(place / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for path in (self.run, self.run / "spool", self.place / "state"):
            path.mkdir(parents=True, exist_ok=True)
        key = self.place / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        with socket.socket() as one, socket.socket() as two:
            for probe in (one, two):
                probe.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1], two.getsockname()[1]]
        host = socket.gethostname().partition(".")[0]
        self.place.joinpath("slurm.conf").write_text(
            SETTINGS.format(host=host, run=self.run, place=self.place, ports=ports, cpus=os.cpu_count())
        )
        self.place.joinpath("gres.conf").write_text("Name=gpu File=/dev/tty[0-7]\n")
        names = {"key-file": key, "socket": self.run / "munge.sock", "pid-file": self.run / "munged.pid",
                 "log-file": self.place / "munged.log", "seed-file": self.place / "munged.seed"}  # fmt: skip
        self._daemon("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in names.items()))
        assert wait_for((self.run / "munge.sock").exists, 20.0), self.said("munged")
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        up = wait_for(lambda: self.ask("sinfo", "-h", "-o", "%t").stdout.strip() == "idle", 30.0)
        assert up, self.said("slurmctld") + self.said("slurmd")

    def _daemon(self, name: str, *words: str) -> None:
        with (self.place / f"{name}.out").open("wb") as out:
            self.daemons.append(
                subprocess.Popen([name, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )

    def said(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(errors="replace")[-2000:]

    def ask(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SLURM_CONF": str(self.place / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        return subprocess.run(list(words), env=env, cwd=cwd, text=True, capture_output=True, timeout=30)

    def submit(self, text: str, cwd: Path) -> str:
        """The job's number."""
        file = cwd / "job.sbatch"
        file.write_text(text)
        done = self.ask("sbatch", "--parsable", str(file), cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def about(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` says."""
        words = self.ask("scontrol", "show", "job", job).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def end(self, job: str, within_s: float = 40.0) -> tuple[str, str]:
        """State and ``code:signal`` of a job that has ended, which ``sacct`` tells as well."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        assert wait_for(lambda: self.about(job)["JobState"] in ended, within_s), self.about(job)
        state = self.about(job)["JobState"]
        told = wait_for(lambda: state in self.ask("sacct", "-c", "-n", "-j", job, "-o", "State%20").stdout, 10.0)
        assert told, self.ask("sacct", "-c", "-j", job)
        return state, self.about(job)["ExitCode"]

    def clear(self) -> None:
        self.ask("scancel", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            daemon.wait(20)
        shutil.rmtree(self.run, ignore_errors=True)

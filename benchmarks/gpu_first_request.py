"""What the first request of each kind costs on a fresh engine, why, and what the supervisor makes of it.

    python benchmarks/gpu_first_request.py WORK_DIR OUT.json CASE... [--seconds 560] [--vllm BIN_DIR]

Target and draft: `clockwork_llama`.  SGLang 0.5.16 is meant; with ``--vllm`` the vLLM of that environment is asked.
The cases, in the order in which they build on each other (they keep what they need in WORK_DIR):

empty       draft, every cache empty: each kind of request twice
kept        the same again with the kept caches and a new home directory, as a container that was made anew sees it
plain       no draft, the engine's own sampling backend and xgrammar, caches as after a greedy request
beside      draft, caches as after a greedy request: a sampled request while a greedy one runs
ready       under the supervisor, caches as after a greedy request: phases until ready, then requests of a user
greedy      the same with a greedy warm request alone, and without regard for compilers: a user's sampled request
patient     the same with regard for compilers

While a request runs, the compilers below the engine and the stack of its scheduler (py-spy, where it is there) are
noted, and afterwards which files appeared in the caches.  OUT.json is written anew after every request.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check_url import PORT, Book, ask, cut, sglang_argv, started, versions, vllm_argv, wait

from k25stack.jobs.serving import JIT_ENV
from k25stack.watch.compilers import COMPILERS

READY = 30113
LONGEST_S = 240.0
BESIDE = "sampled beside a greedy one"
STACKS_AT_S = (4.0, 12.0, 30.0, 60.0)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8},
    "sampled, n = 2": {"temperature": 0.8, "n": 2},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 20},
    "top_p, top_k, n = 2": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "n": 2},
    "min_p": {"temperature": 0.8, "min_p": 0.1},
    "frequency_penalty": {"temperature": 0.0, "frequency_penalty": 0.5},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    BESIDE: {"temperature": 0.8},
    # last: the words of this vocabulary cannot spell JSON, which ends SGLang
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}},
}


def body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "clock", "prompt": list(range(10, 42)), "max_tokens": 16, **fields}


class Notes:
    """What runs below process ``root`` while a request is out: compilers, and now and then the scheduler's stack."""

    def __init__(self, root: int) -> None:
        self.root, self.over = root, threading.Event()
        self.compilers: dict[str, list[float]] = {}  # name -> first and last second in which it was seen
        self.sources: set[str] = set()
        self.stacks: dict[str, list[str]] = {}
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        ahead = list(STACKS_AT_S)
        while not self.over.wait(0.3):
            now = round(time.monotonic() - self.begun, 1)
            below = processes(self.root)
            for name, words in below.values():
                if name in COMPILERS:
                    self.compilers.setdefault(name, [now, now])[1] = now
                    self.sources.update(re.findall(r"[\w.-]+\.(?:cu|ptx)\b", words))
            if ahead and now >= ahead[0]:
                self.stacks[f"{ahead.pop(0):g} s"] = stack(below)

    def end(self) -> dict[str, Any]:
        self.over.set()
        self.thread.join(20)
        return {"compilers": self.compilers, "sources": sorted(self.sources)[:40], "stacks": self.stacks}


def processes(root: int) -> dict[int, tuple[str, str]]:
    """Pid -> (name, command line) of the session of ``root``."""
    found = {}
    for pid in subprocess.run(["pgrep", "-s", str(root)], capture_output=True, text=True, check=False).stdout.split():
        try:
            place = Path("/proc") / pid
            words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(pid)] = ((place / "comm").read_text().strip(), words)
        except OSError:
            continue
    return found


def stack(below: dict[int, tuple[str, str]]) -> list[str]:
    """The Python stack of the scheduler's main thread, innermost frame first."""
    pids = [pid for pid, (name, words) in below.items() if "scheduler" in name + words or "EngineCore" in name + words]
    spy = shutil.which("py-spy") or "/tmp/site/bin/py-spy"
    if not pids or not Path(spy).exists():
        return []
    done = subprocess.run([spy, "dump", "--pid", str(pids[0])], capture_output=True, text=True, timeout=15, check=False)
    main = done.stdout.partition("MainThread")[2] or done.stdout or done.stderr
    return [line.strip() for line in main.split("\n\n")[0].splitlines()][1:28]


def files(*roots: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for root in roots for path in root.rglob("*") if path.is_file()}


def grown(before: dict[str, int], after: dict[str, int], root: Path) -> dict[str, Any]:
    """New files per cache, and the names of the libraries among them."""
    new = [Path(name).relative_to(root) for name in after if name not in before]
    per: dict[str, int] = {}
    for path in new:
        per["/".join(path.parts[:2])] = per.get("/".join(path.parts[:2]), 0) + 1
    return {"files": per, "libraries": sorted(str(path) for path in new if path.suffix == ".so")[:30]}


def post(fields: dict[str, Any], timeout_s: float = LONGEST_S) -> tuple[str, float]:
    """(outcome, seconds) of one completion."""
    begun = time.monotonic()
    try:
        reply = ask("/v1/completions", body(fields), timeout_s)
        outcome = f"{len(reply['choices'])} x {reply['usage']['completion_tokens']} tokens"
    except urllib.error.HTTPError as error:
        outcome = f"HTTP {error.code}: {error.read()[:200].decode(errors='replace')}"
    except (OSError, ValueError) as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, round(time.monotonic() - begun, 2)


def post_kind(name: str) -> tuple[str, float]:
    """The same for a kind of request."""
    if name != BESIDE:
        return post(KINDS[name])
    long = {"temperature": 0.0, "max_tokens": 1500, "ignore_eos": True}
    other = threading.Thread(target=post, args=(long,))
    other.start()
    time.sleep(1.0)  # it runs by now
    found = post(KINDS[name])
    other.join()
    return found


class Bench:
    def __init__(self, options: argparse.Namespace, book: Book) -> None:
        self.options, self.book, self.work = options, book, options.work.absolute()
        self.caches, self.snapshot = self.work / "caches", self.work / "caches-greedy"
        self.running: list[subprocess.Popen[bytes]] = []
        from clockwork_llama import write_foreseeing, write_llama

        self.target, self.draft = self.work / "target", self.work / "draft"
        if not self.draft.exists():
            write_foreseeing(self.draft, write_llama(self.target))

    def env(self, caches: str) -> dict[str, str]:
        """The environment of a container: caches kept as the jobs keep them, and a new home directory."""
        if caches == "empty":
            shutil.rmtree(self.caches, ignore_errors=True)
        elif caches == "greedy":
            shutil.rmtree(self.caches, ignore_errors=True)
            shutil.copytree(self.snapshot, self.caches, symlinks=True)
        home = self.work / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        kept = {name: str(self.caches / "kept" / part) for name, part in JIT_ENV.items()}
        (self.caches / "kept").mkdir(parents=True, exist_ok=True)
        added = {"HF_HUB_OFFLINE": "1", "HOME": str(home), **kept}
        if self.options.vllm:
            from gpu_check_url import VLLM_ENV

            added |= VLLM_ENV | {"PATH": f"{self.options.vllm}:{os.environ['PATH']}"}
        return {**os.environ, **added}

    def argv(self, draft: bool = True) -> list[str]:
        if self.options.vllm:
            words = vllm_argv(self.options.vllm, self.target, self.draft)
            return words if draft else words[: words.index("--speculative-config")]
        words = sglang_argv(self.target, self.draft)
        if draft:
            return words
        words = words[: words.index("--speculative-algorithm")]
        at = words.index("--grammar-backend")
        return [*words[:at], "--grammar-backend", "xgrammar", *words[at + 4 :]]

    @contextmanager
    def server(self, case: str, argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        log = self.options.out.with_name(f"{self.options.out.stem}-{case}.log")
        one = started(argv, log, env)
        self.running.append(one)
        try:
            yield one
        finally:
            self.stop(one)

    def stop(self, one: subprocess.Popen[bytes]) -> None:
        subprocess.run(["pkill", "-9", "-s", str(one.pid)], check=False)  # the session that was started here
        one.wait()
        while subprocess.run(["pgrep", "-s", str(one.pid)], capture_output=True, check=False).returncode == 0:
            time.sleep(0.1)
        self.running.remove(one)

    def put(self, case: str, value: dict[str, Any]) -> None:
        self.book.put(case, value)

    def kinds(self, case: str, caches: str, draft: bool = True, names: tuple[str, ...] = tuple(KINDS)) -> None:
        """Each kind twice on one server."""
        env = self.env(caches)
        found: dict[str, Any] = {"argv": self.argv(draft), "caches": caches, "kinds": {}}
        begun = time.monotonic()
        with self.server(case, self.argv(draft), env) as one:
            notes = Notes(one.pid)
            problem = wait(one, self.options.out.with_name(f"{self.options.out.stem}-{case}.log"))
            found["start"] = {"seconds": round(time.monotonic() - begun, 1), "error": problem, **notes.end()}
            self.put(case, found)
            for name in () if problem else names:
                before = files(self.work)
                notes = Notes(one.pid)
                first = post_kind(name)
                seen = notes.end()
                again = [post_kind(name) for _ in range(2)]
                new = grown(before, files(self.work), self.work)
                found["kinds"][name] = {"first_s": first[1], "again_s": [seconds for _, seconds in again],
                                        "outcomes": [first[0], again[-1][0]], **seen, "new": new}  # fmt: skip
                self.put(case, found)
                if case == "empty" and name == "greedy":
                    shutil.rmtree(self.snapshot, ignore_errors=True)
                    shutil.copytree(self.caches, self.snapshot, symlinks=True)
        found["home"] = grown({}, files(self.work / "home"), self.work / "home")["files"]
        self.put(case, found)

    def supervised(self, case: str, warm: int | None, user: tuple[str, ...], **times: Any) -> None:
        """Under the supervisor, with the first ``warm`` of its warm requests; then the kinds of ``user``."""
        from k25stack.engines.supervise import policy
        from k25stack.watch.policy import Ready

        engine = "vllm" if self.options.vllm else "sglang"
        history = self.options.out.with_name(f"{self.options.out.stem}-{case}.jsonl")
        history.unlink(missing_ok=True)
        made = policy(engine, "clock", PORT, ready=Ready(port=READY), history=history, heartbeat_s=10.0, **times)
        asked = [replace(one, body={**one.body, "prompt": body({})["prompt"]}) for one in made.warm[:warm]]
        file = self.work / f"{case}.json"
        file.write_text(json.dumps(replace(made, warm=tuple(asked)).as_dict()))
        found: dict[str, Any] = {"warm": [one.name for one in asked], "heartbeat_s": 10.0, "misses": 3, **times}
        begun = time.monotonic()
        argv = [sys.executable, "-m", "k25stack.watch.main", "--policy", str(file), "--", *self.argv()]
        with self.server(case, argv, self.env("greedy")) as one:
            said: dict[str, float] = {}
            while (line := page("/ready"))[0] != 200 and one.poll() is None:
                said.setdefault(re.sub(r", for \d+ s|pid \d+", "...", line[1].strip()), since(begun))
                time.sleep(0.5)
            found |= {"ready_s": since(begun), "said": said, "user": {}}
            self.put(case, found)
            for name in user:
                outcome, seconds = post(KINDS[name])
                found["user"][name] = {"seconds": seconds, "outcome": outcome}
                status = json.loads(page("/status")[1] or "{}")
                found["status"] = {key: status.get(key) for key in ("state", "text", "misses", "restarts", "compiling")}
                self.put(case, found)
        events = [json.loads(line)["data"] for line in history.read_text().splitlines()]
        found["history"] = [{k: v for k, v in event.items() if k != "argv0"} for event in events]
        self.put(case, found)


def since(begun: float) -> float:
    return round(time.monotonic() - begun, 1)


def page(path: str) -> tuple[int, str]:
    """Status and text of the supervisor's own page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{READY}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


AFTER = ("sampled", "top_p, top_k, n = 2", "greedy")
CASES: dict[str, Callable[[Bench], None]] = {
    "empty": lambda bench: bench.kinds("empty", "empty", names=tuple(KINDS)[:-2]),
    "kept": lambda bench: bench.kinds("kept", "kept", names=tuple(KINDS)[:6]),
    "plain": lambda bench: bench.kinds("plain", "greedy", draft=False),
    "beside": lambda bench: bench.kinds("beside", "greedy", names=("greedy", "sampled", BESIDE)),
    "ready": lambda bench: bench.supervised("ready", None, AFTER),
    "greedy": lambda bench: bench.supervised("greedy", 1, AFTER[:2], compile_s=0.0),
    "patient": lambda bench: bench.supervised("patient", 1, AFTER[:2]),
}


def machine() -> dict[str, Any]:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        card = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        card = "none"
    return {"card": card, "cores": os.cpu_count()}


def main() -> int:
    parser = argparse.ArgumentParser(description="what the first request of each kind costs, and why")
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="+", choices=tuple(CASES))
    parser.add_argument("--seconds", type=int, default=560, help="time for everything")
    parser.add_argument("--vllm", type=Path, help="bin directory of an environment with vLLM, instead of SGLang")
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.vllm = options.vllm.absolute() if options.vllm else None
    book = Book(options.out)
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, cut)
    signal.alarm(options.seconds)
    book.put("versions", versions())
    book.put("machine", machine())
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, book)
    try:
        for case in options.cases:
            CASES[case](bench)
        book.found["state"] = "done"
    except BaseException as error:
        book.found["state"] = f"{type(error).__name__}: {error}"[:500]
        raise
    finally:
        signal.alarm(0)
        for one in list(bench.running):
            bench.stop(one)
        book.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())

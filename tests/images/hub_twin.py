"""A model hub on the loopback interface: the part of the real one's interface that its own client library asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "4d01dfe0332d63057c186e0b262165819efb6611"
LARGE = (".safetensors", ".model")  # kept as LFS objects, known by sha256


@dataclass
class Hub:
    repo: str
    files: dict[str, bytes]
    token: str = ""  # gated when there is one
    listed: dict[str, bytes] = field(default_factory=dict)  # what the list says instead
    asked: list[str] = field(default_factory=list)  # files that were sent
    others: dict[str, dict[str, bytes]] = field(default_factory=dict)  # more repositories, at the same commit
    url: str = ""

    def files_of(self, path: str) -> tuple[str, dict[str, bytes]]:
        """(repository, its files) of a path below /api/models/ or of a file's; empty when there is no such one."""
        repos = {self.repo: self.files, **self.others}
        found = next((repo for repo in repos if f"{path}/".startswith(f"{repo}/")), "")
        return found, repos.get(found, {})

    def siblings(self, files: dict[str, bytes]) -> list[dict[str, object]]:
        return [self._sibling(name, self.listed.get(name, content)) for name, content in sorted(files.items())]

    def _sibling(self, name: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob(content)}
        if name.endswith(LARGE):
            entry["lfs"] = {
                "sha256": (found := hashlib.sha256(content).hexdigest()),
                "oid": found,
                "size": len(content),
                "pointerSize": 134,
            }
        return entry


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve(hub: Hub, host: str = "127.0.0.1") -> Iterator[Hub]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(True)

        def do_HEAD(self) -> None:
            self._answer(False)

        def _answer(self, with_body: bool) -> None:
            path = urlsplit(self.path).path
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}, with_body)
            if path.startswith("/api/models/"):
                repo, files = hub.files_of(path.removeprefix("/api/models/"))
                siblings = hub.siblings(files)
                asked = path.partition("/revision/")[2] or "main"
                headers = {"Content-Type": "application/json"}
                if not repo or asked not in (COMMIT, "main"):
                    what = "RevisionNotFound" if repo else "RepoNotFound"
                    return self._send(404, b"{}", {**headers, "X-Error-Code": what}, with_body)
                told: object = {"id": repo, "sha": COMMIT, "siblings": siblings}
                if f"/tree/{COMMIT}" in path:
                    told = [
                        {**file, "type": "file", "path": file["rfilename"], "oid": file["blobId"]} for file in siblings
                    ]
                return self._send(200, json.dumps(told).encode(), headers, with_body)
            repo, files = hub.files_of(path.removeprefix("/"))
            name = path.removeprefix(f"/{repo}/resolve/{COMMIT}/")
            if name not in files:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            content = files[name]
            if with_body:
                hub.asked.append(name)
            etag = hashlib.sha256(content).hexdigest() if name.endswith(LARGE) else blob(content)
            return self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, with_body)

        def _send(self, code: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Answer)
    hub.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

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
    url: str = ""

    def siblings(self) -> list[dict[str, object]]:
        return [self._sibling(name, self.listed.get(name, content)) for name, content in sorted(self.files.items())]

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
def serve(hub: Hub) -> Iterator[Hub]:
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
                known = path.startswith(f"/api/models/{hub.repo}")
                told: object = {"id": hub.repo, "sha": COMMIT, "siblings": hub.siblings()}
                if f"/tree/{COMMIT}" in path:
                    told = [
                        {**file, "type": "file", "path": file["rfilename"], "oid": file["blobId"]}
                        for file in hub.siblings()
                    ]
                body = json.dumps(told).encode()
                headers = {"Content-Type": "application/json"}
                return self._send(200 if known else 404, body if known else b"{}", headers, with_body)
            name = path.removeprefix(f"/{hub.repo}/resolve/{COMMIT}/")
            if name not in hub.files:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            content = hub.files[name]
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

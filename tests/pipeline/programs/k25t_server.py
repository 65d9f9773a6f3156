"""A server for tests: answers /health with 200 and /total with the content of a file, after ``--slow`` seconds."""

import argparse
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--file", type=Path)
options.add_argument("--slow", type=float, default=0.0)
options.add_argument("--die", default="")
chosen = options.parse_args()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"ok" if self.path == "/health" else chosen.file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if chosen.die:
    raise SystemExit(f"error: {chosen.die}")
block = bytearray(b"x") * 50_000_000  # so that its memory is seen in the sum
time.sleep(chosen.slow)
ThreadingHTTPServer(("127.0.0.1", chosen.port), Handler).serve_forever()

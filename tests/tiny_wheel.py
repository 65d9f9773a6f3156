"""Real wheels of a few bytes, so that the real pip can be sent to a folder instead of an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def write_wheel(directory: Path, package: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel with its metadata and record, so that pip takes it; equal content gives equal bytes."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def line(path: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(data)}\n"

    record = "".join(line(path, data) for path, data in content.items()) + f"{info}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in {**content, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return wheel

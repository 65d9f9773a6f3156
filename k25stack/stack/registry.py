"""What a tag means now (standard library only).

Asked of the registry over its HTTP interface, or of ``docker buildx imagetools``, which has the user's logins, where
the registry wants one.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Literal

from k25stack.errors import HostError
from k25stack.proc import run

INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TIMEOUT_S = 20.0
HUB = "registry-1.docker.io"


@dataclass(frozen=True)
class Resolved:
    digest: str
    kind: Literal["index", "manifest"]


class Denied(HostError):
    """The registry wants a login."""


def resolve(ref: str) -> Resolved:
    """Digest that ``repository:tag`` has at its registry now.  Raises HostError that says why it cannot be told."""
    try:
        return _ask(ref)
    except Denied:
        return _imagetools(ref)


def address(ref: str) -> tuple[str, str, str]:
    """Registry host, repository and tag of a reference in Docker's spelling."""
    from k25stack.stack.images import split_ref

    repository, tag = split_ref(ref)
    head, slash, rest = repository.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        return (HUB if head == "docker.io" else head), rest, tag
    return HUB, repository if slash else f"library/{repository}", tag


def _ask(ref: str) -> Resolved:
    host, repository, tag = address(ref)
    scheme = "http" if re.match(r"(localhost|127\.|\[::1\])", host) else "https"  # as Docker treats loopback registries
    url = f"{scheme}://{host}/v2/{repository}/manifests/{urllib.parse.quote(tag)}"
    headers = {"Accept": ", ".join((*INDEX, *MANIFEST))}
    try:
        try:
            answer = _head(url, headers)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.lower().startswith("bearer "):
                raise
            answer = _head(url, {**headers, "Authorization": f"Bearer {_token(challenge)}"})
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise Denied(f"{host} wants a login", where=ref, remedy=f"docker login {host}") from None
        what = "no such tag" if error.code == 404 else f"{host} answers {error.code}"
        raise HostError(what, where=ref, remedy="look at the registry's page of it") from None
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise HostError(
            f"{host} cannot be reached: {reason}", where=ref, remedy="run it where there is network"
        ) from None
    digest = answer.get("Docker-Content-Digest", "")
    if not DIGEST.fullmatch(digest):
        raise HostError(f"{host} gives no digest", where=ref, remedy=f"docker buildx imagetools inspect {ref}")
    return Resolved(digest, "index" if answer.get_content_type() in INDEX else "manifest")


def _head(url: str, headers: dict[str, str]) -> http.client.HTTPMessage:
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return answer.headers  # type: ignore[no-any-return]


def _token(challenge: str) -> str:
    """An anonymous token, as the challenge says where and for what."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    with urllib.request.urlopen(f"{fields.get('realm', '')}?{query}", timeout=TIMEOUT_S) as answer:
        body = json.load(answer)
    return str(body.get("token") or body.get("access_token") or "")


def _imagetools(ref: str) -> Resolved:
    """With the logins of the docker command line."""
    form = "{{json .Manifest}}"
    done = run(["docker", "buildx", "imagetools", "inspect", ref, "--format", form], timeout_s=60,
               remedy=f"docker login {address(ref)[0]}")  # fmt: skip
    found = json.loads(done.stdout)
    return Resolved(str(found["digest"]), "index" if found.get("mediaType") in INDEX else "manifest")

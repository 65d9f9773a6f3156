"""What a server says of itself, before it is shown or stored: nothing secret is left, and nothing else is lost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from k25stack.engines.info import HIDDEN, clean_text, redacted

SECRET = "s3cr3tvalue"
NAMES = ("api_key", "apiKey", "X-Api-Key", "API_KEYS", "admin_api_key", "hf_token", "token", "hf_tokens",
         "access_token", "auth", "Authorization", "bearer", "ssl_keyfile_password", "private_key", "secret_key",
         "aws_access_key_id",
         "AWSAccessKeyId", "client_secret", "passphrase", "pwd", "credentials", "session_cookie", "jwt", "license_key",
         "SSH_KEY", "OPENAI_API_KEY", "X-Amz-Signature", "sig", "encryption_key")  # fmt: skip
TEXTS = (
    "x --api-key {} --port 1", "x --api-key={}", "x --api_key {}", "x --api-key '{} b'", 'x --hf-token "{} b"',
    "HF_TOKEN={} python -m x", "docker run -e HF_TOKEN={} x", "env=HF_TOKEN={}", "x -H 'X-Api-Key: {}'",
    "x --override '{{\"api_key\": \"{}\"}}'", "Authorization: Basic {}", "curl -u me:{} x", "ServerArgs(api_key='{}')",
    "{{'password': '{}'}}", "http://me:{}@h/x", "http://{}@h/x", "redis://:{}@h/0", "http://me:p@{}@h",
    "https://h/x?api_key={}&a=1", "https://h/x?sig={}", "hf_{}", "sk-{}", "ghp_{}abcdefgh", "glpat-{}", "xoxb-{}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{}", "bearer {}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "x --api-key k1 {} --port 1", "{{'api_key': ['{}']}}", '{{"api_key": ["k1", "{}"]}}', "x(api_key=['{}', 'k2'])",
)  # fmt: skip
SECRETS: list[Any] = [
    *({name: SECRET} for name in NAMES),
    *({"deep": [[{"text": text.format(SECRET)}]]} for text in TEXTS),
    {"argv": ["--api-key", SECRET]}, {"argv": ("--api_key=" + SECRET,)}, {"argv": ["--api-key", [SECRET]]},
    {"argv": ["--api-key", "k1", SECRET, "--port", "1"]},
    {"env": [f"HF_TOKEN={SECRET}"]}, {"token": {"a": SECRET}}, {f"http://me:{SECRET}@h": 1},
]  # fmt: skip


@pytest.mark.parametrize("info", SECRETS)
def test_secrets_are_taken_out(info: dict[str, Any]) -> None:
    """55 of about 100 such forms went into the stored evidence."""
    text = json.dumps(redacted(info))
    assert SECRET not in text
    assert HIDDEN in text


def test_numbers_under_a_secret_name_are_secrets() -> None:
    assert redacted({"argv": ["--api-key", 12345], "token": 6}) == {"argv": ["--api-key", HIDDEN], "token": HIDDEN}


PIECES = ("a", "a=b:", "x=", "--a ", "eyJ-", "eyJaaaaaaaaaa.", "http://", "a://b", 'api_key="', "-u a", "key ",
          "bearer ", "-----BEGIN PRIVATE KEY-----", "\\", "api_key=[", "--api-key a ",
          "hf_")  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_taking_secrets_out_takes_linear_time(piece: str) -> None:
    started = time.monotonic()
    clean_text(piece * (100_000 // len(piece)))
    assert time.monotonic() - started < 5


def test_what_is_no_secret_stays() -> None:
    info = {"max_total_tokens": 5, "speculative_token_map": "m", "tokenizer_path": "t", "port": 1, "api_key": None,
            "speculative_num_draft_tokens": 4, "launch_command": "x --max-total-tokens 5 --tokenizer-path t a=b",
            "eos_token": "</s>", "stop_token_ids": [1], "monkey": "m", "author": "a", "key": "k", "enable_auth": False,
            "ssl_certfile": "/c", "address": "http://h:1/x?a=1", "hf_overrides": {"a": 1}, "time_to_first_token": 0.5,
            "text": "hf_transfer, hf_overrides; --user 1000:1000; api_key=None, 'hf_token': null; prompt_token: 5",
            "argv": ["--api-key", None, "--port", "1"]}  # fmt: skip
    assert redacted(info) == info

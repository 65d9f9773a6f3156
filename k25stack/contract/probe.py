"""Ask a running server real prompts and keep raw counters and outputs, request by request.

Counters come from each reply where the engine puts them there, else from the difference of its metrics around one
request at a time (vLLM).  Rounds cut by the end of a response are taken out.  ``/server_info`` is never asked for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from k25stack import engines
from k25stack.bench.prompts import PromptSet, from_samples, questions
from k25stack.engines.cut import missing_tokens, split_cut
from k25stack.engines.info import HIDDEN, PATHS, ServerFacts, clean_text, facts_of
from k25stack.engines.native import as_openai, native_request
from k25stack.engines.protocol import Counters
from k25stack.errors import HostError, UsageError
from k25stack.speculation import RoundCounts

if TYPE_CHECKING:
    import aiohttp

    from k25stack.bench.client import Client
    from k25stack.bench.records import Prompt

MAX_TOKENS = 256
UNCOUNTED = 8  # requests to a server without speculative counters, or failed ones in a row
MIN_WAIT_S = 60.0  # for a reply, beyond the time that was given to the whole
SETTLE_S = 0.05  # between two readings of metrics that must agree before a request counts as over
SETTLES = 40  # readings after which they are said to be moved by other requests
SLACK_TOKENS = 16  # by which metrics may count more tokens than a reply holds before it was not alone


@dataclass(frozen=True)
class Ask:
    """How much to ask."""

    samples: Path | None = None  # held-out rows; None: the shipped questions
    target: Path | None = None  # its tokenizer turns questions into ids, so that outputs can be re-scored
    max_tokens: int | None = None
    rounds: int = 1500  # stop when so many complete rounds were seen
    seconds: float = 300.0  # or when this time is over
    concurrency: int = 4


@dataclass(frozen=True)
class Answer:
    """One request: token ids where the server gives them, and its rounds where the engine counts them."""

    key: str
    cluster: str
    prompt_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...] | None
    finish: str | None
    rounds: RoundCounts | None


@dataclass(frozen=True)
class Probe:
    """What a server answered."""

    engine: str
    model: str
    facts: ServerFacts
    answers: tuple[Answer, ...] = ()
    errors: tuple[str, ...] = ()
    recorded: bool = False  # the prompts are those of a prediction
    decode: dict[str, Any] = field(default_factory=dict)
    disturbed: int = 0  # requests that could not be counted, since others ran beside them
    mode: dict[str, Any] = field(default_factory=dict)  # decode mode of the recorded answers
    models: int = 1  # that the server lists; the first one was asked
    root: str | None = None  # where the server says that its target lies
    silent: int = 0  # failed requests at the end, none answered after them

    @property
    def per_prompt(self) -> list[RoundCounts]:
        """Rounds by prompt, all turns of one together; only requests that were counted."""
        found: dict[str, RoundCounts] = {}
        for answer in self.answers:
            if answer.rounds is not None:
                found[answer.cluster] = (
                    found[answer.cluster] + answer.rounds if answer.cluster in found else answer.rounds
                )
        return list(found.values())

    def total(self) -> RoundCounts | None:
        """All complete rounds; None when the server does not speculate or does not count."""
        rounds = self.per_prompt
        return sum(rounds[1:], rounds[0]) if rounds else None


def prompts_for(ask: Ask) -> PromptSet:
    """Held-out rows, or the shipped questions, as token ids where the target's tokenizer is at hand."""
    if ask.samples is not None:
        return from_samples(ask.samples, "held_out")
    found = questions()
    if ask.target is None or ask.target.is_file():  # a config alone has no tokenizer
        return found
    from dataclasses import replace

    from k25stack.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(ask.target)
    rendered = [
        replace(prompt, ids=tuple(tokenizer.ids_of_chat([dict(message) for message in prompt.messages])), messages=())
        for prompt in found.prompts
    ]
    return replace(found, prompts=tuple(rendered))


def probe(url: str, ask: Ask, prompts: PromptSet) -> Probe:
    """Find out what the server is and ask it.

    Raises HostError when nobody answers, UsageError for no known engine; neither repeats a key or a login.
    """
    from k25stack.bench.ondemand import detect

    base = require_url(url)
    try:
        return asyncio.run(_Prober(base, detect(base), ask).run(prompts))
    except (HostError, UsageError) as error:
        raise type(error)(scrubbed(error.what), where=scrubbed(error.where), remedy=error.remedy) from None


def scrubbed(text: str) -> str:
    """A server's or a library's text without secrets, the key that we send included."""
    key = os.environ.get("K25_API_KEY")
    return clean_text(text.replace(key, HIDDEN) if key else text)


class _Prober:
    def __init__(self, url: str, name: str, ask: Ask) -> None:
        self.url, self.engine, self.ask = url, engines.get(name), ask
        self.silent = 0  # failed requests in a row
        self.answers: list[Answer] = []
        self.errors: list[str] = []
        self.seen = self.disturbed = 0
        self.until = time.monotonic() + ask.seconds

    async def run(self, prompts: PromptSet) -> Probe:
        from k25stack.bench.client import Client, session

        async with session() as connections:
            client = Client(self.url, connections, self.engine.request_counters)
            models = await client.models(self.engine.models_path)
            if not models:
                raise HostError("the server lists no model", where=self.url, remedy="see its log")
            model, facts = str(models[0].get("id")), await self.facts(client)
            before = await self.metrics(client)
            alone = before.verify_calls is not None and self.engine.name == "vllm"
            tokens = self.ask.max_tokens or prompts.max_tokens or MAX_TOKENS
            queue = list(prompts.prompts)
            slots = 1 if alone else self.ask.concurrency

            async def slot() -> None:
                while queue and self.more() and time.monotonic() < self.until:
                    await self.one(client, queue.pop(0), model, tokens, alone)

            await asyncio.gather(*(slot() for _ in range(slots)))
        root = models[0].get("root")
        return Probe(
            engine=self.engine.name,
            model=model,
            facts=facts,
            answers=tuple(self.answers),
            errors=tuple(self.errors),
            recorded=self.ask.samples is not None,
            decode={"temperature": 0.0, "max_tokens": tokens},
            disturbed=self.disturbed,
            mode=prompts.decode,
            models=len(models),
            root=facts.model or (root if isinstance(root, str) else None),
            silent=self.silent,
        )

    def more(self) -> bool:
        """Whether another request tells anything: one that does not speculate, or answers nothing, is asked a few."""
        if self.silent >= UNCOUNTED:
            return False
        counted = any(answer.rounds is not None for answer in self.answers)
        return self.seen < self.ask.rounds if counted else len(self.answers) < UNCOUNTED

    async def facts(self, client: Client) -> ServerFacts:
        """What the server says of itself; empty where it says nothing."""
        for path in PATHS[self.engine.name]:
            try:
                info = json.loads(await client.text(path))
            except (HostError, ValueError, RecursionError):
                continue
            if isinstance(info, dict):
                return facts_of(self.engine.name, info)
        return ServerFacts()

    async def metrics(self, client: Client) -> Counters:
        return self.engine.counters(await client.text(self.engine.metrics_path))

    async def settled(self, client: Client) -> Counters | None:
        """Metrics that no longer change: engines add them up a moment after the reply.

        None where they do not come to rest, since others use the server.
        """
        last = await self.metrics(client)
        for _ in range(SETTLES):
            await asyncio.sleep(SETTLE_S)
            now = await self.metrics(client)
            if now == last:
                return now
            last = now
        return None

    async def one(self, client: Client, prompt: Prompt, model: str, tokens: int, alone: bool) -> None:
        try:
            before = await self.settled(client) if alone else None
            reply = await self.post(client.session, prompt, model, tokens)
            choice, completion = read(reply)
            rounds = self.engine.request_counters(reply)
            if alone:
                rounds = self.counted(before, before and await self.settled(client), completion)
        except (OSError, ValueError, TimeoutError, RecursionError, UsageError, HostError) as error:
            self.errors.append(f"{prompt.key}: {scrubbed(str(error)) or type(error).__name__}")
            self.silent += 1
            return
        self.silent = 0
        self.seen += rounds.verify_calls if rounds else 0
        ids, text, finish = choice["token_ids"], choice["text"], choice["finish_reason"]
        self.answers.append(Answer(prompt.key, prompt.cluster, prompt.ids, text, ids, finish, rounds))

    def counted(self, before: Counters | None, after: Counters | None, completion: int | None) -> RoundCounts | None:
        """Rounds of one request from the metrics around it; None where others ran beside it.

        Raises UsageError when the counters contradict each other or go backwards.
        """
        difference = after.since(before) if before and after else None
        if difference is None or difference.generated_tokens > (completion or 0) + SLACK_TOKENS:
            self.disturbed += 1
            return None
        return from_metrics(difference, completion)

    async def post(self, connections: aiohttp.ClientSession, prompt: Prompt, model: str, tokens: int) -> dict[str, Any]:
        import aiohttp

        from k25stack.bench.client import whole_body

        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0.0, "return_token_ids": True}
        body |= self.engine.request_options()
        body |= {"prompt": list(prompt.ids)} if prompt.ids else {"messages": [dict(one) for one in prompt.messages]}
        path = "/v1/completions" if prompt.ids else "/v1/chat/completions"
        native = native_request(self.engine.name, prompt.ids, tokens)
        if native is not None:
            path, body = native
        limit = aiohttp.ClientTimeout(total=max(MIN_WAIT_S, self.until - time.monotonic() + MIN_WAIT_S))
        try:
            async with connections.post(self.url + path, json=body, timeout=limit) as response:
                text = await whole_body(response)
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from None
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {text.strip()[:160]}")
        reply = json.loads(text)
        if not isinstance(reply, dict):
            raise ValueError("the answer is no JSON object")
        return reply if native is None else as_openai(reply)


def read(reply: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The first choice (text, token_ids, finish_reason) and how many tokens were made.

    Raises ValueError when the reply is not of the protocol's shape.
    """
    choices, usage = reply.get("choices"), reply.get("usage")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise ValueError("no choice in the answer")
    message = choice.get("message")
    text = choice.get("text") or (message.get("content") if isinstance(message, dict) else None)
    ids = choice.get("token_ids")
    if ids is not None and not (isinstance(ids, list) and all(type(token) is int for token in ids)):
        raise ValueError("token_ids that are no list of whole numbers")
    made = usage.get("completion_tokens") if isinstance(usage, dict) else None
    finish = choice.get("finish_reason")
    found = {
        "text": text if isinstance(text, str) else "",
        "token_ids": tuple(ids) if ids else None,
        "finish_reason": finish if isinstance(finish, str) else None,
    }
    return found, made if type(made) is int and made >= 0 else None


def from_metrics(difference: Counters, completion: int | None) -> RoundCounts | None:
    """Rounds of one request from the metrics around it, its cut round taken out."""
    whole = difference.rounds()
    if whole is None or not whole.verify_calls:
        return whole
    k = whole.proposed // whole.verify_calls
    return split_cut(whole, k, 0 if completion is None else missing_tokens(whole, completion))


def served_k(rounds: RoundCounts) -> int:
    """Draft tokens per round; some rounds at the end of the context propose fewer."""
    return round(rounds.proposed / rounds.verify_calls) if rounds.verify_calls else 0


def require_url(text: str) -> str:
    """The server's address, without the /v1 of its OpenAI routes.  Raises UsageError for what is no http address."""
    try:
        parts = urlsplit(text)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        right = right and not parts.query and not parts.fragment
    except ValueError:  # a port beyond 65,535, half a bracket
        right = False
    if not right:
        raise UsageError("not an http address", where=clean_text(text), remedy="as http://127.0.0.1:30000")
    if parts.username is not None and "K25_API_KEY" in os.environ:
        remedy = "take the login out of the address, or unset K25_API_KEY: one of them can be sent"
        raise UsageError("a login and a key", where=clean_text(text), remedy=remedy)
    return text.rstrip("/").removesuffix("/v1").rstrip("/")

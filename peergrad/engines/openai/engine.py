"""A model behind an OpenAI-compatible API, as a sampler (docs/reference/openai.md)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.debate.quote import only_text
from peergrad.debate.sampler import Answer, Likely, all_of
from peergrad.debate.types import Ask, Reply
from peergrad.engines.base import ApiConfig, EngineConfig, Meter, OnText, no_logprobs
from peergrad.engines.openai import requests
from peergrad.engines.openai.completions import Completion, ListenerError, ReplyStream, cut, open_section
from peergrad.engines.openai.requests import ErrorResponse, RejectedRequest, RetryableError, error_for
from peergrad.engines.shared.servers import Secrets, host, service_address, service_key

T = TypeVar("T")

OPENAI = "https://api.openai.com/v1"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_ANSWER_BYTES, _TOKEN_BYTES = 2**20, 4096  # of an answer besides its tokens, and for each token
_REPLY_CHARS, _TOKEN_CHARS = 65_536, 512  # of a reply: what a server that counts otherwise may give more, and for each token
_FIRST_ATTEMPTS = 3  # with a server that has never answered


class Api:
    """A sampler that answers asks by requests to a server, each by itself: a slow one holds up its own debate only.

    Give it to ``play_all`` as it is, without a ``Batcher``. It belongs to one event loop. ``on_text`` is told of replies as
    they come in; what is spent is in ``meter``, which several engines may share. ``tokens`` keeps token ids and
    log-probabilities: the server must give those of the distribution it samples from (docs/reference/openai.md).

    Example: ``async with Api(EngineConfig(model="gpt-x")) as api: await play_all(Parallel(), questions, api)``
    """

    def __init__(
        self,
        engine: EngineConfig,
        config: ApiConfig | None = None,
        *,
        seed: int = 0,
        tokens: bool = False,
        meter: Meter | None = None,
        on_text: OnText | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.config = config = config or ApiConfig()
        self.meter = meter or Meter()
        if not engine.model.strip():
            raise UserError("model: is empty; give the name the server knows it by")
        if self.meter.budget_usd and not (config.price_in or config.price_out):
            raise UserError("budget_usd: needs to know what tokens cost; give price_in and price_out")
        url = service_address(engine.base_url, "OPENAI_BASE_URL", OPENAI, environ)
        self.server = f"{engine.model} at {host(url)}"
        self._model, self._deadline_s, self._seed, self._tokens = engine.model, engine.deadline_s, seed, tokens
        required = config.key_env != ApiConfig.key_env or host(url) == host(OPENAI)  # a server of one's own may need none
        hint = ": there are spaces, line ends or odd characters in it"
        key = service_key(config.key_env, url, environ, r"[\x21-\x7e]+", hint, required=required)
        headers = _headers(url, environ)
        self._secrets = Secrets([key or "", *headers.values()])
        self._secrets.guard_logs()
        self._client = _client(config, url, {"Authorization": f"Bearer {key or 'none'}"} | headers)
        self._limit = requests.ConcurrencyLimit(config.max_concurrent)
        self._on_text = on_text
        self._refused: set[str] = set()  # fields of a request that the server does not take
        self._keeps_stop = False  # whether the server was seen to leave a stop text in a reply
        self._answered = False
        self._likely = False  # whether the server was seen to give log-probabilities
        self._counts = False  # whether the server was seen to count tokens
        self._halted: str | None = None

    def __repr__(self) -> str:
        return f"Api({self.server})"

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()
        self._secrets.leave_logs()

    async def sampler_with(self, checkpoint: Path | None) -> Api:
        """Itself: a server has no checkpoints of ours."""
        assert checkpoint is None
        return self

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return await all_of([self._answer(ask, self._ask) for ask in asks])

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> Sequence[Likely | EngineError]:
        """How likely each option is as the reply to each ask, by the likeliest tokens that it may begin with."""
        return await all_of([self._answer(ask, lambda ask: self._choose(ask, options)) for ask in asks])

    async def _answer(self, ask: Ask, answer: Callable[[Ask], Awaitable[T]]) -> T | EngineError:
        async with self._limit.slot(ask.seen):
            try:
                return await answer(ask)
            except ListenerError as error:
                raise error.__cause__ or error from None
            except UserError as error:
                raise UserError(self._secrets.exact(str(error))) from None
            except EngineError as error:
                if isinstance(error, Halted) and not self.meter.halted:
                    self._halted = str(error)
                return type(error)(self._secrets.exact(str(error)))
            except Exception as error:  # the client's own, or ours: no cause is passed on, it may hold headers
                return EngineError(f"{self.server}: {type(error).__name__}: {self._secrets.quoted(str(error))}")

    async def _ask(self, ask: Ask) -> Reply:
        """Send requests until one is answered in a way that can be read for certain."""
        until = time.monotonic() + self._deadline_s
        stream = ReplyStream(ask, self._on_text, self._secrets) if self._on_text else None
        while True:
            completion, stops_sent = await self._complete(ask, until, stream, tokens=self._tokens)
            reply = self._read(ask, completion, stops_sent=stops_sent)
            if reply is None:
                self._refused |= requests.STOPS
                continue
            if stream:
                stream.finish(reply.text)
            return reply

    async def _choose(self, ask: Ask, options: Sequence[str]) -> Likely:
        # Some servers give log-probabilities before the temperature divides them, others after it: at 1 both are the same.
        first_token = replace(ask, max_tokens=1, temperature=1.0, stop=())
        completion, _ = await self._complete(first_token, time.monotonic() + self._deadline_s, likeliest=True)
        if not completion.likeliest:
            # One answer without them, as of a filter, costs itself alone once others had them.
            raise EngineError(f"{self.server} gave no log-probabilities") if self._likely else no_logprobs(self.server)
        self._likely = True
        shares = completion.likely(options)
        if not sum(shares):
            raise EngineError(f"{self.server} would say none of {', '.join(options)}: no likely first word is one of them")
        return Likely(tuple(share / sum(shares) for share in shares), completion.usage.prompt if completion.usage else 0)

    async def _complete(
        self, ask: Ask, until: float, stream: ReplyStream | None = None, **asks_for: bool
    ) -> tuple[Completion, bool]:
        """The completion of an ask, and whether stop texts were sent with it. Learns what the server takes."""
        while True:
            if why := self._halted or self.meter.halted:
                raise Halted(why)
            sends = {"temperature": self.config.send_temperature, "stream": stream is not None} | asks_for
            body = requests.request_body(ask, self._model, self._seed, self._refused, **sends)
            try:
                completion = await self._retry(body, stream, until)
            except RejectedRequest as error:
                refused = requests.refused_fields(body, error)
                if not refused and self._answered:  # others were answered: it is this request
                    raise EngineError(f"{self.server} refuses this request ({error})") from None
                if not refused:
                    raise UserError(f"{self.server} refuses the first request ({error}); correct the settings") from None
                self._refused |= refused
                continue
            self._count(completion)
            return completion, "stop" in body

    def _count(self, completion: Completion) -> None:
        self._answered = True
        self._counts |= completion.usage is not None
        self.meter.add(completion.usage, self.config.price_in, self.config.price_out)
        if completion.usage is None and (self.meter.budget_tokens or self.meter.budget_usd):
            why = f"budget: {self.server} does not say how many tokens it used, so no budget can be kept to"
            raise EngineError(why) if self._counts else UserError(why)

    def _read(self, ask: Ask, completion: Completion, *, stops_sent: bool) -> Reply | None:
        """The reply with its stop text (SPEC 3.11); ``None`` if the server may have cut one off, and is to be sent none."""
        if len(completion.text) > _REPLY_CHARS + _TOKEN_CHARS * ask.max_tokens:
            raise EngineError(f"{self.server} gave a reply much longer than the {ask.max_tokens} tokens it was asked for")
        text, truncated = self._secrets.hide(completion.text), False
        if (until_stop := cut(text, ask.stop)) is not None:
            self._keeps_stop |= stops_sent
            text = until_stop
        elif not stops_sent or completion.finish not in ("stop", None):
            truncated = completion.finish == "length"
        elif completion.stop_text in ask.stop:
            if not text and completion.reasoned:  # it stopped in the middle of its reasoning, which is no reply
                return None
            text += completion.stop_text
        elif not (completion.names_stop or self._keeps_stop):  # else the model ended without it
            if self.config.stops == "exact":
                return None
            text += next((stop for stop in ask.stop if open_section(text, stop)), "")
        tokens = completion.tokens(ask, only_text(text)) if self._tokens else None
        return Reply(text, truncated, tokens, completion.usage)

    async def _retry(self, body: Mapping[str, Any], stream: ReplyStream | None, until: float) -> Completion:
        """Send a request, and again while that may help. That a server is busy is no failure: only the deadline ends it."""
        busy = failed = 0
        while True:
            started = asyncio.get_running_loop().time()
            try:
                completion = await self._send(body, stream, until)
            except RetryableError as error:
                if error.busy:
                    self._limit.lower_limit(started)
                busy, failed = busy + error.busy, failed + (not error.busy)
                wait_s = _wait_s(error.retry_after_s, busy if error.busy else failed)
                wrong = error.wrong_server and not self._answered
                attempts = min(self.config.retries + 1, _FIRST_ATTEMPTS if wrong else math.inf)
                if failed >= attempts or time.monotonic() + wait_s >= until:
                    if wrong:
                        raise UserError(f"base_url: {error}; start the server, or correct the address") from None
                    asks = f"; it asks to wait {error.retry_after_s:g} s" if error.retry_after_s else ""
                    raise EngineError(f"{error}{asks}; given up after {busy + failed} attempts") from None
            else:
                self._limit.raise_limit()
                return completion
            await asyncio.sleep(wait_s)

    async def _send(self, body: Mapping[str, Any], stream: ReplyStream | None, until: float) -> Completion:
        seconds = max(0.0, min(self.config.timeout_s, until - time.monotonic()))
        quoted = self._secrets.quoted
        if stream:
            stream.restart()
        try:
            # The time-out is over all of it: one per read lets a body drip for ever.
            async with asyncio.timeout(seconds), self._client.stream("POST", "chat/completions", json=body) as response:
                return await _completion(response, stream, _most_bytes(body))
        except EngineError as error:
            raise EngineError(f"{self.server} gave {error}") from None
        except TimeoutError:
            raise RetryableError(f"{self.server} gave no whole answer within {seconds:g} s") from None
        except ErrorResponse as error:
            key_env = self.config.key_env
            raise error_for(error, self.server, key_env, quoted, answered=self._answered) from None
        except httpx2.TransportError as error:
            why = f"{type(error).__name__}: {quoted(str(error))}"
            wrong = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProtocolError)
            message = f"{self.server} can't be reached ({why}){self._hint(error)}"
            raise RetryableError(message, wrong_server=wrong) from None
        except (httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError) as error:  # no JSON, cut off, not UTF-8
            raise RetryableError(f"{self.server} sent a broken answer ({type(error).__name__})", wrong_server=True) from None
        except RetryableError as error:
            raise RetryableError(f"{self.server}: {quoted(str(error))}", wrong_server=error.wrong_server) from None

    def _hint(self, error: Exception) -> str:
        """Each of http and https, said to a server of the other, fails in its own way."""
        likely = isinstance(error, httpx2.ConnectTimeout | httpx2.ProtocolError) or "SSL" in str(error).upper()
        return f"; is it {self._client.base_url.scheme} that this server speaks?" if likely and not self._answered else ""


def _most_bytes(body: Mapping[str, Any]) -> int:
    """The most that an answer to a request may have: its tokens with all that is said of each, and the prompt's ids."""
    sampled = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    return _ANSWER_BYTES + _TOKEN_BYTES * sampled + 16 * sum(len(message["content"]) for message in body["messages"])


async def _bounded(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """A response as it comes in, up to so many bytes. An answer that has more is refused, an error with more cut short."""
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            if response.is_success:
                raise EngineError(f"an answer of more than {most} bytes, which is more than was asked for")
            return
        yield part


async def _lines(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    rest = b""
    async for part in _bounded(response, most):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    yield rest


async def _completion(response: httpx2.Response, stream: ReplyStream | None, most: int) -> Completion:
    """The completion in a response, as it comes in if there is a stream to tell. Raises ``ErrorResponse`` if it has none."""
    completion, kind = Completion(), response.headers.get("content-type", "no content-type")
    if stream and response.is_success and not re.search("json|html", kind):  # else it is a server that does not stream
        async for line in _lines(response, most):
            field, _, event = line.partition(b":")
            if field == b"data" and event.strip() != b"[DONE]":
                stream.add(completion.add(json.loads(event)))
        completion.check_whole(stream=True)
        return completion
    content = b"".join([part async for part in _bounded(response, most)])
    text = content[:20_000].decode("utf-8", "replace")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not response.is_success:
        raise ErrorResponse(response.status_code, text if body is None else body, response.headers)
    try:
        if body is None:
            raise RetryableError("no answer in JSON", wrong_server=True)
        completion.add(body)
        completion.check_whole(stream=False)
        return completion
    except RetryableError as error:
        if not error.wrong_server:
            raise
        raise RetryableError(f"{error}, but {f'{kind}: {text}' if text else 'nothing'}", wrong_server=True) from None


def _wait_s(retry_after_s: float | None, times: int) -> float:
    """How long until the next attempt: twice as long each time, no less than the server says, never all at one moment."""
    longer = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(times - 1, 10)) * random.uniform(0.5, 1)
    return max(longer, (retry_after_s or 0.0) * random.uniform(1, 1.1))


def _headers(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers in OPENAI_CUSTOM_HEADERS, a line ``Name: value`` each, and for OpenAI the account's parts."""
    lines = [line.partition(":") for line in environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")]
    headers = {name.strip(): value.strip() for name, colon, value in lines if colon}
    account = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
    if host(url) == host(OPENAI):
        headers |= {name: environ[variable] for name, variable in account.items() if environ.get(variable)}
    return headers


def _client(config: ApiConfig, url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=config.max_concurrent, max_keepalive_connections=config.max_concurrent)
    timeout = httpx2.Timeout(config.timeout_s, connect=min(10.0, config.timeout_s))
    try:
        return httpx2.AsyncClient(base_url=url, headers=headers, follow_redirects=False, limits=limits, timeout=timeout)
    except (ImportError, ValueError):  # the proxies' addresses may hold passwords
        names = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"
        raise UserError(f"{names}: holds no proxy that can be used; give one as in http://host:port, or unset it") from None

"""A model behind an OpenAI-compatible API, as a sampler (docs/reference/openai.md)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.debate.sampler import Answer, all_of
from peergrad.debate.types import Ask, Reply
from peergrad.engines.openai.dialect import Dialect
from peergrad.engines.openai.faults import Again, Complained, Complaint, Refused, judged
from peergrad.engines.openai.hearing import Deaf, Hear, Hearing
from peergrad.engines.openai.replies import Said, cut, open_section, reply
from peergrad.engines.openai.rules import OPENAI, ApiRules, address, key
from peergrad.engines.openai.slots import Slots
from peergrad.engines.shared.addresses import host
from peergrad.engines.shared.meter import Meter
from peergrad.engines.shared.secrets import Secrets

_PATH = "/chat/completions"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_KNOCKS = 3  # how often a server that has never answered is tried


class Api:
    """Answers asks by requests to a server, so many at a time, each ask by itself: a slow one holds up its own debate only.

    Give it to ``play_all`` as it is, without a ``Batcher``. It belongs to one event loop. ``hear`` is told of replies as
    they come in; what is spent is in ``meter``, which several engines may share.

    Example: ``async with Api(ApiRules(model="gpt-x")) as api: await play_all(Parallel(), questions, api)``
    """

    def __init__(
        self,
        rules: ApiRules,
        *,
        meter: Meter | None = None,
        hear: Hear | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.rules = rules
        self.meter = meter or Meter()
        if self.meter.in_money and not (rules.price_in or rules.price_out):
            raise UserError("budget_usd: needs to know what tokens cost; give price_in and price_out")
        url, secret = address(rules, environ), key(rules, environ)
        self.server = f"{rules.model} at {host(url)}"
        headers = environ.get("OPENAI_CUSTOM_HEADERS", "")
        self._secrets = Secrets([secret or "", *(line.partition(":")[2].strip() for line in headers.split("\n"))])
        self._secrets.guard_logs()
        self._client = _client(rules, url, secret)
        self._slots = Slots(rules.max_concurrent)
        self._hear = hear
        self._dialect = Dialect()
        self._keeps_stop = False  # whether the server was seen to leave a stop text in a reply
        self._answered = False
        self._counts = False  # whether the server was seen to count tokens
        self._halted: str | None = None

    def __repr__(self) -> str:
        return f"Api({self.server})"

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        self._secrets.leave_logs()

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return await all_of([self._answer(ask) for ask in asks])

    async def _answer(self, ask: Ask) -> Answer:
        async with self._slots.held(ask.seen):
            try:
                return await self._ask(ask)
            except Deaf as error:  # the listener's own fault
                raise error.cause from None
            except UserError as error:
                raise UserError(self._secrets.exact(str(error))) from None
            except EngineError as error:
                if isinstance(error, Halted) and not self.meter.halted:
                    self._halted = str(error)
                return type(error)(self._secrets.exact(str(error)))
            except Exception as error:  # the client's own, or ours: no cause is passed on, it may hold headers
                return EngineError(f"{self.server}: {type(error).__name__}: {self._secrets.quoted(str(error))}")

    async def _ask(self, ask: Ask) -> Reply:
        """Ask until it is answered in a way that can be read for certain, learning what the server takes."""
        until = time.monotonic() + self.rules.deadline_s
        hearing = Hearing(ask, self._hear, self._secrets) if self._hear else None
        while True:
            if why := self._halted or self.meter.halted:
                raise Halted(why)
            dialect = self._dialect
            body = dialect.request(ask, self.rules, stream=hearing is not None)
            try:
                said = await self._insist(body, hearing, until)
            except Refused as error:
                self._learn(error, dialect, body)
                continue
            self._count(said)
            found = self._read(ask, said, dialect)
            if found is None:
                self._dialect = replace(self._dialect, stop=False)
                continue
            if hearing:
                hearing.over(found.text)
            return found

    def _learn(self, error: Refused, dialect: Dialect, body: Mapping[str, Any]) -> None:
        other = dialect.without(body, error)
        if other is not None:
            self._dialect = self._dialect.both(other)
        elif self._answered:  # others were answered: it is this request
            raise EngineError(f"{self.server} refuses this request ({error})")
        else:
            raise UserError(f"{self.server} refuses the first request ({error}); correct the settings")

    def _count(self, said: Said) -> None:
        self._answered = True
        self._counts |= said.usage is not None
        self.meter.add(said.usage, self.rules.price_in, self.rules.price_out)
        if said.usage is None and self.meter.limited:
            why = f"budget: {self.server} does not say how many tokens it used, so no budget can be kept to"
            raise EngineError(why) if self._counts else UserError(why)

    def _read(self, ask: Ask, said: Said, dialect: Dialect) -> Reply | None:
        """The reply with its stop text (SPEC 3.11); ``None`` if the server may have cut one off, and is to be sent none."""
        text = self._secrets.hide(said.text)
        tokens = self.rules.tokens
        if (until_stop := cut(text, ask.stop)) is not None:
            self._keeps_stop |= dialect.stop
            return reply(said, ask, until_stop, truncated=False, tokens=tokens)
        if not dialect.stop or not ask.stop or said.finish not in ("stop", None):
            return reply(said, ask, text, truncated=said.finish == "length", tokens=tokens)
        if said.stopped_by in ask.stop:
            if not text and said.reasoned:  # it stopped in the middle of its reasoning, which is no reply
                return None
            return reply(said, ask, text + said.stopped_by, truncated=False, tokens=tokens)
        if said.says_stop or self._keeps_stop:  # then the model ended without it
            return reply(said, ask, text, truncated=False, tokens=tokens)
        if self.rules.stops == "exact":
            return None
        closing = next((stop for stop in ask.stop if open_section(text, stop)), "")
        return reply(said, ask, text + closing, truncated=False, tokens=tokens)

    async def _insist(self, body: Mapping[str, Any], hearing: Hearing | None, until: float) -> Said:
        """Send a request, and again while that may help. That a server is busy is no failure: only the deadline ends it."""
        busy = failed = 0

        def wait(state: RetryCallState) -> float:
            nonlocal busy, failed
            error = _again(state)
            busy, failed = busy + error.busy, failed + (not error.busy)
            return _wait(error.after_s, busy if error.busy else failed)

        def enough(state: RetryCallState) -> bool:
            stranger = _again(state).strange and not self._answered
            tries = min(self.rules.retries + 1, _KNOCKS if stranger else self.rules.retries + 1)
            return failed >= tries or time.monotonic() + state.upcoming_sleep >= until

        retrying = AsyncRetrying(retry=retry_if_exception_type(Again), wait=wait, stop=enough, reraise=True)
        try:
            return await retrying(self._paced, body, hearing, until)
        except Again as error:
            if error.strange and not self._answered:
                raise UserError(f"base_url: {error}; start the server, or correct the address") from None
            asks = f"; it asks to wait {error.after_s:g} s" if error.after_s else ""
            raise EngineError(f"{error}{asks}; given up after {retrying.statistics['attempt_number']} attempts") from None

    async def _paced(self, body: Mapping[str, Any], hearing: Hearing | None, until: float) -> Said:
        """One attempt, by which the number of requests at a time settles at what the server bears."""
        begun = asyncio.get_running_loop().time()
        try:
            said = await self._once(body, hearing, until)
        except Again as error:
            if error.busy:
                self._slots.fewer(begun)
            raise
        self._slots.more()
        return said

    async def _once(self, body: Mapping[str, Any], hearing: Hearing | None, until: float) -> Said:
        seconds = max(0.0, min(self.rules.timeout_s, until - time.monotonic()))
        quoted = self._secrets.quoted
        if hearing:
            hearing.again()
        try:
            async with asyncio.timeout(seconds):  # over all of it: a time-out per read lets a body drip for ever
                return await (self._streamed(body, hearing) if hearing else self._whole(body))
        except TimeoutError:
            raise Again(f"{self.server} gave no whole answer within {seconds:g} s") from None
        except openai.APIStatusError as error:
            raise self._judged(Complaint(error.status_code, error.body, error.response.headers)) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            why = f"{type(cause).__name__}: {quoted(str(cause))}"
            strange = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProtocolError)
            raise Again(f"{self.server} can't be reached ({why}){self._hint(cause)}", strange=strange) from None
        except openai.APIError as error:  # within a stream
            raise self._judged(Complaint.instead(error.body)) from None
        except Complained as error:
            raise self._judged(error.complaint) from None
        except (httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError) as error:  # no JSON, cut off, not UTF-8
            raise Again(f"{self.server} sent a broken answer ({type(error).__name__})", strange=True) from None
        except Again as error:
            raise Again(f"{self.server}: {quoted(str(error))}", strange=error.strange) from None

    def _judged(self, complaint: Complaint) -> Exception:
        return judged(complaint, self.server, self.rules.key_env, self._secrets.quoted, answered=self._answered)

    def _hint(self, cause: BaseException) -> str:
        """Each of http and https, said to a server of the other, fails in its own way."""
        likely = isinstance(cause, httpx2.ConnectTimeout | httpx2.ProtocolError) or "SSL" in str(cause).upper()
        return f"; is it {self._client.base_url.scheme} that this server speaks?" if likely and not self._answered else ""

    async def _whole(self, body: Mapping[str, Any]) -> Said:
        return _said(await self._client.post(_PATH, cast_to=httpx2.Response, body=body))

    async def _streamed(self, body: Mapping[str, Any], hearing: Hearing) -> Said:
        said = Said()
        pieces = openai.AsyncStream[object]
        async with await self._client.post(_PATH, cast_to=object, body=body, stream=True, stream_cls=pieces) as stream:
            if re.search("json|html", stream.response.headers.get("content-type", "")):  # a server that does not stream
                await stream.response.aread()
                return _said(stream.response)
            async for piece in stream:
                hearing.more(said.add(piece))
        return said.checked(stream=True)


def _said(response: httpx2.Response) -> Said:
    said = Said()
    try:
        said.add(json.loads(response.content))
        return said.checked(stream=False)
    except (ValueError, RecursionError):
        why = "no answer in JSON"
    except Again as error:
        if not error.strange:
            raise
        why = str(error)
    kind = response.headers.get("content-type", "no content-type")
    words = response.content[:20_000].decode("utf-8", "replace")
    raise Again(f"{why}, but {kind}: {words}" if words else f"{why}, but nothing", strange=True)


def _again(state: RetryCallState) -> Again:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Again)
    return error


def _wait(after_s: float | None, times: int) -> float:
    """How long until the next attempt: twice as long each time, no less than the server says, never all at one moment."""
    longer = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(times - 1, 10)) * random.uniform(0.5, 1)
    return max(longer, (after_s or 0.0) * random.uniform(1, 1.1))


def _client(rules: ApiRules, url: str, secret: str | None) -> openai.AsyncOpenAI:
    """The official client, without what it would do by itself: retry, follow redirections, send other keys it finds."""
    limits = httpx2.Limits(max_connections=rules.max_concurrent, max_keepalive_connections=rules.max_concurrent)
    timeout = httpx2.Timeout(rules.timeout_s, connect=min(10.0, rules.timeout_s))
    try:
        transport = openai.DefaultAsyncHttpxClient(follow_redirects=False, limits=limits, timeout=timeout)
    except (ImportError, ValueError):  # the proxies' addresses may hold passwords
        names = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"
        raise UserError(f"{names}: holds no proxy that can be used; give one as in http://host:port, or unset it") from None
    client = openai.AsyncOpenAI(
        api_key=secret or "none",
        admin_api_key="",
        base_url=url,
        timeout=timeout,
        max_retries=0,
        http_client=transport,
    )
    if host(url) != host(OPENAI):
        client.organization = client.project = None
    return client

"""Requests to a server: what is sent, how many are under way, and what a failed one means.

Servers differ in what they take; a field that one refuses is not sent to it again. A request that failed is retried, sent in
another way, given up together with its ask, or it stops the run.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.debate.types import Ask
from peergrad.engines.base import no_logprobs, seed_of

GAP_S = 0.001  # begun at one moment, requests would be answered at one moment, and the work on each wait for all others
_RAISE, _LOWER = 1.0, 0.7  # added to the limit by an answer, left of it by a refusal
_KEEP_STOP = {"include_stop_str_in_output": True, "no_stop_trim": True}  # vLLM's and SGLang's word for the same
# Nothing may stand between the model's distribution and the token drawn but the temperature (SPEC 6.7).
_TOKENS = {
    "logprobs": True,
    "return_token_ids": True,
    "return_prompt_token_ids": True,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
STOPS = {"stop", *_KEEP_STOP}
_OPTIONAL = {"max_tokens", "temperature", "seed", "stream_options", *STOPS}
_TOP, _FEWER = 20, 5  # likeliest tokens asked for, and from servers that do not give so many
_TINY = 0.001  # a temperature for servers that call 0 no temperature
# Words of a server that takes such a field, but not this value.
_OTHER_VALUE = re.compile(
    r"must be|should be|strictly|positive|greater than|less than|at (?:most|least)|between|range|m(?:in|ax)imum",
    re.IGNORECASE,
)
_RETRYABLE = (402, 408, 409, 423, 425, 429)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context[ _](?:length|window|size)|maximum (?:context|prompt|sequence)|max_model_len|"
    r"(?:prompt|input|request)[\w ]{0,20} too (?:long|large)|exceed_context",
    re.IGNORECASE,
)
_NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached")  # codes; the same words are said of limits per minute
_BUSY = (429, 503)
_RETRY_IN = re.compile(r"(?:retry|try again) (?:in|after) (\d{1,6}(?:\.\d{1,9})?) ?(ms|s|m|h)?(?![a-z])", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUOTES_US = re.compile(r"['\"]input['\"]\s*:.*", re.DOTALL)
_FLAGGED = re.compile(r"content[_ ]?(?:filter|policy)|moderation|flagged", re.IGNORECASE)


def request_body(
    ask: Ask,
    model: str,
    seed: int,
    refused: Set[str],
    *,
    temperature: bool,
    tokens: bool = False,
    stream: bool = False,
    likeliest: bool = False,
) -> dict[str, Any]:
    """The body of a request to a server that refused some fields. ``likeliest``: with the likeliest tokens of each place.

    Messages are sent as they are in the ask, so that what was said before stays a prefix.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.text} for message in ask.messages],
        "max_completion_tokens" if "max_tokens" in refused else "max_tokens": ask.max_tokens,
        "seed": seed_of(ask, seed),
    }
    if ask.stop:
        body |= {"stop": list(ask.stop)} | _KEEP_STOP
    if tokens:
        body |= _TOKENS
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body = {name: value for name, value in body.items() if name not in refused}
    if likeliest:
        body |= {"logprobs": True, "top_logprobs": _FEWER if "top_logprobs" in refused else _TOP}
    if temperature:
        body["temperature"] = max(ask.temperature, _TINY if "temperature" in refused else 0.0)
    return body


def refused_fields(body: Mapping[str, Any], rejected: RejectedRequest) -> set[str]:
    """The fields of a request that a server refused and that can be left out, or be sent in another way.

    Raises ``UserError`` where that would not be what was asked for.
    """
    named = {name for name in body if name in rejected.params or _names(rejected.diagnosis, name)}
    if "temperature" in named:
        _check_temperature(body["temperature"], rejected)
    if "top_logprobs" in body and ("logprobs" in rejected.diagnosis or named & {"logprobs", "top_logprobs"}):
        if body["top_logprobs"] == _FEWER or not _OTHER_VALUE.search(rejected.diagnosis):
            raise no_logprobs("this server", f" ({rejected})")
        return {"top_logprobs"}
    if named & _TOKENS.keys():
        raise UserError(f"tokens: this server gives no token ids and log-probabilities ({rejected}); leave tokens out")
    if named & _KEEP_STOP.keys():
        named = (named - {"stop"}) | _KEEP_STOP.keys()
    elif "stop" in named:
        named |= STOPS
    return named & _OPTIONAL


def _check_temperature(temperature: float, rejected: RejectedRequest) -> None:
    """Only a temperature of 0 may be sent as another. Any other is the person's to change."""
    if not _OTHER_VALUE.search(rejected.diagnosis):
        raise UserError(f"send_temperature: this model takes no temperature but its own ({rejected}); set it to false")
    if temperature > 0:
        raise UserError(f"temperature: this model does not take {temperature:g} ({rejected}); give one that it takes")


def _names(message: str, field: str) -> bool:
    """Whether a server's message names a field: quoted, or after a colon."""
    return re.search(rf"(?:['\"`]|: ?){re.escape(field)}\b", message) is not None


class ConcurrencyLimit:
    """A limit on the requests under way. Of those waiting, the one furthest in its debate goes first.

    First come, first served would begin every debate before it ended any, and a budget spent halfway would have bought
    nothing whole. A server that has too much to do gets fewer at a time, and more again as it answers.
    """

    def __init__(self, count: int) -> None:
        self._most, self._limit = count, float(count)
        self._under_way = 0
        self._lowered_at = 0.0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrival = itertools.count()
        self._last = 0.0

    @asynccontextmanager
    async def slot(self, seen: int) -> AsyncIterator[None]:
        """A slot, for an ask whose author has seen so many turns."""
        if self._under_way < int(self._limit):
            self._under_way += 1
        else:
            await self._wait(seen)
        try:
            now = asyncio.get_running_loop().time()
            self._last = max(now, self._last + GAP_S)
            if self._last > now:
                await asyncio.sleep(self._last - now)
            yield
        finally:
            self._release()

    def raise_limit(self) -> None:
        """A request was answered."""
        self._limit = min(self._most, self._limit + _RAISE)
        self._admit()

    def lower_limit(self, started: float) -> None:
        """A request begun at this moment met a busy server. Those begun before the limit was lowered say nothing new."""
        if started >= self._lowered_at:
            self._limit = max(1.0, self._limit * _LOWER)
            self._lowered_at = asyncio.get_running_loop().time()

    async def _wait(self, seen: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-seen, next(self._arrival), future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was handed a slot while it was being cancelled
                self._release()
            raise

    def _release(self) -> None:
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._under_way < int(self._limit):
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                self._under_way += 1
                future.set_result(None)


class RetryableError(Exception):
    """The same request may succeed later; after so many seconds, where the server said.

    ``busy``: the server is there and has too much to do. ``wrong_server``: it may not be the server that is meant at all.
    """

    def __init__(
        self, message: str, retry_after_s: float | None = None, *, busy: bool = False, wrong_server: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s, self.busy, self.wrong_server = retry_after_s, busy, wrong_server


class RejectedRequest(Exception):  # noqa: N818
    """The server does not take the request as it is."""

    def __init__(self, message: str, params: set[str], diagnosis: str) -> None:
        super().__init__(message)
        self.params, self.diagnosis = params, diagnosis


class ErrorResponse(Exception):  # noqa: N818
    """What a server sent instead of an answer: JSON, or else text.

    ``diagnosis`` has its codes and messages to judge by, without what is quoted of the request, which holds debaters' words.
    ``params`` are the fields of a request that it is about, as far as it names them apart.
    """

    def __init__(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers or {}
        inner = body.get("error") if isinstance(body, Mapping) else None
        fields = next((part for part in (inner, body) if isinstance(part, Mapping)), {})
        parts = [fields, *objects(fields.get("detail"))]  # some servers list single errors
        texts = [part.get(name) for part in parts for name in ("message", "msg", "detail", "error")]
        messages = [text for text in texts if isinstance(text, str) and text]
        plain = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
        self.message = "; ".join(messages) or plain
        self.codes = [part[name] for part in parts for name in ("code", "type") if isinstance(part.get(name), str)]
        self.diagnosis = "\n".join([*self.codes, *(_QUOTES_US.sub("", message) for message in messages)])
        places = [(part.get("param"), *(loc if isinstance(loc := part.get("loc"), list) else ())) for part in parts]
        self.params = {name for place in places for name in place if isinstance(name, str)}

    @staticmethod
    def within(error: object) -> ErrorResponse:
        """An error where an answer should be, in a body with a good status or in a stream."""
        code = error.get("code") if isinstance(error, Mapping) else None
        return ErrorResponse(code if isinstance(code, int) and 400 <= code < 600 else 502, error)

    @property
    def no_credit(self) -> bool:
        """Whether the account is empty. A server that says when to come back has a limit per minute or day."""
        return (self.status == 402 or bool(set(self.codes) & {*_NO_CREDIT})) and self.retry_after_s is None

    @property
    def retry_after_s(self) -> float | None:
        """How many seconds it asks to wait: in its headers, or else in its words."""
        if (seconds := retry_after(self.headers)) is not None:
            return seconds
        delay = _RETRY_IN.search(self.diagnosis)
        return float(delay[1]) * _UNITS[(delay[2] or "s").lower()] if delay else None


def error_for(
    response: ErrorResponse, server: str, key_env: str, quoted: Callable[[str], str], *, answered: bool
) -> Exception:
    """The exception for an error response of a server that has, or has not, answered other requests.

    ``server`` names model and host; ``quoted`` makes a server's words fit for a sentence.
    """
    status, diagnosis = response.status, response.diagnosis
    reason = f"{status}: {quoted(response.message)}"
    if response.no_credit:
        return Halted(f"{server}: the account has no credit left ({reason})")
    if status in _RETRYABLE or status >= 500:
        return RetryableError(f"{server} answered {reason}", response.retry_after_s, busy=status in _BUSY)
    if status == 401:
        return UserError(f"{key_env}: {server} does not accept the key ({status}); put the right one into the environment")
    if 300 <= status < 400:
        return UserError(f"base_url: {server} sends elsewhere{_target(response.headers)} ({status}); give that address")
    if status == 413 or _TOO_LONG.search(diagnosis):
        return EngineError(f"{server}: the dialogue does not fit the model's context ({reason})")
    if _FLAGGED.search(diagnosis):
        return EngineError(f"{server} refuses this prompt ({reason})")
    if "logprobs" in diagnosis:  # some models have none to give, which OpenAI answers with 403
        return RejectedRequest(reason, response.params, diagnosis)
    if status in (403, 404) and answered:  # a gate in front of the server, or one server of several
        return EngineError(f"{server} refuses this request ({reason})")
    if status == 404:
        return UserError(f"model: there is no {server} ({reason}); correct the model's name or base_url")
    if status == 403:
        return UserError(f"{key_env}: the key has no access to {server} ({reason})")
    return RejectedRequest(reason, response.params, diagnosis)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How many seconds a server asks to wait: Retry-After as seconds or as a date, or retry-after-ms."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _target(headers: Mapping[str, str]) -> str:
    """Where a redirection leads: scheme, host and port. A path may be a secret."""
    location = headers.get("location", "")
    try:
        parts = urlsplit(location)
        if parts.hostname:
            return f", to {parts.scheme or 'http'}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return ""
    return ", to another path of the same server" if location else ""


def objects(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list of JSON, if it is one."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []

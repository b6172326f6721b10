"""Waiting for a service: never without end, and with a sentence for whatever goes wrong.

The client by itself tries again for minutes when a server is gone, and waits for results without end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import tinker
from tinker.types import RequestErrorCategory

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.engines.shared.servers import TINKER_KEY, Secrets, host

T = TypeVar("T")

RESUMES = "the same command resumes the run"
_QUERY_S = 10.0  # for the answer to a short question
_CLOSE_S = 3.0  # for ending the session
_MOST_BYTES = 4 * 2**20  # of an answer to a short question
_HEALTH_S = 5.0  # how often a server is asked for its health while something is awaited
_PULSE_S = 5.0  # for its answer
_GONE_S = 30.0  # for how long it may not answer that


class Connection:
    """A connection to a service, on which every wait ends."""

    def __init__(self, url: str, key: str, deadline_s: float) -> None:
        self.url, self.host = url, host(url)
        self._headers, self._deadline_s = {"X-API-Key": key}, deadline_s
        self._quoted = Secrets((key,)).quoted
        self._health_asked = 0.0
        self._silent_since: float | None = None
        self._removals: list[concurrent.futures.Future[None]] = []

    def get(self, path: str) -> dict[str, Any]:
        """A short question, before anything else is done."""
        no_tinker = f"base_url: {self.host} does not speak the Tinker protocol there; give the right address, without /v1"
        try:
            status, body = _within(_QUERY_S, lambda: self._query(path))
        except (httpx.HTTPError, TimeoutError) as error:
            why = self._quoted(str(error)) or f"no answer within {_QUERY_S:g} s"
            raise UserError(f"base_url: {self.host} can't be reached ({why}); start the server, or correct it") from None
        if 300 <= status < 400 or status in (404, 405):
            raise UserError(no_tinker)
        if status != 200:
            raise status_error(self.host, status, self._quoted(body.decode("utf-8", "replace")), "the first question")
        try:
            return dict(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            raise UserError(no_tinker) from None

    def _query(self, path: str) -> tuple[int, bytes]:
        with httpx.stream("GET", f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_QUERY_S) as answer:
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise httpx.DecodingError("its answer has no end")
            return answer.status_code, body

    def delete(self, path: str) -> None:
        """Have something removed, if the server can; not waited for, since nothing depends on it."""

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_QUERY_S)

        self._removals = [*(removal for removal in self._removals if not removal.done()), _begin(ask)]

    async def wait(self, what: str, awaited: Awaitable[T]) -> T:
        """The result of an awaitable, within the deadline. ``what`` names it in sentences, such as 'the update'."""
        started, task = time.monotonic(), asyncio.ensure_future(awaited)
        try:
            async with asyncio.timeout(self._deadline_s):
                while not (await asyncio.wait({task}, timeout=_HEALTH_S))[0]:
                    if "billing" in (warning := _CLIENT_LOG.since(started)):
                        raise Halted(f"{self.host}: the account has no credit left ({self._quoted(warning)}); {RESUMES}")
                    if await self._silent() and not task.done():
                        raise Halted(f"{self.host} can't be reached any more, while waiting for {what}; {RESUMES}")
        except TimeoutError:
            warning = _CLIENT_LOG.since(started)
            more = f"; its client says: {self._quoted(warning)}" if warning else ""
            raise EngineError(f"{self.host}: {what} took longer than {self._deadline_s:g} s{more}; {RESUMES}") from None
        finally:
            task.cancel()
        try:
            result = task.result()
            self._silent_since = None  # it has just answered
            return result
        except Exception as error:  # the client lets all kinds through, its own assertions among them
            raise error_for(self.host, error, what, self._quoted) from None

    async def in_thread(self, what: str, work: Callable[[], T]) -> T:
        """The result of a call that blocks, within the deadline; its thread is left behind if it takes longer."""
        return await self.wait(what, asyncio.wrap_future(_begin(work)))

    async def close(self, end_session: Callable[[], object]) -> None:
        """End the session, without waiting long for an answer."""
        if self._silent_since is not None:
            return

        def last() -> None:
            concurrent.futures.wait(self._removals)
            end_session()

        with contextlib.suppress(Exception):
            await asyncio.to_thread(_within, _CLOSE_S, last)

    async def _silent(self) -> bool:
        """Whether the server has not answered for a while. All who wait share one question."""
        now = time.monotonic()
        if now - self._health_asked >= _HEALTH_S:
            if now - self._health_asked > 3 * _HEALTH_S:  # not asked for a while, so it is not known
                self._silent_since = None
            self._health_asked = now
            try:
                status, _ = await asyncio.to_thread(_within, _PULSE_S, lambda: self._query("healthz"))
            except (httpx.HTTPError, TimeoutError):
                status = 0
            self._silent_since = None if status == 200 else self._silent_since or now
        return self._silent_since is not None and time.monotonic() - self._silent_since >= _GONE_S


class NotFound(Halted):
    """The service does not know what it is asked about."""


def error_for(host: str, error: Exception, what: str, quoted: Callable[[str], str]) -> Exception:
    """The sentence for whatever the client raised while waiting for ``what``. Servers' words are quoted, never trusted."""
    reason = quoted(str(error).split(" for self.request_id")[0]) or type(error).__name__
    if isinstance(error, tinker.APIStatusError):
        body = error.body
        detail = body.get("detail") if isinstance(body, dict) else None
        return status_error(host, error.status_code, quoted(detail if isinstance(detail, str) else reason), what)
    if isinstance(error, tinker.RequestFailedError) and error.category is RequestErrorCategory.User:
        return EngineError(f"{host} refuses {what} ({reason})")
    if isinstance(error, tinker.APIConnectionError):
        return Halted(f"{host} can't be reached ({reason}), while waiting for {what}; {RESUMES}")
    if isinstance(error, ValueError) and (status := re.search(r"status (\d{3})", str(error))):
        return status_error(host, int(status[1]), reason, what)  # how the client says that a result is not to be had
    kind = "" if isinstance(error, tinker.TinkerError) else f"{type(error).__name__}: "
    return EngineError(f"{host}: {what} failed ({kind}{reason}); {RESUMES}")


def status_error(host: str, status: int, reason: str, what: str) -> Exception:
    """The sentence for a status that is no success."""
    sentences = {
        401: UserError(f"{TINKER_KEY}: {host} does not accept the key (401); put the right one into the environment"),
        402: Halted(f"{host}: the account has no credit left (402: {reason}); {RESUMES}"),
        403: UserError(f"{TINKER_KEY}: {host} does not allow this key {what} (403: {reason})"),
        404: NotFound(f"{host}: {what}: it does not know (any more) what is asked for (404: {reason}); {RESUMES}"),
        429: EngineError(f"{host} is too busy for {what} (429: {reason}); {RESUMES}"),
    }
    refused = EngineError(f"{host} refuses {what} ({status}: {reason})")
    failed = EngineError(f"{host}: {what} failed ({status}: {reason}); {RESUMES}")
    return sentences.get(status, refused if status < 500 else failed)


def _begin(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Begin a call that blocks, in a thread that may be left behind."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it, so that its result can always be set

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of a call that blocks, or ``TimeoutError``; its thread is then left behind."""
    return _begin(work).result(seconds)


class _LastWarning(logging.Handler):
    """Remembers the last warning of the client, which it would else write over what the person sees."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = (0.0, "")

    def emit(self, record: logging.LogRecord) -> None:
        self._last = (time.monotonic(), record.getMessage())

    def since(self, moment: float) -> str:
        return self._last[1] if self._last[0] >= moment else ""


_CLIENT_LOG = _LastWarning()
logging.getLogger("tinker").addHandler(_CLIENT_LOG)

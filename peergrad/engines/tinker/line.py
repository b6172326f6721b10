"""Waiting for a service: never for ever, and with a sentence for whatever goes wrong.

The client by itself tries again for minutes when a server is gone, and waits for results without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.engines.shared.secrets import Secrets
from peergrad.engines.tinker.faults import LATER, meant, refused

T = TypeVar("T")

_FIRST_S = 10.0  # for the first answer of a server
_LAST_S = 3.0  # for a goodbye
_MOST_BYTES = 4 * 2**20  # of an answer to a short question
_PULSE_S = 5.0  # while something is awaited, the server is asked so often whether it lives
_GONE_S = 30.0  # and if it has not said so for so long, it does not


class Line:
    """The connection to a service, as far as waiting goes."""

    def __init__(self, url: str, key: str, deadline_s: float) -> None:
        self.url, self.host = url, urlsplit(url).netloc
        self._headers, self._deadline_s = {"X-API-Key": key}, deadline_s
        self._quoted = Secrets((key,)).quoted
        self._asked: float = 0.0
        self._quiet_since: float | None = None
        self._removals: list[threading.Thread] = []

    def get(self, path: str) -> dict[str, Any]:
        """A short question, before anything else is done."""
        no_tinker = f"base_url: {self.host} does not speak the Tinker protocol there; give the right address, without /v1"
        try:
            status, body = _within(_FIRST_S, lambda: self._got(path))
        except (httpx.HTTPError, TimeoutError) as error:
            why = self._quoted(str(error)) or "no answer in time"
            raise UserError(f"base_url: {self.host} can't be reached ({why}); start the server, or correct it") from None
        if 300 <= status < 400 or status in (404, 405):
            raise UserError(no_tinker)
        if status != 200:
            raise refused(self.host, status, self._quoted(body.decode("utf-8", "replace")), "the first question")
        try:
            return dict(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            raise UserError(no_tinker) from None

    def _got(self, path: str) -> tuple[int, bytes]:
        with httpx.stream("GET", f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_FIRST_S) as answer:
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise httpx.DecodingError("its answer has no end")
            return answer.status_code, body

    def delete(self, path: str) -> None:
        """Have something removed, sooner or later, if the server can: nothing depends on it."""

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_FIRST_S)

        removal = threading.Thread(target=ask, daemon=True)
        removal.start()
        self._removals = [*(one for one in self._removals if one.is_alive()), removal]

    async def wait(self, what: str, awaited: Awaitable[T]) -> T:
        """What something comes to, within the deadline. ``what`` says what it is in a sentence: 'the update'."""
        begun, task = time.monotonic(), asyncio.ensure_future(awaited)
        try:
            async with asyncio.timeout(self._deadline_s):
                while not task.done():
                    await asyncio.wait({task}, timeout=_PULSE_S)
                    if task.done():
                        break
                    if "billing" in (said := _HEARD.since(begun)):
                        raise Halted(f"{self.host}: the account has no credit left ({self._quoted(said)}); {LATER}")
                    if await self._silent() and not task.done():
                        raise Halted(f"{self.host} can't be reached any more, while waiting for {what}; {LATER}")
        except TimeoutError:
            said = _HEARD.since(begun)
            more = f"; its client says: {self._quoted(said)}" if said else ""
            raise EngineError(f"{self.host}: {what} took longer than {self._deadline_s:g} s{more}; {LATER}") from None
        finally:
            if not task.done():
                task.cancel()
        try:
            result = task.result()
            self._quiet_since = None  # it has just been heard of
            return result
        except Exception as error:  # the client lets all kinds through, its own assertions among them
            raise meant(self.host, error, what, self._quoted) from None

    async def in_thread(self, what: str, work: Callable[[], T]) -> T:
        """The same for a call that blocks. Its thread is left behind if it does so for too long."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, failed = None, None
            try:
                result = work()
            except Exception as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, failed)

        threading.Thread(target=run, daemon=True).start()
        return await self.wait(what, future)

    async def close(self, goodbye: Callable[[], object]) -> None:
        """Say goodbye, without waiting long for an answer."""
        if self._quiet_since is not None:  # nobody is there
            return

        def last() -> None:
            for removal in self._removals:
                removal.join()
            goodbye()

        with contextlib.suppress(Exception):
            await asyncio.to_thread(_within, _LAST_S, last)

    async def _silent(self) -> bool:
        """Whether the server has not answered for a while. All who wait share one question."""
        now = time.monotonic()
        if now - self._asked >= _PULSE_S:
            if now - self._asked > 3 * _PULSE_S:  # nobody has asked for a while, so nobody knows
                self._quiet_since = None
            self._asked = now
            try:
                status, _ = await asyncio.to_thread(_within, _PULSE_S, lambda: self._got("healthz"))
            except (httpx.HTTPError, TimeoutError):
                status = 0
            self._quiet_since = None if status == 200 else self._quiet_since or now
        return self._quiet_since is not None and time.monotonic() - self._quiet_since >= _GONE_S


def _within(seconds: float, work: Callable[[], T]) -> T:
    """What something comes to, or ``TimeoutError``; its thread is then left behind."""
    done: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except Exception as error:
            done.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, failed = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if failed:
        raise failed
    return result  # type: ignore[return-value]


class _Heard(logging.Handler):
    """Remembers the last thing the client complained about, which it would else write over what the person sees."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = (0.0, "")

    def emit(self, record: logging.LogRecord) -> None:
        self._last = (time.monotonic(), record.getMessage())

    def since(self, moment: float) -> str:
        return self._last[1] if self._last[0] >= moment else ""


_HEARD = _Heard()
logging.getLogger("tinker").addHandler(_HEARD)

"""Waiting for a service: never for ever, and with a sentence for whatever goes wrong.

The client by itself tries again for minutes when a server is gone, and waits for results without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import tinker
from tinker.types import RequestErrorCategory

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.engines.openai.secrets import Secrets
from peergrad.engines.tinker.rules import KEY_ENV

T = TypeVar("T")

_FIRST_S = 10.0  # for the first answer of a server
_PULSE_S = 5.0  # while something is awaited, the server is asked so often whether it lives
_MISSED = 6  # and so many silences in a row mean that it does not
_LATER = "the same command goes on from the last checkpoint"


class Line:
    """The connection to a service, as far as waiting goes."""

    def __init__(self, url: str, key: str, deadline_s: float) -> None:
        self.url, self.host = url, urlsplit(url).netloc
        self._headers, self._deadline_s = {"X-API-Key": key}, deadline_s
        self._quoted = Secrets((key,)).quoted
        self._heard = _Heard()
        logging.getLogger("tinker").addHandler(self._heard)  # it would else write over what the person sees
        self._asked, self._missed = 0.0, 0

    def get(self, path: str) -> dict[str, Any]:
        """A short question, before anything else is done."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_FIRST_S)
            answer.raise_for_status()
            return dict(answer.json())
        except httpx.HTTPStatusError as error:
            raise self._judged(error.response.status_code, self._quoted(error.response.text), "at the start") from None
        except httpx.HTTPError as error:
            why = self._quoted(str(error)) or type(error).__name__
            raise UserError(f"base_url: {self.host} can't be reached ({why}); start the server, or correct it") from None
        except (ValueError, TypeError):
            raise UserError(f"base_url: {self.host} does not speak the Tinker protocol; correct the address") from None

    def delete(self, path: str) -> None:
        """Have something removed, sooner or later, if the server can: nothing depends on it."""

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}/api/v1/{path}", headers=self._headers, timeout=_FIRST_S)

        threading.Thread(target=ask, daemon=True).start()

    async def wait(self, what: str, awaited: Awaitable[T]) -> T:
        """What something comes to, within the deadline. ``what`` says what it is in a sentence: 'the update'."""
        begun, task = time.monotonic(), asyncio.ensure_future(awaited)
        try:
            while not task.done():
                left = self._deadline_s - (time.monotonic() - begun)
                if left <= 0:
                    said = self._heard.since(begun)
                    more = f"; its client says: {self._quoted(said)}" if said else ""
                    raise EngineError(f"{self.host}: {what} took longer than {self._deadline_s:g} s{more}; {_LATER}")
                await asyncio.wait({task}, timeout=min(_PULSE_S, left))
                if not task.done() and await self._silent():
                    raise EngineError(f"{self.host} can't be reached any more, while waiting for {what}; {_LATER}")
            return task.result()
        except (tinker.TinkerError, ValueError) as error:  # ValueError: what the client raises if a result is not to be had
            raise self._meant(error, what) from None
        finally:
            task.cancel()

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

    async def _silent(self) -> bool:
        """Whether the server has not answered for a while. All who wait share one question."""
        now = time.monotonic()
        if now - self._asked >= _PULSE_S:
            self._asked = now
            try:
                async with httpx.AsyncClient(timeout=_PULSE_S) as client:
                    answer = await client.get(f"{self.url}/api/v1/healthz", headers=self._headers)
                answer.raise_for_status()
                self._missed = 0
            except httpx.HTTPError:
                self._missed += 1
        return self._missed >= _MISSED

    def _meant(self, error: Exception, what: str) -> Exception:
        said = self._quoted(str(error).split(" for self.request_id")[0])
        if isinstance(error, tinker.APIStatusError):
            body = error.body
            detail = body.get("detail") if isinstance(body, dict) else None
            return self._judged(error.status_code, self._quoted(str(detail or error)), what)
        if isinstance(error, tinker.RequestFailedError) and error.category is RequestErrorCategory.User:
            return EngineError(f"{self.host} refuses {what} ({said})")
        if isinstance(error, ValueError):
            status = re.search(r"status (\d{3})", str(error))
            return self._judged(int(status[1]) if status else 500, said, what)
        if isinstance(error, tinker.APIConnectionError):
            return EngineError(f"{self.host} can't be reached ({said}), while waiting for {what}; {_LATER}")
        return EngineError(f"{self.host}: {what} failed ({said}); {_LATER}")

    def _judged(self, status: int, said: str, what: str) -> Exception:
        if status == 401:
            return UserError(f"{KEY_ENV}: {self.host} does not accept the key (401); put the right one into the environment")
        if status == 403:
            return UserError(f"{KEY_ENV}: the key has no access, {what} ({status}: {said})")
        if status == 402:
            return Halted(f"{self.host}: the account has no credit left (402: {said}); {_LATER}")
        if status == 404:
            return EngineError(f"{self.host}: {what}: it does not know (any more) what is asked for (404: {said}); {_LATER}")
        if status == 429:
            return EngineError(f"{self.host} is busy (429: {said}), {what}; {_LATER}")
        if status < 500:
            return EngineError(f"{self.host} refuses {what} ({status}: {said})")
        return EngineError(f"{self.host}: {what} failed ({status}: {said}); {_LATER}")


class _Heard(logging.Handler):
    """Remembers the last thing the client complained about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = (0.0, "")

    def emit(self, record: logging.LogRecord) -> None:
        self._last = (time.monotonic(), record.getMessage())

    def since(self, moment: float) -> str:
        return self._last[1] if self._last[0] >= moment else ""

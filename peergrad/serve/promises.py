"""Requests that take long: begun once, fetched when they are done, however often either is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from peergrad.debate.errors import EngineError, UserError
from peergrad.serve.wire import Result

log = logging.getLogger(__name__)

# Results are kept for whoever lost the answer on the way and asks again: so many, and so many bytes.
_KEPT, _KEPT_BYTES = 20_000, 512 * 2**20
_REMEMBERED = 200_000


class Gone(Exception):  # noqa: N818
    """A result that was kept for a long time, and is no more."""


class Promises:
    """Every request by its id."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[Result]] = {}
        self._done: OrderedDict[str, Result] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._bytes = 0

    def __contains__(self, id: str) -> bool:
        return id in self._open or id in self._done or id in self._gone

    @property
    def waiting(self) -> int:
        return len(self._open)

    def make(self, id: str) -> None:
        """Promise a result."""
        self._open[id] = asyncio.get_running_loop().create_future()

    async def keep(self, id: str, work: Callable[[], Awaitable[Result]]) -> bool:
        """Do the work and keep what came of it, a failure too; whether it went well."""
        try:
            result, well = await work(), True
        except UserError as error:
            result, well = Result.json(error=str(error), category="user"), False
        except EngineError as error:
            result, well = Result.json(error=str(error), category="server"), False
        except Exception as error:
            log.exception("request %s failed", id)
            result, well = Result.json(error=f"{type(error).__name__}: {error}", category="server"), False
        self._settle(id, result)
        return well

    async def result(self, id: str, wait_s: float) -> Result | None:
        """What came of a request; None: it is not done yet. ``KeyError``: there is none of this id."""
        if id in self._done:
            return self._done[id]
        if id in self._gone:
            raise Gone
        future = self._open[id]
        await asyncio.wait({future}, timeout=wait_s)
        return future.result() if future.done() else None

    def drop(self, id: str) -> None:
        """Nobody will keep this promise, nor ask for it."""
        if id in self._open:
            self._settle(id, Result.json(error="the session has ended", category="user"))

    def _settle(self, id: str, result: Result) -> None:
        self._open.pop(id).set_result(result)
        self._done[id] = result
        self._bytes += len(result.body)
        while len(self._done) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._done) > 1):
            old, dropped = self._done.popitem(last=False)
            self._bytes -= len(dropped.body)
            self._gone[old] = None
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

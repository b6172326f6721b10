"""Requests that take long: begun once, fetched when they are done, however often either is asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from peergrad.debate.errors import EngineError, UserError
from peergrad.serve.refusals import Gone, Missing
from peergrad.serve.results import Result

log = logging.getLogger(__name__)

# Results are kept for whoever lost the answer on the way and asks again: so many, so many bytes, and so long.
_KEPT, _KEPT_BYTES, _KEPT_S = 20_000, 512 * 2**20, 3600.0
_REMEMBERED = 200_000


class Promises:
    """Every request by its id, which begins with that of its session."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[Result]] = {}
        self._done: OrderedDict[str, tuple[float, Result]] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0

    def __contains__(self, id: str) -> bool:
        return id in self._open or id in self._done or id in self._gone

    @property
    def waiting(self) -> int:
        return len(self._open)

    def make(self, id: str) -> None:
        """Promise a result."""
        self._open[id] = asyncio.get_running_loop().create_future()

    def start(self, id: str, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[None]:
        """Promise a result, and have the work done from now on."""
        self.make(id)
        task = asyncio.create_task(self.keep(id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def keep(self, id: str, work: Callable[[], Awaitable[Result]]) -> None:
        """Do the work and keep what came of it, a failure too."""
        try:
            result = await work()
        except UserError as error:
            result = Result.json(error=str(error), category="user")
        except EngineError as error:
            result = Result.json(error=str(error), category="server")
        except Exception as error:
            log.exception("request %s failed", id)
            result = Result.json(error=f"{type(error).__name__}: {error}", category="server")
        self._settle(id, result)

    async def result(self, id: str, wait_s: float) -> Result | None:
        """What came of a request; None: it is not done yet. ``Missing``, ``Gone``: there is none of this id, or no more."""
        if id in self._done:
            return self._done[id][1]
        if id in self._gone:
            raise Gone(f"the result of {id!r} is kept no longer")
        if id not in self._open:
            raise Missing(f"there is no request {id!r}; the server was started anew")
        future = self._open[id]
        await asyncio.wait({future}, timeout=wait_s)
        return future.result() if future.done() else None

    def refuse(self, id: str, why: str) -> None:
        """Nobody will do this, whether it was promised or not; whoever asks for it is told why."""
        self._settle(id, Result.json(error=why, category="user"))

    def end(self, session: str) -> None:
        """Nothing is promised to a session that has ended."""
        for id in [id for id in self._open if id.startswith(f"{session}-")]:
            self.refuse(id, "the session has ended")

    def sweep(self) -> None:
        """Forget what nobody asked for in a long time."""
        while self._done and time.monotonic() - next(iter(self._done.values()))[0] > _KEPT_S:
            self._forget_oldest()

    def _settle(self, id: str, result: Result) -> None:
        if id in self._done or id in self._gone:  # it was refused while it was being done
            return
        if future := self._open.pop(id, None):
            future.set_result(result)
        self._done[id] = (time.monotonic(), result)
        self._bytes += len(result.body)
        while len(self._done) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._done) > 1):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        id, (_, result) = self._done.popitem(last=False)
        self._bytes -= len(result.body)
        self._gone[id] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

"""So many at a time, those that are furthest first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GAP_S = 0.001  # begun at one moment, requests would be answered at one moment, and the work on each wait for all others


class Slots:
    """A limit on what is under way. Of those waiting, the one furthest in its debate goes first.

    First come, first served would begin every debate before it ended any, and a budget spent halfway would have bought
    nothing whole.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self._last = 0.0

    @asynccontextmanager
    async def held(self, seen: int) -> AsyncIterator[None]:
        """A slot, for an ask whose author has seen so many turns."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(seen)
        try:
            await self._pace()
            yield
        finally:
            self._release()

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time()
        self._last = max(now, self._last + GAP_S)
        if self._last > now:
            await asyncio.sleep(self._last - now)

    async def _wait(self, seen: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-seen, next(self._arrivals), future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was handed a slot while it was being cancelled
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
                return
        self._free += 1

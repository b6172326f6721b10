"""How many requests are under way at the same time, and which is next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GAP_S = 0.001  # begun at one moment, requests would be answered at one moment, and the work on each wait for all others

_RAISE, _LOWER = 1.0, 0.7  # added to the limit by an answer, left of it by a refusal


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
            await self._space_out()
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

    async def _space_out(self) -> None:
        now = asyncio.get_running_loop().time()
        self._last = max(now, self._last + GAP_S)
        if self._last > now:
            await asyncio.sleep(self._last - now)

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

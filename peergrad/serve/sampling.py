"""Sampling for many requests at once: all that want the same weights are sampled together, whenever they come."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass
from functools import partial

from peergrad.debate.errors import EngineError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import LocalSampler, Sampled, Start, Wanted

# A burst of requests comes in pieces: it is over when nothing came for so long.
_PAUSE_S, _PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class _Request:
    """Starts that belong together, what has come of each so far, and who waits for all of it."""

    sampler: LocalSampler
    starts: list[Start]
    parts: list[Sampled | None]
    made: asyncio.Future[list[Sampled]]

    def take(self, index: int, found: Sampled | EngineError) -> None:
        if self.made.done():  # whoever asked has left, or another part failed
            return
        if isinstance(found, EngineError):
            self.made.set_exception(found)
            return
        self.parts[index] = found
        whole = [part for part in self.parts if part is not None]
        if len(whole) == len(self.parts):
            self.made.set_result(whole)


class Desk:
    """Hands requests to samplers, those that wait longest first. A request joins what is under way for its sampler, unless
    somebody waits who can't. One that is cancelled is not begun, or goes no further.
    """

    def __init__(self) -> None:
        self._waiting: list[_Request] = []
        self._run: _Run | None = None
        self._working: asyncio.Task[None] | None = None
        self._scoring, self._to_score = asyncio.Lock(), 0
        self.batches = 0

    async def score(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        """The log-probability of each of these tokens but the first; one request at a time, so that few threads wait."""
        self._to_score += 1
        task = asyncio.create_task(self._score(sampler, ids_T))
        # Its thread waits for whoever samples, even if whoever asked has left: others must see that.
        task.add_done_callback(self._scored)
        return await asyncio.shield(task)

    async def _score(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        async with self._scoring:
            return await sampler.logprobs(ids_T)

    def _scored(self, task: asyncio.Task[Floats]) -> None:
        self._to_score -= 1
        if not task.cancelled():
            task.exception()  # whoever asked may not be there to see it

    async def sample(self, sampler: LocalSampler, starts: list[Start]) -> list[Sampled]:
        """What comes after each of these starts."""
        one = _Request(sampler, starts, [None] * len(starts), asyncio.get_running_loop().create_future())
        run, others = self._run, self._waiting or self._to_score
        if run is not None and run.open and run.sampler is sampler and not others:
            run.join(one)
        else:
            self._waiting.append(one)
            if self._working is None or self._working.done():
                self._working = asyncio.create_task(self._work())
        return await one.made

    async def _work(self) -> None:
        while self._waiting:
            await self._gathered()
            self._waiting = [one for one in self._waiting if not one.made.done()]  # all but the cancelled
            if not self._waiting:
                return
            self._run = _Run(self._waiting[0].sampler)
            for one in self._waiting:
                if one.sampler is self._run.sampler:
                    self._run.join(one)
            self._waiting = [one for one in self._waiting if one.sampler is not self._run.sampler]
            self.batches += 1
            try:
                left = await self._run.go()
            finally:
                self._run = None
            self._waiting = left + self._waiting

    async def _gathered(self) -> None:
        for _ in range(_PAUSES):
            before = len(self._waiting)
            await asyncio.sleep(_PAUSE_S)
            if len(self._waiting) == before:
                return


class _Run:
    """One sampler at work, until all who joined have what they wanted."""

    def __init__(self, sampler: LocalSampler) -> None:
        self.sampler, self.open = sampler, True
        self._loop = asyncio.get_running_loop()
        self._coming: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._here: dict[_Request, None] = {}
        self._going: asyncio.Task[None] | None = None

    def join(self, one: _Request) -> None:
        self._here[one] = None
        one.made.add_done_callback(partial(self._left, one))
        for index, (start, part) in enumerate(zip(one.starts, one.parts, strict=True)):
            if part is None:
                self._coming.put(Wanted(start, partial(self._tell, one, index), one.made.done))

    def _tell(self, one: _Request, index: int, found: Sampled | EngineError | None) -> None:
        """On the thread that samples."""
        self._loop.call_soon_threadsafe(self._told, one, index, found)

    def _told(self, one: _Request, index: int, found: Sampled | EngineError | None) -> None:
        if found is None:
            self.open = False  # who comes now would keep this one waiting
        else:
            one.take(index, found)

    def _left(self, one: _Request, made: asyncio.Future[list[Sampled]]) -> None:
        self._here.pop(one, None)
        if made.cancelled() and not self._here and self._going is not None:
            self._going.cancel()  # nobody is left to sample for

    def _come(self) -> list[Wanted]:
        """Those who joined since this was last asked; on the thread that samples."""
        found: list[Wanted] = []
        while not self._coming.empty():
            found.append(self._coming.get())
        return found

    async def go(self) -> list[_Request]:
        """Sample. Returns those who came too late or did not fit, in the order they came."""
        self._going = asyncio.create_task(self.sampler.flow(self._come))
        await asyncio.wait({self._going})
        if not self._going.cancelled() and (error := self._going.exception()):
            for one in list(self._here):
                if not one.made.done():
                    one.made.set_exception(error)
        return [one for one in self._here if not one.made.done()]

"""Sampling for many requests at once: all that wait for the same weights are sampled together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from peergrad.debate.errors import EngineError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sampler import LocalSampler, Sampled, Start

# A burst of requests comes in pieces: it is over when nothing came for so long.
_PAUSE_S, _PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class _Waiting:
    sampler: LocalSampler
    starts: list[Start]
    made: asyncio.Future[list[Sampled | EngineError]]


class Desk:
    """Hands requests to samplers, in large batches, those that wait longest first. One that is cancelled is not done."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self._scoring = asyncio.Lock()
        self.batches = 0

    async def score(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        """The log-probability of each of these tokens but the first; one request at a time, so that few threads wait."""
        async with self._scoring:
            return await sampler.logprobs(ids_T)

    async def sample(self, sampler: LocalSampler, starts: list[Start]) -> list[Sampled]:
        """What comes after each of these starts."""
        one = _Waiting(sampler, starts, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return _whole(await one.made)

    async def _work(self) -> None:
        while self._waiting:
            await self._gathered()
            self._waiting = [one for one in self._waiting if not one.made.done()]  # all but the cancelled
            if not self._waiting:
                return
            sampler = self._waiting[0].sampler
            batch = [one for one in self._waiting if one.sampler is sampler]
            self._waiting = [one for one in self._waiting if one.sampler is not sampler]
            self.batches += 1
            await _sampled(sampler, batch)

    async def _gathered(self) -> None:
        for _ in range(_PAUSES):
            before = len(self._waiting)
            await asyncio.sleep(_PAUSE_S)
            if len(self._waiting) == before:
                return


async def _sampled(sampler: LocalSampler, batch: Sequence[_Waiting]) -> None:
    """Sample for those who wait; if all of them leave, that is the end of it."""
    going = asyncio.create_task(sampler.go_on([start for one in batch for start in one.starts]))
    here = len(batch)

    def left(_: object) -> None:
        nonlocal here
        here -= 1
        if not here:
            going.cancel()

    for one in batch:
        one.made.add_done_callback(left)
    await asyncio.wait({going})
    waiting = [one for one in batch if not one.made.done()]
    if going.cancelled():
        return
    if error := going.exception():
        for one in waiting:
            one.made.set_exception(error)
        return
    made = iter(going.result())
    for one in batch:
        found = [next(made) for _ in one.starts]
        if not one.made.done():
            one.made.set_result(found)


def _whole(made: Sequence[Sampled | EngineError]) -> list[Sampled]:
    for one in made:
        if isinstance(one, EngineError):
            raise one
    return [one for one in made if isinstance(one, Sampled)]

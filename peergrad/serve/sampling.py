"""Sampling for many requests at once: all that wait for the same weights are sampled together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from peergrad.debate.errors import EngineError
from peergrad.engines.local.sampler import LocalSampler, Sampled, Start

# A burst of requests comes in pieces: it is over when nothing came for so long.
_PAUSE_S, _PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class _Waiting:
    sampler: LocalSampler
    starts: list[Start]
    made: asyncio.Future[list[Sampled | EngineError]]


class Desk:
    """Hands requests to samplers, in large batches, those that wait longest first."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self.batches = 0

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
            sampler = self._waiting[0].sampler
            batch = [one for one in self._waiting if one.sampler is sampler]
            self._waiting = [one for one in self._waiting if one.sampler is not sampler]
            self.batches += 1
            try:
                made = await sampler.go_on([start for one in batch for start in one.starts])
            except Exception as error:
                for one in batch:
                    one.made.set_exception(error)
                continue
            done = iter(made)
            for one in batch:
                one.made.set_result([next(done) for _ in one.starts])

    async def _gathered(self) -> None:
        for _ in range(_PAUSES):
            before = len(self._waiting)
            await asyncio.sleep(_PAUSE_S)
            if len(self._waiting) == before:
                return


def _whole(made: Sequence[Sampled | EngineError]) -> list[Sampled]:
    for one in made:
        if isinstance(one, EngineError):
            raise one
    return [one for one in made if isinstance(one, Sampled)]

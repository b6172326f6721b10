"""A policy that is trained by requests, each done once and in the order of their numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from peergrad.debate.errors import UserError
from peergrad.engines.local.engine import AdamRules, Local
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.lessons import Lesson
from peergrad.serve.promises import Promises
from peergrad.serve.refusals import Busy
from peergrad.serve.results import Result, taught
from peergrad.serve.store import About

# Parts of a batch are sent side by side and come in any order: so far ahead of what is awaited they may be, and so large.
_AHEAD, _AHEAD_BYTES = 4096, 512 * 2**20
# One that was refused before its number was known, or whose sender gave up, never comes: so long the others wait for it.
_MISSED_S = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    work: Callable[[], Awaitable[Result]]
    size: int


class Learner:
    """One policy. Gradients add up until an update uses them."""

    def __init__(self, id: str, session: str, engine: Local, about: About, promises: Promises, alone: asyncio.Lock) -> None:
        self.id, self.session, self.about = id, session, about
        self._engine, self._promises, self._alone = engine, promises, alone
        self._next = 1
        self._waiting: dict[int, _Request] = {}
        self._came = asyncio.Event()
        self._gradient: dict[str, Tensor] | None = None
        self._failed: str | None = None
        self._working: asyncio.Task[None] | None = None

    def submit(self, number: int, size: int, work: Callable[[], Awaitable[Result]]) -> str:
        """Have something done when it is its turn; a number that was seen before is not done again. Returns its id.

        ``size`` is how many bytes are held until then.
        """
        id = f"{self.id}.{number}"
        if number < self._next or number in self._waiting:
            return id
        if number > self._next + _AHEAD:
            raise UserError(f"seq_id: {number} is too far ahead; {self._next} comes next")
        held = sum(request.size for request in self._waiting.values())
        if number != self._next and held + size > _AHEAD_BYTES:
            raise Busy(f"{held >> 20} MiB are waiting to be trained on; send more when some of it is done")
        self._promises.make(id)
        self._waiting[number] = _Request(work, size)
        if number == self._next:
            self._came.set()
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return id

    async def _work(self) -> None:
        while self._waiting:
            if self._next in self._waiting or await self._comes():
                await self._do_next()
            elif self._waiting:  # else the session has ended
                self._give_up()

    async def _comes(self) -> bool:
        """Whether the next one comes while others wait for it."""
        self._came.clear()
        try:
            await asyncio.wait_for(self._came.wait(), _MISSED_S)
        except TimeoutError:
            return self._next in self._waiting
        return True

    async def _do_next(self) -> None:
        async with self._alone:  # one policy at a time: they share the memory that training needs
            if request := self._waiting.get(self._next):  # else the session has ended
                await self._promises.keep(f"{self.id}.{self._next}", request.work)
        self._waiting.pop(self._next, None)
        self._next += 1

    def _give_up(self) -> None:
        """Do none of those that wait, nor use the gradient there is: nobody knows what they were to come after."""
        last = max(self._waiting)
        why = f"request {self._next} did not come within {_MISSED_S:g} s"
        for number in range(self._next, last + 1):
            self._promises.refuse(f"{self.id}.{number}", f"seq_id: {number} was not done, because {why}")
        self._waiting.clear()
        self._next, self._failed = last + 1, why

    async def learn(self, read: Callable[[], Lesson], forward_only: bool) -> Result:
        """The loss on some data, and unless that is all that is asked for, its gradient added to what there is."""
        try:
            return await asyncio.to_thread(self._learn, read, forward_only)
        except Exception as error:
            if not forward_only:
                self._failed = f"a forward_backward before it failed ({error})"
            raise

    def _learn(self, read: Callable[[], Lesson], forward_only: bool) -> Result:
        lesson = read()
        made = self._engine.gradient(lesson.data, lesson.loss, lesson.bounds)
        if not forward_only:
            if self._gradient is None:
                self._gradient = made.by_name
            else:
                for name, grad in made.by_name.items():
                    self._gradient[name] += grad
        return taught(made)

    async def update(self, read: Callable[[], AdamRules]) -> Result:
        """Change the weights along the gradient there is. One that is not finite, or not whole, changes nothing."""
        grads, failed = self._gradient, self._failed
        self._gradient = self._failed = None  # used up, even if what is asked for can't be done
        rules = read()
        if failed is not None:
            raise UserError(f"optim_step: no update was made, because {failed}")
        if grads is None:
            raise UserError("optim_step: there is no gradient; send forward_backward before it")
        norm = await asyncio.to_thread(self._engine.apply, grads, rules)
        if not math.isfinite(norm):
            return Result.json(metrics={"skipped": 1.0})
        return Result.json(metrics={"grad_norm": norm, "skipped": 0.0})

    async def save(self, folder: Path) -> None:
        await self._engine.save(folder)

    async def load(self, folder: Path, optimizer: bool) -> None:
        await self._engine.load(folder, optimizer=optimizer)
        self._gradient = self._failed = None

    async def sampler(self) -> LocalSampler:
        return await self._engine.sampler()

    def close(self) -> None:
        """Nothing more is to be done; what is under way may end."""
        self._waiting.clear()
        self._came.set()

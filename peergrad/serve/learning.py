"""A policy that is trained by requests, each done once and in the order of their numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from torch import Tensor

from peergrad.debate.errors import UserError
from peergrad.engines.local.engine import AdamRules, Local
from peergrad.engines.local.sampler import LocalSampler
from peergrad.serve.promises import Promises
from peergrad.serve.store import About
from peergrad.serve.wire import Lesson, Result, taught

# Parts of a batch are sent side by side and come in any order; so far ahead of what is awaited they may be.
_AHEAD = 4096


class Learner:
    """One policy. Gradients add up until an update uses them."""

    def __init__(self, id: str, session: str, engine: Local, about: About, promises: Promises, alone: asyncio.Lock) -> None:
        self.id, self.session, self.about = id, session, about
        self._engine, self._promises, self._alone = engine, promises, alone
        self._next = 1
        self._waiting: dict[int, Callable[[], Awaitable[Result]]] = {}
        self._gradient: dict[str, Tensor] | None = None
        self._failed: str | None = None
        self._working: asyncio.Task[None] | None = None

    def submit(self, number: int, work: Callable[[], Awaitable[Result]]) -> str:
        """Have something done when it is its turn; a number that was seen before is not done again. Returns its id."""
        id = f"{self.id}.{number}"
        if number < self._next or number in self._waiting:
            return id
        if number > self._next + _AHEAD:
            raise UserError(f"seq_id: {number} is too far ahead; {self._next} comes next")
        self._promises.make(id)
        self._waiting[number] = work
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return id

    async def _work(self) -> None:
        while self._next in self._waiting:
            work = self._waiting[self._next]
            async with self._alone:  # one policy at a time: they share the memory that training needs
                await self._promises.keep(f"{self.id}.{self._next}", work)
            del self._waiting[self._next]
            self._next += 1

    async def learn(self, read: Callable[[], Lesson], forward_only: bool) -> Result:
        """The loss on some data, and unless that is all that is asked for, its gradient added to what there is."""
        try:
            lesson = read()
            made = await asyncio.to_thread(self._engine.gradient, lesson.data, lesson.loss)
        except Exception as error:
            if not forward_only:
                self._failed = str(error)
            raise
        if not forward_only:
            if self._gradient is None:
                self._gradient = made.by_name
            else:
                for name, grad in made.by_name.items():
                    self._gradient[name] += grad
        return taught(made)

    async def update(self, rules: AdamRules) -> Result:
        """Change the weights along the gradient there is. One that is not finite, or not whole, changes nothing."""
        grads, failed = self._gradient, self._failed
        self._gradient = self._failed = None
        if failed is not None:
            raise UserError(f"optim_step: no update was made, because a forward_backward before it failed ({failed})")
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
        for number in [number for number in self._waiting if number != self._next]:
            del self._waiting[number]
            self._promises.drop(f"{self.id}.{number}")

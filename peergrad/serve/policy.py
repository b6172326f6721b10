"""One policy that is trained by requests, each done once and in the order of their numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from peergrad.debate.errors import UserError
from peergrad.engines.local.engine import AdamRules, Local
from peergrad.serve.checkpoints import ModelInfo
from peergrad.serve.errors import BusyError
from peergrad.serve.futures import Futures
from peergrad.serve.results import Result, gradient_result
from peergrad.serve.training_data import TrainingBatch

# Parts of a batch are sent in parallel and arrive in any order: how far ahead of the next number they may be.
_MAX_AHEAD, _MAX_AHEAD_BYTES = 4096, 512 * 2**20
# A request that was refused before its number was known, or whose sender gave up, never arrives.
_ARRIVAL_TIMEOUT_S = 120.0


class _QueuedWork(NamedTuple):
    run: Callable[[], Awaitable[Result]]
    size: int


class Policy:
    """A policy and its queue of requests. Gradients accumulate until an update uses them.

    ``training_lock`` is shared by all policies, because they share the memory that training needs.
    """

    def __init__(
        self, id: str, session: str, engine: Local, info: ModelInfo, futures: Futures, training_lock: asyncio.Lock
    ) -> None:
        self.id, self.session, self.info = id, session, info
        self.engine, self._futures, self._training_lock = engine, futures, training_lock
        self._next = 1
        self._queue: dict[int, _QueuedWork] = {}
        self._next_arrived = asyncio.Event()
        self._gradient: dict[str, Tensor] | None = None
        self._gradient_error: str | None = None
        self._worker: asyncio.Task[None] | None = None

    def submit(self, number: int, size: int, work: Callable[[], Awaitable[Result]]) -> str:
        """Queue work that holds ``size`` bytes until it is done. Returns its id; a known number is not done again."""
        id = f"{self.id}.{number}"
        if number < self._next or number in self._queue:
            return id
        if number > self._next + _MAX_AHEAD:
            raise UserError(f"seq_id: {number} is too far ahead; {self._next} comes next")
        queued = sum(work.size for work in self._queue.values())
        if number != self._next and queued + size > _MAX_AHEAD_BYTES:
            raise BusyError(f"{queued >> 20} MiB are waiting to be trained on; send more when some of it is done")
        self._futures.create(id)
        self._queue[number] = _QueuedWork(work, size)
        if number == self._next:
            self._next_arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return id

    async def _work(self) -> None:
        while self._queue:
            if self._next in self._queue or await self._wait_for_next():
                await self._run_next()
            elif self._queue:  # else the session has ended
                self._fail_queue()

    async def _wait_for_next(self) -> bool:
        """Whether the next number arrives in time, while later ones wait for it."""
        self._next_arrived.clear()
        try:
            await asyncio.wait_for(self._next_arrived.wait(), _ARRIVAL_TIMEOUT_S)
        except TimeoutError:
            return self._next in self._queue
        return True

    async def _run_next(self) -> None:
        async with self._training_lock:
            if work := self._queue.get(self._next):  # else the session has ended
                await self._futures.run(f"{self.id}.{self._next}", work.run)
        self._queue.pop(self._next, None)
        self._next += 1

    def _fail_queue(self) -> None:
        """Fail all queued requests and discard the gradient, because one that precedes them is missing."""
        last = max(self._queue)
        reason = f"request {self._next} did not come within {_ARRIVAL_TIMEOUT_S:g} s"
        for number in range(self._next, last + 1):
            self._futures.fail(f"{self.id}.{number}", f"seq_id: {number} was not done, because {reason}")
        self._queue.clear()
        self._next, self._gradient_error = last + 1, reason

    async def forward_backward(self, read: Callable[[], TrainingBatch], forward_only: bool) -> Result:
        """Compute the loss of a batch and, unless ``forward_only``, add its gradient to the accumulated one."""
        try:
            return await asyncio.to_thread(self._forward_backward, read, forward_only)
        except Exception as error:
            if not forward_only:
                self._gradient_error = f"a forward_backward before it failed ({error})"
            raise

    def _forward_backward(self, read: Callable[[], TrainingBatch], forward_only: bool) -> Result:
        batch = read()
        gradient = self.engine.gradient(batch.data, batch.loss, batch.bounds)
        if not forward_only:
            if self._gradient is None:
                self._gradient = gradient.by_name
            else:
                for name, grad in gradient.by_name.items():
                    self._gradient[name] += grad
        return gradient_result(gradient)

    async def optim_step(self, read: Callable[[], AdamRules]) -> Result:
        """Update the weights with the accumulated gradient. One that is not finite, or not complete, changes nothing."""
        gradient, error = self._gradient, self._gradient_error
        self._gradient = self._gradient_error = None  # used up, even if the request is refused
        rules = read()
        if error is not None:
            raise UserError(f"optim_step: no update was made, because {error}")
        if gradient is None:
            raise UserError("optim_step: there is no gradient; send forward_backward before it")
        norm = await asyncio.to_thread(self.engine.apply, gradient, rules)
        if not math.isfinite(norm):
            return Result.json(metrics={"skipped": 1.0})
        return Result.json(metrics={"grad_norm": norm, "skipped": 0.0})

    async def load(self, folder: Path, optimizer: bool) -> None:
        """Resume from a checkpoint; without ``optimizer``, from its weights alone."""
        await self.engine.load(folder, optimizer=optimizer)
        self._gradient = self._gradient_error = None

    def close(self) -> None:
        """Drop the queue; work that is under way may end."""
        self._queue.clear()
        self._next_arrived.set()

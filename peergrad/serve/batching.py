"""Continuous batching of requests: all that want the same weights share a batch, which they may join at any time."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import all_of
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import Completion, CompletionRequest, LocalSampler, QueuedRequest

# Requests that are sent together arrive one by one: a batch starts when none has arrived for this long.
_PAUSE_S, _MAX_PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class _Pending:
    """A request that is not done."""

    sampler: LocalSampler
    request: CompletionRequest
    future: asyncio.Future[Completion]


class RequestBatcher:
    """Gives requests to samplers, those that wait longest first.

    A request joins the running batch of its sampler, unless a request that can't join is waiting. Cancelled requests are
    not started, and stopped if they are running.
    """

    def __init__(self) -> None:
        self._waiting: list[_Pending] = []
        self._batch: _Batch | None = None
        self._worker: asyncio.Task[None] | None = None
        self._scoring, self._to_score = asyncio.Lock(), 0
        self.batches = 0

    async def logprobs(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        """The log-probability of each token but the first. One request at a time, so that few threads wait."""
        # Its thread goes on waiting for the model if the request is cancelled, and batches must make way for it.
        return await asyncio.shield(self._logprobs(sampler, ids_T))

    async def _logprobs(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        self._to_score += 1
        try:
            async with self._scoring:
                return await sampler.logprobs(ids_T)
        finally:
            self._to_score -= 1

    async def sample(self, sampler: LocalSampler, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Sample a completion for each request. If one fails, the others are cancelled."""
        return await all_of([self._sample(sampler, request) for request in requests])

    async def _sample(self, sampler: LocalSampler, request: CompletionRequest) -> Completion:
        pending = _Pending(sampler, request, asyncio.get_running_loop().create_future())
        batch, others = self._batch, self._waiting or self._to_score
        if batch is not None and batch.open and batch.sampler is sampler and not others:
            batch.join(pending)
        else:
            self._waiting.append(pending)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
        return await pending.future

    async def _work(self) -> None:
        while self._waiting:
            await self._wait_for_pause()
            self._waiting = [pending for pending in self._waiting if not pending.future.done()]  # drop cancelled ones
            if not self._waiting:
                return
            self._batch = _Batch(self._waiting[0].sampler)
            for pending in self._waiting:
                if pending.sampler is self._batch.sampler:
                    self._batch.join(pending)
            self._waiting = [pending for pending in self._waiting if pending.sampler is not self._batch.sampler]
            self.batches += 1
            try:
                unfinished = await self._batch.run()
            finally:
                self._batch = None
            self._waiting = unfinished + self._waiting

    async def _wait_for_pause(self) -> None:
        for _ in range(_MAX_PAUSES):
            before = len(self._waiting)
            await asyncio.sleep(_PAUSE_S)
            if len(self._waiting) == before:
                return


class _Batch:
    """A running batch of one sampler."""

    def __init__(self, sampler: LocalSampler) -> None:
        self.sampler, self.open = sampler, True
        self._loop = asyncio.get_running_loop()
        self._arrivals: queue.SimpleQueue[QueuedRequest] = queue.SimpleQueue()
        self._members: dict[_Pending, None] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, pending: _Pending) -> None:
        self._members[pending] = None
        pending.future.add_done_callback(partial(self._leave, pending))
        self._arrivals.put(QueuedRequest(pending.request, partial(self._deliver, pending.future), pending.future.done))

    def _deliver(self, future: asyncio.Future[Completion], completion: Completion | EngineError | None) -> None:
        """Called on the sampling thread."""
        self._loop.call_soon_threadsafe(self._receive, future, completion)

    def _receive(self, future: asyncio.Future[Completion], completion: Completion | EngineError | None) -> None:
        if completion is None:
            self.open = False  # it waits for the next batch, which later arrivals must not delay
        elif future.done():  # it was cancelled
            return
        elif isinstance(completion, EngineError):
            future.set_exception(completion)
        else:
            future.set_result(completion)

    def _leave(self, pending: _Pending, future: asyncio.Future[Completion]) -> None:
        self._members.pop(pending, None)
        if future.cancelled() and not self._members and self._task is not None:
            self._task.cancel()

    def _poll(self) -> list[QueuedRequest]:
        """The requests that joined since the last call. Called on the sampling thread."""
        arrivals: list[QueuedRequest] = []
        while not self._arrivals.empty():
            arrivals.append(self._arrivals.get())
        return arrivals

    async def run(self) -> list[_Pending]:
        """Sample until all members are done. Returns those that came too late or did not fit, in order of arrival."""
        self._task = asyncio.create_task(self.sampler.run_batch(self._poll))
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()):
            for pending in list(self._members):
                if not pending.future.done():
                    pending.future.set_exception(error)
        return [pending for pending in self._members if not pending.future.done()]

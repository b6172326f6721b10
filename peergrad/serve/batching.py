"""Continuous batching of requests: all that want the same weights share a batch, which they may join at any time."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass
from functools import partial

from peergrad.debate.errors import EngineError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import Completion, CompletionRequest, LocalSampler, QueuedRequest

# Requests that are sent together arrive one by one: a batch starts when none has arrived for this long.
_PAUSE_S, _MAX_PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class _PendingSample:
    """Requests that one client sent together, and their completions so far."""

    sampler: LocalSampler
    requests: list[CompletionRequest]
    completions: list[Completion | None]
    future: asyncio.Future[list[Completion]]

    def receive(self, index: int, completion: Completion | EngineError) -> None:
        if self.future.done():  # it was cancelled, or another of its requests failed
            return
        if isinstance(completion, EngineError):
            self.future.set_exception(completion)
            return
        self.completions[index] = completion
        done = [completion for completion in self.completions if completion is not None]
        if len(done) == len(self.completions):
            self.future.set_result(done)


class RequestBatcher:
    """Gives requests to samplers, those that wait longest first.

    A request joins the running batch of its sampler, unless a request that can't join is waiting. Cancelled requests are
    not started, and stopped if they are running.
    """

    def __init__(self) -> None:
        self._waiting: list[_PendingSample] = []
        self._batch: _Batch | None = None
        self._worker: asyncio.Task[None] | None = None
        self._scoring, self._to_score = asyncio.Lock(), 0
        self.batches = 0

    async def logprobs(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        """The log-probability of each token but the first. One request at a time, so that few threads wait."""
        self._to_score += 1
        task = asyncio.create_task(self._logprobs(sampler, ids_T))
        # Its thread goes on waiting for the model if the request is cancelled, and batches must make way for it.
        task.add_done_callback(self._scored)
        return await asyncio.shield(task)

    async def _logprobs(self, sampler: LocalSampler, ids_T: Ids) -> Floats:
        async with self._scoring:
            return await sampler.logprobs(ids_T)

    def _scored(self, task: asyncio.Task[Floats]) -> None:
        self._to_score -= 1
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the request may have been cancelled

    async def sample(self, sampler: LocalSampler, requests: list[CompletionRequest]) -> list[Completion]:
        """Sample a completion for each request."""
        pending = _PendingSample(sampler, requests, [None] * len(requests), asyncio.get_running_loop().create_future())
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
        self._members: dict[_PendingSample, None] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, pending: _PendingSample) -> None:
        self._members[pending] = None
        pending.future.add_done_callback(partial(self._leave, pending))
        for index, (request, completion) in enumerate(zip(pending.requests, pending.completions, strict=True)):
            if completion is None:
                self._arrivals.put(QueuedRequest(request, partial(self._deliver, pending, index), pending.future.done))

    def _deliver(self, pending: _PendingSample, index: int, completion: Completion | EngineError | None) -> None:
        """Called on the sampling thread."""
        self._loop.call_soon_threadsafe(self._receive, pending, index, completion)

    def _receive(self, pending: _PendingSample, index: int, completion: Completion | EngineError | None) -> None:
        if completion is None:
            self.open = False  # it waits for the next batch, which later arrivals must not delay
        else:
            pending.receive(index, completion)

    def _leave(self, pending: _PendingSample, future: asyncio.Future[list[Completion]]) -> None:
        self._members.pop(pending, None)
        if future.cancelled() and not self._members and self._task is not None:
            self._task.cancel()

    def _poll(self) -> list[QueuedRequest]:
        """The requests that joined since the last call. Called on the sampling thread."""
        arrivals: list[QueuedRequest] = []
        while not self._arrivals.empty():
            arrivals.append(self._arrivals.get())
        return arrivals

    async def run(self) -> list[_PendingSample]:
        """Sample until all members are done. Returns those that came too late or did not fit, in order of arrival."""
        self._task = asyncio.create_task(self.sampler.run_batch(self._poll))
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()):
            for pending in list(self._members):
                if not pending.future.done():
                    pending.future.set_exception(error)
        return [pending for pending in self._members if not pending.future.done()]

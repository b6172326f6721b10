"""The samplers of all sessions, whose weights never change, and requests to sample.

Batching is continuous: all requests that want the same weights share a batch, which they may join at any time.
"""

from __future__ import annotations

import asyncio
import math
import queue
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from peergrad.debate.errors import EngineError
from peergrad.debate.fields import Field
from peergrad.debate.sampler import all_of
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import CompletionRequest, LocalSampler
from peergrad.engines.local.sample.scheduler import Job
from peergrad.serve import messages
from peergrad.serve.checkpoints import CheckpointId, CheckpointStore
from peergrad.serve.messages import BusyError, NotFoundError, Result, SampleRequest
from peergrad.serve.policies import Policy
from peergrad.serve.sessions import Session, Sessions

_MAX_PENDING = 4096
# Requests that are sent together arrive one by one: a batch starts when none has arrived for this long.
_PAUSE_S, _MAX_PAUSES = 0.004, 12


@dataclass(eq=False, slots=True)
class Weights:
    """Weights to sample with. Those of a checkpoint are shared by all its samplers and loaded when they are needed."""

    checkpoint: CheckpointId | None = None
    sampler: LocalSampler | None = None
    loading: asyncio.Task[LocalSampler] | None = None
    last_used: float = 0.0


class Samplers:
    """Samplers by their ids. At most ``max_samplers`` sets of weights are in memory, besides the base model."""

    def __init__(self, engine: Local, model: str, store: CheckpointStore, sessions: Sessions, max_samplers: int) -> None:
        self._engine, self._model, self._max_samplers = engine, model, max_samplers
        self._store, self._sessions, self._futures = store, sessions, sessions.futures
        self._batcher = RequestBatcher()
        self._base = Weights(sampler=engine.base_sampler())
        self._by_path: dict[str, Weights] = {}

    def detach(self, path: str) -> None:
        """Let samplers of a removed checkpoint keep their weights in memory: its path may come to mean other weights."""
        if weights := self._by_path.pop(path, None):
            weights.checkpoint = None

    async def save(self, policy: Policy, request: Field) -> Result:
        """Save a policy's weights to sample with: as a checkpoint if named, else in memory until its session ends."""
        kind, path = "save_weights_for_sampler", request.get("path", None)
        if path.value is not None:
            return Result.json(path=await self._store.save(policy, "sampler_weights", request), type=kind)
        id = f"{policy.id}-live-{request['seq_id'].value}"
        weights = Weights(sampler=await policy.engine.sampler(), last_used=time.monotonic())
        self._sessions.find(policy.id).samplers[id] = weights  # unless it has ended meanwhile
        self._evict()
        return Result.json(sampling_session_id=id, type=kind)

    async def create(self, request: Field) -> Result:
        """Create a sampler of the base model or of a checkpoint."""
        session, path = self._sessions.find(request["session_id"].text()), request.get("model_path", None)
        id = f"{session.id}-sampler-{request['sampling_session_seq_id'].whole(0, messages.MAX_NUMBER)}"
        if path.value is None:
            messages.check_base_model(request["base_model"], self._model)
            session.samplers[id] = self._base
            return Result.json(sampling_session_id=id)
        checkpoint, _, _ = await self._store.lookup(path)  # one in memory may have expired
        if checkpoint.kind != "sampler_weights":
            path.wrong("is for training; save it with save_weights_for_sampler to sample with it")
        weights = self._by_path.setdefault(checkpoint.path, Weights(checkpoint))
        await self._load(weights, id)
        self._sessions.find(session.id).samplers[id] = weights  # unless it has ended meanwhile
        return Result.json(sampling_session_id=id)

    async def info(self, request: Field) -> Result:
        """The model and the checkpoint that a sampler is of."""
        id = request["sampler"].text()
        checkpoint = self._find(id)[1].checkpoint
        return Result.json(sampler_id=id, base_model=self._model, model_path=checkpoint and checkpoint.path)

    def _find(self, id: str) -> tuple[Session, Weights]:
        session = self._sessions.owner(id)
        if session is None or id not in session.samplers:
            raise NotFoundError(f"there is no sampler {id!r}; its session has ended, or the server was restarted")
        return session, session.samplers[id]

    def parse(self, request: Field) -> SampleRequest:
        """A request to sample, checked."""
        engine = self._engine
        return messages.sample_request(request, engine.decoder.shape, engine.chat.ends, default_seed=secrets.token_hex(16))

    async def sample(self, request: SampleRequest) -> Result:
        """Begin to sample."""
        session, weights = self._find(request.sampler)
        id = f"{request.sampler}.{request.number}"
        samples = [f"{id}.{index}" for index in range(len(request.samples))]
        accepted = Result.json(request_id=id, sample_sequence_ids=samples)
        if id in self._futures:
            return accepted
        if self._futures.pending >= _MAX_PENDING:
            raise BusyError(f"{_MAX_PENDING} requests are waiting")
        sampler = await self._load(weights, request.sampler)
        self._sessions.find(session.id)  # it may have ended meanwhile
        if id not in self._futures:  # the client may have sent it again meanwhile
            session.sampling.add(self._futures.start(id, lambda: self._sample(sampler, request)))
        return accepted

    async def _sample(self, sampler: LocalSampler, request: SampleRequest) -> Result:
        prompt_T, logprobs_T = request.samples[0].prompt_T, None
        if request.prompt_logprobs is not None:
            logprobs_T = np.zeros(0, np.float32)
            if request.prompt_logprobs:
                logprobs_T = (await self._batcher.logprobs(sampler, prompt_T))[-request.prompt_logprobs :]
        return messages.sample_result(await self._batcher.sample(sampler, request.samples), prompt_T, logprobs_T)

    async def _load(self, weights: Weights, id: str) -> LocalSampler:
        """The one sampler with these weights: requests for the same object are batched."""
        weights.last_used = time.monotonic()
        if weights.sampler is not None:
            return weights.sampler
        if weights.loading is None:
            if weights.checkpoint is None:
                limit = self._max_samplers
                raise NotFoundError(f"the sampler {id!r} was dropped: {limit} are kept; save one under a name to keep it")
            weights.loading = asyncio.create_task(self._read(weights, weights.checkpoint))
        return await asyncio.shield(weights.loading)

    async def _read(self, weights: Weights, checkpoint: CheckpointId) -> LocalSampler:
        try:
            folder, _ = await asyncio.to_thread(self._store.find, checkpoint)
            weights.sampler = sampler = await self._engine.sampler_with(folder)
        finally:
            weights.loading = None
        self._evict()
        return sampler

    def _evict(self) -> None:
        """Drop the least recently used weights from memory, if there are too many."""
        used = {weights for session in self._sessions.alive.values() for weights in session.samplers.values()}
        others = (used | set(self._by_path.values())) - {self._base}
        in_memory = sorted((w for w in others if w.sampler is not None), key=lambda weights: weights.last_used)
        for weights in in_memory[: -self._max_samplers]:
            weights.sampler = None


@dataclass(eq=False, slots=True)
class _Pending:
    """A request that is not done."""

    sampler: LocalSampler
    job: Job
    future: asyncio.Future[Job]


class RequestBatcher:
    """Gives requests to samplers, those that wait longest first.

    A request joins the running batch of its sampler, unless a request that can't join is waiting. Cancelled requests are
    not started, and stopped if they are running.
    """

    def __init__(self) -> None:
        self._waiting: list[_Pending] = []
        self._worker: asyncio.Task[None] | None = None
        self._joinable: LocalSampler | None = None  # whose batch runs and may be joined
        self._members: dict[_Pending, None] = {}  # of the running batch
        self._arrivals: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._batch: asyncio.Task[None] | None = None
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

    async def sample(self, sampler: LocalSampler, requests: Sequence[CompletionRequest]) -> list[Job]:
        """Sample a completion for each request. If one fails, the others are cancelled."""
        return await all_of([self._sample(sampler, request) for request in requests])

    async def _sample(self, sampler: LocalSampler, request: CompletionRequest) -> Job:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Job] = loop.create_future()
        # A job is done on the sampling thread.
        job = sampler.job(request, lambda job: loop.call_soon_threadsafe(self._receive, future, job), future.done)
        if job.error is not None:
            raise job.error
        pending = _Pending(sampler, job, future)
        future.add_done_callback(partial(self._leave, pending))
        if self._joinable is sampler and not self._waiting and not self._to_score:
            self._join(pending)
        else:
            self._waiting.append(pending)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            await self._wait_for_pause()
            self._waiting = [pending for pending in self._waiting if not pending.future.done()]  # drop cancelled ones
            if self._waiting:
                await self._run_batch(self._waiting[0].sampler)

    async def _wait_for_pause(self) -> None:
        for _ in range(_MAX_PAUSES):
            before = len(self._waiting)
            await asyncio.sleep(_PAUSE_S)
            if len(self._waiting) == before:
                return

    async def _run_batch(self, sampler: LocalSampler) -> None:
        """Sample until all members are done. Those that came too late or did not fit wait for the next batch."""
        self.batches += 1
        self._joinable, self._arrivals, self._members = sampler, queue.SimpleQueue(), {}
        for pending in self._waiting:
            if pending.sampler is sampler:
                self._join(pending)
        self._waiting = [pending for pending in self._waiting if pending.sampler is not sampler]
        self._batch = asyncio.create_task(sampler.run_batch(self._poll))
        try:
            await asyncio.wait({self._batch})
        finally:
            self._joinable = None
        unfinished = [pending for pending in self._members if not pending.future.done()]
        if not self._batch.cancelled() and (error := self._batch.exception()):
            for pending in unfinished:
                pending.future.set_exception(error)
        else:
            self._waiting = unfinished + self._waiting

    def _join(self, pending: _Pending) -> None:
        self._members[pending] = None
        self._arrivals.put(pending.job.reset())

    def _leave(self, pending: _Pending, future: asyncio.Future[Job]) -> None:
        if pending in self._members:
            del self._members[pending]
            if future.cancelled() and not self._members and self._batch is not None:
                self._batch.cancel()
                self._joinable = None

    def _poll(self) -> list[Job]:
        """The jobs that joined since the last call. Called on the sampling thread."""
        arrivals: list[Job] = []
        while not self._arrivals.empty():
            arrivals.append(self._arrivals.get())
        return arrivals

    def _receive(self, future: asyncio.Future[Job], job: Job) -> None:
        if not job.done and job.error is None:
            self._joinable = None  # it did not fit and waits for the next batch, which later arrivals must not delay
        elif future.done():  # it was cancelled
            return
        elif job.error is not None:
            future.set_exception(job.error)
        elif not math.isfinite(sum(job.logprobs)):
            future.set_exception(EngineError("the model gave a log-probability that is not finite"))
        else:
            future.set_result(job)

"""The samplers of all sessions, and requests to sample. The weights of a sampler never change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.batching import RequestBatcher
from peergrad.serve.checkpoints import CheckpointId, CheckpointStore
from peergrad.serve.errors import BusyError, NotFoundError
from peergrad.serve.futures import Futures
from peergrad.serve.policy import Policy
from peergrad.serve.requests import SampleRequest, check_base_model, checkpoint_id, checkpoint_name, ttl_seconds
from peergrad.serve.results import Result, sample_result
from peergrad.serve.sessions import Sessions

_MAX_PENDING = 4096


@dataclass(eq=False, slots=True)
class _Weights:
    """Weights to sample with. Those of a checkpoint are shared by all its samplers and loaded when they are needed."""

    checkpoint: CheckpointId | None = None
    sampler: LocalSampler | None = None
    loading: asyncio.Task[LocalSampler] | None = None


class Samplers:
    """Samplers by their ids. At most ``max_samplers`` sets of weights are in memory, besides the base model."""

    def __init__(
        self, engine: Local, store: CheckpointStore, sessions: Sessions, futures: Futures, max_samplers: int
    ) -> None:
        self._engine, self._store, self._sessions, self._futures = engine, store, sessions, futures
        self._max_samplers = max_samplers
        self._batcher = RequestBatcher()
        self._base = _Weights(sampler=engine.base_sampler())
        self._samplers: dict[str, tuple[str, _Weights]] = {}  # session and weights of each
        self._by_path: dict[str, _Weights] = {}
        self._in_memory: OrderedDict[_Weights, None] = OrderedDict()  # least recently used first
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}  # by session

    def end_session(self, session: str) -> None:
        """Drop a session's samplers and cancel their requests."""
        self._samplers = {id: sampler for id, sampler in self._samplers.items() if sampler[0] != session}
        self._drop_unused()
        for task in self._tasks.pop(session, set()):
            task.cancel()

    def detach(self, path: str) -> None:
        """Let samplers of a removed checkpoint keep their weights in memory: its path may come to mean other weights."""
        if weights := self._by_path.pop(path, None):
            weights.checkpoint = None
            self._drop_unused()

    def _drop_unused(self) -> None:
        for weights in [weights for weights in self._in_memory if not self._is_needed(weights)]:
            del self._in_memory[weights]

    def _is_needed(self, weights: _Weights) -> bool:
        return weights.checkpoint is not None or any(weights is used for _, used in self._samplers.values())

    async def save(self, request: Field, policy: Policy) -> Result:
        """Save a policy's weights to sample with: as a checkpoint if named, else in memory until its session ends."""
        kind, path = "save_weights_for_sampler", request.get("path", None)
        if path.value is not None:
            checkpoint = CheckpointId(policy.id, "sampler_weights", checkpoint_name(path))
            saved = await self._store.save(checkpoint, policy.info, policy.engine.save, ttl=ttl_seconds(request))
            return Result.json(path=saved, type=kind)
        id = f"{policy.id}-live-{request['seq_id'].value}"
        weights = _Weights(sampler=await policy.engine.sampler())
        self._sessions.touch(policy.session)  # it may have ended meanwhile
        self._samplers[id] = (policy.session, weights)
        self._mark_used(weights)
        return Result.json(sampling_session_id=id, type=kind)

    async def create(self, request: Field, model: str) -> str:
        """Create a sampler of the base model, ``model``, or of a checkpoint. Returns its id."""
        session, path = request["session_id"].text(), request.get("model_path", None)
        self._sessions.touch(session)
        id = f"{session}-sampler-{request['sampling_session_seq_id'].whole(0)}"
        if path.value is None:
            check_base_model(request["base_model"], model)
            self._samplers[id] = (session, self._base)
            return id
        checkpoint = checkpoint_id(path)
        if checkpoint.kind != "sampler_weights":
            path.wrong("is for training; save it with save_weights_for_sampler to sample with it")
        await asyncio.to_thread(self._store.find, checkpoint)  # one in memory may have expired
        weights = self._by_path.setdefault(checkpoint.path, _Weights(checkpoint))
        await self._load(weights, id)
        self._sessions.touch(session)  # it may have ended meanwhile
        self._samplers[id] = (session, weights)
        return id

    def checkpoint_path(self, id: str) -> str | None:
        """The path of the checkpoint that a sampler is of, if it is of one."""
        _, weights = self._find(id)
        return weights.checkpoint and weights.checkpoint.path

    def _find(self, id: str) -> tuple[str, _Weights]:
        if id not in self._samplers:
            raise NotFoundError(f"there is no sampler {id!r}; its session has ended, or the server was restarted")
        return self._samplers[id]

    async def sample(self, request: SampleRequest) -> tuple[str, list[str]]:
        """Begin to sample. Returns the ids of the request and of its samples."""
        session, weights = self._find(request.sampler)
        self._sessions.touch(session)
        id = f"{request.sampler}.{request.number}"
        sample_ids = [f"{id}.{index}" for index in range(len(request.samples))]
        if id in self._futures:
            return id, sample_ids
        if self._futures.pending >= _MAX_PENDING:
            raise BusyError(f"{_MAX_PENDING} requests are waiting")
        sampler = await self._load(weights, request.sampler)
        self._sessions.touch(session)  # it may have ended meanwhile
        if id not in self._futures:  # the client may have sent it again meanwhile
            task = self._futures.start(id, lambda: self._sample(sampler, request))
            tasks = self._tasks.setdefault(session, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return id, sample_ids

    async def _sample(self, sampler: LocalSampler, request: SampleRequest) -> Result:
        prompt_T, logprobs_T = request.samples[0].prompt_T, None
        if request.prompt_logprobs is not None:
            logprobs_T = np.zeros(0, np.float32)
            if request.prompt_logprobs:
                logprobs_T = (await self._batcher.logprobs(sampler, prompt_T))[-request.prompt_logprobs :]
        return sample_result(await self._batcher.sample(sampler, request.samples), prompt_T, logprobs_T)

    async def _load(self, weights: _Weights, id: str) -> LocalSampler:
        """The one sampler with these weights: requests for the same object are batched."""
        if weights.sampler is not None:
            self._mark_used(weights)
            return weights.sampler
        if weights.loading is None:
            if weights.checkpoint is None:
                limit = self._max_samplers
                raise NotFoundError(f"the sampler {id!r} was dropped: {limit} are kept; save one under a name to keep it")
            weights.loading = asyncio.create_task(self._read(weights, weights.checkpoint))
        return await asyncio.shield(weights.loading)

    async def _read(self, weights: _Weights, checkpoint: CheckpointId) -> LocalSampler:
        try:
            folder, _ = await asyncio.to_thread(self._store.find, checkpoint)
            weights.sampler = sampler = await self._engine.sampler_with(folder)
        finally:
            weights.loading = None
        if self._is_needed(weights):
            self._mark_used(weights)
        return sampler

    def _mark_used(self, weights: _Weights) -> None:
        if weights is self._base:
            return
        self._in_memory[weights] = None
        self._in_memory.move_to_end(weights)
        while len(self._in_memory) > self._max_samplers:
            oldest, _ = self._in_memory.popitem(last=False)
            oldest.sampler = None

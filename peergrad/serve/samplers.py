"""The samplers of all sessions, and requests to sample. The weights of a sampler never change."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

import numpy as np

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.batching import RequestBatcher
from peergrad.serve.checkpoints import CheckpointId, CheckpointStore
from peergrad.serve.policies import Policy
from peergrad.serve.requests import SampleRequest, check_base_model, sample_request
from peergrad.serve.results import BusyError, Futures, NotFoundError, Result, sample_result
from peergrad.serve.sessions import Session, Sessions

_MAX_PENDING = 4096


@dataclass(eq=False, slots=True)
class Weights:
    """Weights to sample with. Those of a checkpoint are shared by all its samplers and loaded when they are needed."""

    checkpoint: CheckpointId | None = None
    sampler: LocalSampler | None = None
    loading: asyncio.Task[LocalSampler] | None = None
    last_used: float = 0.0


class Samplers:
    """Samplers by their ids. At most ``max_samplers`` sets of weights are in memory, besides the base model."""

    def __init__(
        self, engine: Local, model: str, store: CheckpointStore, sessions: Sessions, futures: Futures, max_samplers: int
    ) -> None:
        self._engine, self._model, self._max_samplers = engine, model, max_samplers
        self._store, self._sessions, self._futures = store, sessions, futures
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
        id = f"{session.id}-sampler-{request['sampling_session_seq_id'].whole(0)}"
        if path.value is None:
            check_base_model(request["base_model"], self._model)
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
        return sample_request(request, engine.decoder.shape, engine.chat.ends, default_seed=secrets.token_hex(16))

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
        return sample_result(await self._batcher.sample(sampler, request.samples), prompt_T, logprobs_T)

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

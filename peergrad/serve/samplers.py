"""The samplers of all sessions, and requests to sample. The weights of a sampler never change."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from peergrad.debate.fields import Field
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.batching import RequestBatcher
from peergrad.serve.checkpoints import CheckpointId, CheckpointStore
from peergrad.serve.errors import BusyError, NotFoundError
from peergrad.serve.futures import Futures
from peergrad.serve.policy import Policy
from peergrad.serve.requests import SampleRequest, check_base_model, checkpoint_id, checkpoint_name, ttl_seconds
from peergrad.serve.results import Result, sample_result
from peergrad.serve.sampler_cache import SamplerCache
from peergrad.serve.sessions import Sessions

_MAX_PENDING = 4096


@dataclass(frozen=True, slots=True)
class SamplerInfo:
    """The session of a sampler and the weights it samples with: the base model's, some in memory, or a checkpoint's."""

    session: str
    weights: Literal["base", "memory", "checkpoint"]
    key: str | None = None
    """The key in ``SamplerCache``; None for the base model."""

    @property
    def path(self) -> str | None:
        """The path of the checkpoint, if it samples with one."""
        return self.key if self.weights == "checkpoint" else None


class Samplers:
    """Samplers by their ids."""

    def __init__(self, cache: SamplerCache, store: CheckpointStore, sessions: Sessions, futures: Futures) -> None:
        self._cache, self._store, self._sessions, self._futures = cache, store, sessions, futures
        self._batcher = RequestBatcher()
        self._samplers: dict[str, SamplerInfo] = {}
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}  # by session

    def end_session(self, session: str) -> None:
        """Drop a session's samplers and cancel their requests."""
        ended = {id: sampler for id, sampler in self._samplers.items() if sampler.session == session}
        for id in ended:
            del self._samplers[id]
        in_memory = {sampler.key for sampler in ended.values() if sampler.weights == "memory"}
        for unused in in_memory - {sampler.key for sampler in self._samplers.values()}:
            self._cache.remove(str(unused))
        for task in self._tasks.pop(session, set()):
            task.cancel()

    def detach(self, path: str) -> None:
        """Let samplers of a removed checkpoint keep their weights in memory: its path may come to mean other weights."""
        ids = [id for id, sampler in self._samplers.items() if sampler.path == path]
        if not ids:
            self._cache.remove(path)
            return
        for id in ids:
            self._samplers[id] = replace(self._samplers[id], weights="memory", key=ids[0])
        self._cache.rename(path, ids[0])

    async def save(self, request: Field, policy: Policy) -> Result:
        """Save a policy's weights to sample with: as a checkpoint if named, else in memory until its session ends."""
        kind, path = "save_weights_for_sampler", request.get("path", None)
        if path.value is not None:
            id = CheckpointId(policy.id, "sampler_weights", checkpoint_name(path))
            saved = await self._store.save(id, policy.info, policy.save, ttl=ttl_seconds(request))
            return Result.json(path=saved, type=kind)
        key = f"{policy.id}-live-{request['seq_id'].value}"
        sampler = await policy.sampler()
        self._sessions.touch(policy.session)  # it may have ended meanwhile
        self._cache.add(key, sampler)
        self._samplers[key] = SamplerInfo(policy.session, "memory", key)
        return Result.json(sampling_session_id=key, type=kind)

    async def create(self, request: Field, model: str) -> str:
        """Create a sampler of the base model, ``model``, or of a checkpoint. Returns its id."""
        session, path = request["session_id"].text(), request.get("model_path", None)
        self._sessions.touch(session)
        id = f"{session}-sampler-{request['sampling_session_seq_id'].whole(0)}"
        if path.value is None:
            check_base_model(request["base_model"], model)
            self._samplers[id] = SamplerInfo(session, "base")
            return id
        checkpoint = checkpoint_id(path)
        if checkpoint.kind != "sampler_weights":
            path.wrong("is for training; save it with save_weights_for_sampler to sample with it")
        await asyncio.to_thread(self._store.find, checkpoint)  # one in the cache may have expired
        await self._cache.load(path.text())
        self._sessions.touch(session)  # it may have ended meanwhile
        self._samplers[id] = SamplerInfo(session, "checkpoint", path.text())
        return id

    def find(self, id: str) -> SamplerInfo:
        """A sampler by its id."""
        if id not in self._samplers:
            raise NotFoundError(f"there is no sampler {id!r}; its session has ended, or the server was restarted")
        return self._samplers[id]

    async def sample(self, request: SampleRequest) -> tuple[str, list[str]]:
        """Begin to sample. Returns the ids of the request and of its samples."""
        info = self.find(request.sampler)
        self._sessions.touch(info.session)
        id = f"{request.sampler}.{request.number}"
        sample_ids = [f"{id}.{index}" for index in range(len(request.samples))]
        if id in self._futures:
            return id, sample_ids
        if self._futures.pending >= _MAX_PENDING:
            raise BusyError(f"{_MAX_PENDING} requests are waiting")
        sampler = await self._loaded(info)
        self._sessions.touch(info.session)  # it may have ended meanwhile
        if id not in self._futures:  # the client may have sent it again meanwhile
            task = self._futures.start(id, lambda: self._sample(sampler, request))
            tasks = self._tasks.setdefault(info.session, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return id, sample_ids

    async def _loaded(self, info: SamplerInfo) -> LocalSampler:
        if info.key is None:
            return self._cache.base
        return self._cache.get(info.key) if info.weights == "memory" else await self._cache.load(info.key)

    async def _sample(self, sampler: LocalSampler, request: SampleRequest) -> Result:
        prompt_T, logprobs_T = request.samples[0].prompt_T, None
        if request.prompt_logprobs is not None:
            logprobs_T = np.zeros(0, np.float32)
            if request.prompt_logprobs:
                logprobs_T = (await self._batcher.logprobs(sampler, prompt_T))[-request.prompt_logprobs :]
        return sample_result(await self._batcher.sample(sampler, request.samples), prompt_T, logprobs_T)

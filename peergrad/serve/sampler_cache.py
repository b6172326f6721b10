"""The most recently used samplers, in memory. Those of checkpoints are loaded again when needed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.errors import NotFoundError
from peergrad.serve.requests import checkpoint_id


class SamplerCache:
    """At most ``max_samplers`` samplers, and the base model's. Keys are ids of samplers, or paths of checkpoints."""

    def __init__(self, engine: Local, store: CheckpointStore, max_samplers: int) -> None:
        self.base = engine.base_sampler()
        self._engine, self._store, self._max_samplers = engine, store, max_samplers
        self._samplers: OrderedDict[str, LocalSampler] = OrderedDict()
        self._loading: dict[str, asyncio.Task[LocalSampler]] = {}

    def add(self, key: str, sampler: LocalSampler) -> None:
        """Add a sampler; the least recently used one may be evicted."""
        self._samplers[key] = sampler
        while len(self._samplers) > self._max_samplers:
            self._samplers.popitem(last=False)

    def get(self, key: str) -> LocalSampler:
        """A sampler that is in memory alone."""
        if key not in self._samplers:
            raise NotFoundError(
                f"the sampler {key!r} was dropped: {self._max_samplers} are kept; save one under a name to keep it"
            )
        self._samplers.move_to_end(key)
        return self._samplers[key]

    def rename(self, path: str, key: str) -> None:
        """Give the sampler of a checkpoint, loaded or loading, another key."""
        self._samplers = OrderedDict((key if old == path else old, sampler) for old, sampler in self._samplers.items())
        if path in self._loading:
            self._loading[key] = self._loading.pop(path)

    def remove(self, key: str) -> None:
        self._samplers.pop(key, None)
        self._loading.pop(key, None)

    async def load(self, path: str) -> LocalSampler:
        """The sampler of a checkpoint: always the same object, so that requests for it are batched."""
        if path in self._samplers:
            return self.get(path)
        if path not in self._loading:
            self._loading[path] = task = asyncio.create_task(self._load(path))
            task.add_done_callback(self._add_loaded)
        return await asyncio.shield(self._loading[path])

    def _add_loaded(self, task: asyncio.Task[LocalSampler]) -> None:
        """Add a loaded sampler under the key that it has by now, if it was not removed meanwhile."""
        for key in [key for key, loading in self._loading.items() if loading is task]:
            del self._loading[key]
            if not task.cancelled() and task.exception() is None:
                self.add(key, task.result())

    async def _load(self, path: str) -> LocalSampler:
        id = checkpoint_id(Field(path, "request", "model_path"))
        folder, _ = await asyncio.to_thread(self._store.find, id)
        return await self._engine.sampler_with(folder)

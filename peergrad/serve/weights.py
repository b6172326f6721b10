"""Sets of weights in memory to sample with: those used last. Those of a checkpoint are loaded again when asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.refusals import Missing
from peergrad.serve.requests import saved
from peergrad.serve.store import Store


class Weights:
    """At most ``most`` sets of weights, and the base model."""

    def __init__(self, engine: Local, store: Store, most: int) -> None:
        self.base = engine.base_sampler()
        self._engine, self._store, self._most = engine, store, most
        self._held: OrderedDict[str, LocalSampler] = OrderedDict()
        self._loading: dict[str, asyncio.Task[LocalSampler]] = {}

    def hold(self, key: str, sampler: LocalSampler) -> None:
        """Keep some weights; those not used for longest may have to go."""
        self._held[key] = sampler
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def held(self, key: str) -> LocalSampler:
        """Weights that are in memory alone."""
        if key not in self._held:
            raise Missing(f"the sampler {key!r} was let go: {self._most} are kept; save one under a name to keep it")
        self._held.move_to_end(key)
        return self._held[key]

    def rename(self, path: str, key: str) -> None:
        """Keep what was loaded from a checkpoint, or is being loaded, under this key instead."""
        self._held = OrderedDict((key if one == path else one, sampler) for one, sampler in self._held.items())
        if path in self._loading:
            self._loading[key] = self._loading.pop(path)

    def drop(self, key: str) -> None:
        self._held.pop(key, None)
        self._loading.pop(key, None)  # what comes of it is nobody's

    async def loaded(self, path: str) -> LocalSampler:
        """The weights of a checkpoint: one object, so that requests for it are sampled together."""
        if path in self._held:
            return self.held(path)
        if path not in self._loading:
            self._loading[path] = task = asyncio.create_task(self._load(path))
            task.add_done_callback(self._arrived)
        return await asyncio.shield(self._loading[path])

    def _arrived(self, task: asyncio.Task[LocalSampler]) -> None:
        """Hold what was loaded under the name it has by now, if anybody still wants it."""
        for key in [key for key, loading in self._loading.items() if loading is task]:
            del self._loading[key]
            if not task.cancelled() and task.exception() is None:
                self.hold(key, task.result())

    async def _load(self, path: str) -> LocalSampler:
        folder, _ = await asyncio.to_thread(self._store.find, *saved(Field(path, "request", "model_path")))
        return await self._engine.adapted(folder)

"""Samplers in memory: those used last. One that is also on disk is loaded again when it is asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sampler import LocalSampler
from peergrad.serve.store import Store
from peergrad.serve.wire import Missing, saved


class Samplers:
    """At most ``most`` sets of weights to sample with, and the base model."""

    def __init__(self, engine: Local, store: Store, most: int) -> None:
        self.base = engine.base_sampler()
        self._engine, self._store, self._most = engine, store, most
        self._held: OrderedDict[str, LocalSampler] = OrderedDict()
        self._loading: dict[str, asyncio.Task[LocalSampler]] = {}

    def hold(self, key: str, sampler: LocalSampler) -> None:
        """Keep a sampler; the one not used for longest may have to go."""
        self._held[key] = sampler
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def held(self, key: str) -> LocalSampler:
        """A sampler that is in memory alone."""
        if key not in self._held:
            raise Missing(f"the sampler {key!r} was let go: {self._most} are kept; save one under a name to keep it")
        self._held.move_to_end(key)
        return self._held[key]

    def inherit(self, key: str, path: str) -> None:
        """Keep what was loaded from a checkpoint under another key, if it is in memory."""
        if path in self._held:
            self.hold(key, self._held[path])

    def drop(self, key: str) -> None:
        self._held.pop(key, None)

    async def loaded(self, path: str) -> LocalSampler:
        """The sampler of a checkpoint: one object, so that requests for it are sampled together."""
        if path in self._held:
            return self.held(path)
        folder, _ = self._store.find(*saved(Field(path, "request", "model_path")))
        if path not in self._loading:
            self._loading[path] = task = asyncio.create_task(self._engine.adapted(folder))
            task.add_done_callback(lambda _: self._loading.pop(path, None))
        sampler = await asyncio.shield(self._loading[path])
        self.hold(path, sampler)
        return sampler

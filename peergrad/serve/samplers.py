"""Samplers by their ids, and what is asked of them. Each is of the same weights for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from peergrad.debate.fields import Field
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.serve.learning import Learner
from peergrad.serve.promises import Promises
from peergrad.serve.refusals import Busy, Missing
from peergrad.serve.requests import Wish, known, name, saved, seconds
from peergrad.serve.results import Result, sampled
from peergrad.serve.sampling import Desk
from peergrad.serve.sessions import Sessions
from peergrad.serve.store import Store
from peergrad.serve.weights import Weights

_MOST_WAITING = 4096


@dataclass(frozen=True, slots=True)
class Sampler:
    """Whose a sampler is and what it is of: the base model, weights in memory alone, or a checkpoint.

    ``name`` is that of the weights: a key in memory, or the checkpoint's path.
    """

    session: str
    of: Literal["base", "memory", "checkpoint"]
    name: str | None = None

    @property
    def path(self) -> str | None:
        """Of the checkpoint, if it is of one."""
        return self.name if self.of == "checkpoint" else None


class Samplers:
    """Those of the sessions that live."""

    def __init__(self, weights: Weights, store: Store, sessions: Sessions, promises: Promises) -> None:
        self._weights, self._store, self._sessions, self._promises = weights, store, sessions, promises
        self._desk = Desk()
        self._by_id: dict[str, Sampler] = {}
        self._under_way: dict[str, set[asyncio.Task[None]]] = {}

    def end(self, session: str) -> None:
        """Let go of a session's samplers, and do no more of what was asked of them."""
        theirs = {id: sampler for id, sampler in self._by_id.items() if sampler.session == session}
        for id in theirs:
            del self._by_id[id]
        in_memory = {sampler.name for sampler in theirs.values() if sampler.of == "memory"}
        for unused in in_memory - {sampler.name for sampler in self._by_id.values()}:
            self._weights.drop(str(unused))
        for task in self._under_way.pop(session, set()):
            task.cancel()

    def part(self, path: str) -> None:
        """Samplers of a checkpoint that is gone keep their weights, in memory alone: its name may come to mean others."""
        ids = [id for id, sampler in self._by_id.items() if sampler.path == path]
        if not ids:
            self._weights.drop(path)
            return
        for id in ids:
            self._by_id[id] = replace(self._by_id[id], of="memory", name=ids[0])
        self._weights.rename(path, ids[0])

    async def keep(self, request: Field, learner: Learner) -> Result:
        """Keep a policy's weights to sample with: under a name on disk, or in memory as long as its session lives."""
        kind, path = "save_weights_for_sampler", request.get("path", None)
        if path.value is not None:
            where = (learner.id, "sampler_weights", name(path))
            ttl = seconds(request)
            kept = await self._store.save(*where, learner.about, learner.save, overwrite=False, ttl=ttl)
            return Result.json(path=kept, type=kind)
        id = f"{learner.id}-live-{request['seq_id'].value}"
        made = await learner.sampler()
        self._sessions.hear(learner.session)  # it may have ended meanwhile
        self._weights.hold(id, made)
        self._by_id[id] = Sampler(learner.session, "memory", id)
        return Result.json(sampling_session_id=id, type=kind)

    async def make(self, request: Field, model: str) -> str:
        """A sampler of the base model, ``model``, or of weights kept under a name."""
        session, path = request["session_id"].text(), request.get("model_path", None)
        self._sessions.hear(session)
        id = f"{session}-sampler-{request['sampling_session_seq_id'].whole(0)}"
        if path.value is None:
            known(request["base_model"], model)
            self._by_id[id] = Sampler(session, "base")
            return id
        if saved(path)[1] != "sampler_weights":
            path.wrong("is for training; save it with save_weights_for_sampler to sample with it")
        await asyncio.to_thread(self._store.find, *saved(path))  # what is in memory may have expired
        await self._weights.loaded(path.text())
        self._sessions.hear(session)  # it may have ended meanwhile
        self._by_id[id] = Sampler(session, "checkpoint", path.text())
        return id

    def find(self, id: str) -> Sampler:
        """A sampler by its id."""
        if id not in self._by_id:
            raise Missing(f"there is no sampler {id!r}; its session has ended, or the server was started anew")
        return self._by_id[id]

    async def sample(self, wanted: Wish) -> tuple[str, list[str]]:
        """Have something sampled: the ids of the request and of what it will give."""
        found = self.find(wanted.sampler)
        self._sessions.hear(found.session)
        promise = f"{wanted.sampler}.{wanted.number}"
        ids = [f"{promise}.{index}" for index in range(len(wanted.starts))]
        if promise in self._promises:
            return promise, ids
        if self._promises.waiting >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests are waiting")
        sampler = await self._loaded(found)
        self._sessions.hear(found.session)  # it may have ended meanwhile
        if promise not in self._promises:  # the same request may have come a second time meanwhile
            task = self._promises.start(promise, lambda: self._sample(sampler, wanted))
            tasks = self._under_way.setdefault(found.session, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return promise, ids

    async def _loaded(self, sampler: Sampler) -> LocalSampler:
        if sampler.name is None:
            return self._weights.base
        return self._weights.held(sampler.name) if sampler.of == "memory" else await self._weights.loaded(sampler.name)

    async def _sample(self, sampler: LocalSampler, wanted: Wish) -> Result:
        prompt_T, scores_T = wanted.starts[0].prompt_T, None
        if wanted.scored is not None:
            scores_T = np.zeros(0, np.float32)
            if wanted.scored:
                scores_T = (await self._desk.score(sampler, prompt_T))[-wanted.scored :]
        return sampled(await self._desk.sample(sampler, wanted.starts), prompt_T, scores_T)

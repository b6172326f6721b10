"""All that is served: sessions, the policies they train and the samplers they made, within limits."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.serve.policies import Policies
from peergrad.serve.promises import Promises
from peergrad.serve.requests import Limits, Wish, name, saved, wish
from peergrad.serve.samplers import Samplers
from peergrad.serve.sessions import Sessions
from peergrad.serve.store import About, Kept, Store
from peergrad.serve.weights import Weights

_SWEEP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRules:
    """What is served, and how much at once."""

    model: str
    out: Path
    max_models: int = 8
    max_samplers: int = 32


class Service:
    """Answers requests. What is asked a second time has happened once."""

    def __init__(self, engine: Local, rules: ServeRules) -> None:
        self.rules, self.store, self.promises = rules, Store(rules.out, self._part), Promises()
        self.sessions = Sessions(self._let_go)
        self.policies = Policies(engine, self.store, self.sessions, self.promises, rules.max_models)
        weights = Weights(engine, self.store, rules.max_samplers)
        self.samplers = Samplers(weights, self.store, self.sessions, self.promises)
        self._engine = engine
        self._limits = Limits(engine.decoder.shape.vocabulary, engine.context)
        self.store.sweep()

    @property
    def context(self) -> int:
        """The longest sequence there can be."""
        return self._limits.context

    def _let_go(self, session: str) -> None:
        self.policies.end(session)
        self.samplers.end(session)
        self.promises.end(session)

    def _part(self, path: str) -> None:
        self.samplers.part(path)

    async def sweep(self) -> None:
        """End sessions nobody is heard of, and forget old results, again and again."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.sweep()
            self.promises.sweep()

    def wish(self, request: Field) -> Wish:
        """A request to sample, read."""
        return wish(request, self._limits, self._engine.chat.ends, secrets.token_hex(16))

    def save_sampler(self, request: Field) -> str:
        """Have a policy's weights kept to sample with."""
        return self.policies.in_turn(request, partial(self.samplers.keep, request))

    async def checkpoint(self, path: Field) -> About:
        """What a checkpoint is of."""
        return (await self.policies.checkpoint(path))[1]

    async def checkpoints(self) -> list[Kept]:
        """Every checkpoint, newest last."""
        return await asyncio.to_thread(self.store.all)

    async def run(self, model: Field) -> tuple[About, list[Kept]]:
        """What a model is, trained now or once, and its checkpoints, newest last."""
        kept = await asyncio.to_thread(self.store.all, name(model))
        return kept[-1].about if kept else self.policies.find(model.text()).about, kept

    async def forget(self, path: Field) -> None:
        """Remove a checkpoint from the disk."""
        await self.store.remove(*saved(path))

    async def limit(self, path: Field, ttl: int | None) -> None:
        """Have a checkpoint expire so many seconds from now, or never."""
        await asyncio.to_thread(self.store.limit, *saved(path), ttl)

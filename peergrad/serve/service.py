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
from peergrad.serve.store import About, Kind, Store
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
        self.rules, self.store, self.promises = rules, Store(rules.out), Promises()
        self.sessions = Sessions(self._let_go)
        self.policies = Policies(engine, self.store, self.sessions, self.promises, rules.max_models)
        weights = Weights(engine, self.store, rules.max_samplers)
        self.samplers = Samplers(weights, self.store, self.sessions, self.promises)
        self._engine = engine
        self._limits = Limits(engine.decoder.shape.vocabulary, engine.context)

    @property
    def context(self) -> int:
        """The longest sequence there can be."""
        return self._limits.context

    def _let_go(self, session: str) -> None:
        self.policies.end(session)
        self.samplers.end(session)
        self.promises.end(session)

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

    async def checkpoints(self, model: Field) -> list[tuple[Kind, str, float]]:
        """Kind, name and time of every checkpoint of a model."""
        return await asyncio.to_thread(self.store.all, name(model))

    async def forget(self, path: Field) -> None:
        """Remove a checkpoint from the disk. Samplers made of it that are in memory stay there."""
        await asyncio.to_thread(self.store.remove, *saved(path))

"""The state of the server: sessions, their policies and samplers, and checkpoints."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from pathlib import Path

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.futures import Futures
from peergrad.serve.policies import Policies
from peergrad.serve.requests import Limits, SampleRequest, sample_request
from peergrad.serve.samplers import Samplers
from peergrad.serve.sessions import Sessions

_SWEEP_S = 10.0


class Service:
    """Serves ``engine`` under the name ``model``; checkpoints are kept in ``out``."""

    def __init__(self, engine: Local, model: str, out: Path, *, max_models: int = 8, max_samplers: int = 32) -> None:
        self.model = model
        self.limits = Limits(engine.decoder.shape.vocabulary, engine.context)
        self.store = CheckpointStore(out, lambda path: self.samplers.detach(path))
        self.futures, self.sessions = Futures(), Sessions(self._end_session)
        self.policies = Policies(engine, self.store, self.sessions, self.futures, self.limits, max_models)
        self.samplers = Samplers(engine, self.store, self.sessions, self.futures, max_samplers)
        self._end_tokens = engine.chat.ends
        self.store.remove_expired()

    def _end_session(self, session: str) -> None:
        self.policies.end_session(session)
        self.samplers.end_session(session)
        self.futures.end_session(session)

    async def sweep(self) -> None:
        """End idle sessions and drop old results, periodically."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.end_idle()
            self.futures.expire()

    def sample_request(self, request: Field) -> SampleRequest:
        """Parse a request to sample."""
        return sample_request(request, self.limits, self._end_tokens, secrets.token_hex(16))

    def save_sampler(self, request: Field) -> str:
        """Queue saving a policy's weights to sample with. Returns the id of the request."""
        return self.policies.submit(request, partial(self.samplers.save, request))

"""The state of the server, and its answers about itself, sessions and results."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.futures import Futures
from peergrad.serve.listings import Listings
from peergrad.serve.policies import Policies
from peergrad.serve.results import GoneError, NotFoundError, Result
from peergrad.serve.samplers import Samplers
from peergrad.serve.sessions import Sessions

_SWEEP_S = 10.0
_POLL_S = 20.0  # clients give up on a response after 45 s


class Service:
    """Serves ``engine`` under the name ``model``; checkpoints are kept in ``out``."""

    def __init__(self, engine: Local, model: str, out: Path, *, max_models: int = 8, max_samplers: int = 32) -> None:
        self.model, self.shape = model, engine.decoder.shape
        store = CheckpointStore(out, lambda path: self.samplers.detach(path))
        self.futures = Futures()
        self.sessions = Sessions(self.futures)
        self.policies = Policies(engine, model, store, self.sessions, self.futures, max_models)
        self.samplers = Samplers(engine, model, store, self.sessions, self.futures, max_samplers)
        self.listings = Listings(store, self.policies)
        store.remove_expired()

    async def sweep(self) -> None:
        """End idle sessions and drop old results, periodically."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.end_idle()
            self.futures.expire()

    async def health(self, _: Field) -> Result:
        return Result.json(status="ok")

    async def config(self, _: Field) -> Result:
        return Result.json(proto_compress_fwdbwd=False)  # clients have defaults for all other settings

    async def capabilities(self, _: Field) -> Result:
        model = {"model_name": self.model, "max_context_length": self.shape.context}
        return Result.json(supported_models=[model | {"trainable": True, "sampleable": True}])

    async def create_session(self, request: Field) -> Result:
        return Result.json(session_id=self.sessions.create(request["idempotency_key"].value))

    async def heartbeat(self, request: Field) -> Result:
        try:
            self.sessions.find(request["session_id"].text())
        except NotFoundError as error:
            raise GoneError(str(error)) from None  # clients stop their heartbeat at 410, not at 404
        return Result.json()

    async def end_session(self, request: Field) -> Result:
        self.sessions.end(request["session"].text())
        return Result.json()

    async def retrieve_future(self, request: Field) -> Result:
        id = request["request_id"].text()
        self.sessions.owner(id)  # it is in use
        result = await self.futures.result(id, _POLL_S)
        if result is None:
            return replace(Result.json(type="try_again", request_id=id, queue_state="active"), status=408)
        return result

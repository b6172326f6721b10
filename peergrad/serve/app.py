"""The server: its state, and the HTTP routes of the protocol that the tinker client speaks, version 0.36."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.messages import PROTOBUF, BusyError, GoneError, NotFoundError, Result, parse_forward_backward
from peergrad.serve.policies import Policies, Policy
from peergrad.serve.samplers import Samplers
from peergrad.serve.sessions import Sessions

_SWEEP_S = 10.0
_POLL_S = 20.0  # clients give up on a response after 45 s
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
_STATUS = {NotFoundError: 404, GoneError: 410, UserError: 422, BusyError: 429, EngineError: 500}
_INLINE_BYTES = 16_384  # parsing a smaller body takes less time than handing it to a thread
_JSON_BYTES, _JSON_BYTES_PER_TOKEN = 2**20, 16  # a prompt fills a context at most, its tokens are written in digits
_DATA_BYTES, _DATA_BYTES_PER_TOKEN = 16 * 2**20, 64  # clients send parts of 5 MB, or one sequence

_ANY_KEY = re.compile("tml-|eyJ")  # what every key that clients take begins with

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Result]]


class Service:
    """Serves ``engine`` under the name ``model``; checkpoints are kept in ``out``."""

    def __init__(
        self, engine: Local, model: str, out: Path, *, tokenizer: str = "", max_models: int = 8, max_samplers: int = 32
    ) -> None:
        """``tokenizer`` is a name by which clients can load it; without one, the model's."""
        self.model, self.shape = model, engine.decoder.shape
        self.store = CheckpointStore(out, lambda path: self.samplers.detach(path), lambda model: self.policies.find(model))
        self.sessions = Sessions()
        self.policies = Policies(engine, model, tokenizer or model, self.store, self.sessions, max_models)
        self.samplers = Samplers(engine, model, self.store, self.sessions, max_samplers)
        self.store.remove_expired()

    async def sweep(self) -> None:
        """End idle sessions and drop old results, periodically."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.end_idle()
            self.sessions.futures.expire()

    async def health(self, _: Field) -> Result:
        return Result.json(status="ok")

    async def config(self, _: Field) -> Result:
        return Result.json(proto_compress_fwdbwd=False)  # clients have defaults for all other settings

    async def capabilities(self, _: Field) -> Result:
        model = {"model_name": self.model, "max_context_length": self.shape.context}
        return Result.json(supported_models=[model | {"trainable": True, "sampleable": True}])

    async def create_session(self, request: Field) -> Result:
        return Result.json(session_id=self.sessions.create(request["idempotency_key"].value, request["client"].text()))

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
        result = await self.sessions.futures.result(id, _POLL_S)
        if result is None:
            return replace(Result.json(type="try_again", request_id=id, queue_state="active"), status=408)
        return result


def application(service: Service, key: str | None, *, loopback: str | None) -> Starlette:
    """The server. Clients must send ``key``; None accepts any that may be one, which is safe on a loopback address only.

    ``loopback`` is that address as it is written in a URL; None if the server listens elsewhere.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.sweep())
        yield
        task.cancel()

    # Protects from DNS rebinding: a web page in a local browser can reach this server only under a name of its own.
    hosts = [Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, loopback])] if loopback else []
    return Starlette(routes=_routes(service, key), lifespan=lifespan, middleware=hosts)


def _routes(service: Service, key: str | None) -> list[Route]:
    max_json = _JSON_BYTES + _JSON_BYTES_PER_TOKEN * service.shape.context
    max_data = _DATA_BYTES + _DATA_BYTES_PER_TOKEN * service.shape.context
    # Threads of its own: those of the default executor may all be waiting for the model.
    parsers = ThreadPoolExecutor(2, "parser")

    async def parsed(request: Request, limit: int, parse: Callable[[bytes], T]) -> T:
        body = await _body(request, limit)
        if len(body) <= _INLINE_BYTES:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(parsers, parse, body)

    def json(answer: Callable[[Field], Awaitable[Result]]) -> Handler:
        """Gives ``answer`` the body of a request, with the parameters of its path and query and its idempotency key."""

        async def handler(request: Request) -> Result:
            body = {}
            if request.method in ("POST", "PUT"):
                body = (await parsed(request, max_json, lambda body: Field.parse(body, "request"))).value
            key = {"idempotency_key": request.headers.get("x-idempotency-key")}
            key["client"] = request.client.host if request.client else ""
            texts = request.query_params.items()
            query = {name: int(text) if re.fullmatch("[0-9]{1,9}", text) else text for name, text in texts}
            return await answer(Field(body | query | request.path_params | key, "request"))

        return handler

    async def asample(request: Request) -> Result:
        parse = lambda body: service.samplers.parse(Field.parse(body, "request"))  # noqa: E731
        return await service.samplers.sample(await parsed(request, max_json, parse))

    async def forward_backward(request: Request) -> Result:
        if request.headers.get("content-type") != PROTOBUF:
            raise HTTPException(415, f"training data must be {PROTOBUF}; this server needs tinker 0.25 or newer")
        return await service.policies.forward_backward(await parsed(request, max_data, parse_forward_backward))

    async def telemetry(request: Request) -> Result:
        await _body(request, max_data)
        return Result.json(status="accepted")

    checkpoint, queued = "training_runs/{model}/checkpoints/{kind}/{name}", service.policies.queued
    answers = {
        "GET healthz": service.health,
        "POST client/config": service.config,
        "POST client/dynamic_config": service.config,
        "GET get_server_capabilities": service.capabilities,
        "POST create_session": service.create_session,
        "POST session_heartbeat": service.heartbeat,
        "POST sessions/{session}/finish": service.end_session,
        "POST create_model": service.policies.create,
        "POST get_info": service.policies.info,
        "POST optim_step": queued(Policy.optim_step),
        "POST save_weights": queued(service.policies.save),
        "POST load_weights": queued(service.policies.load),
        "POST save_weights_for_sampler": queued(service.samplers.save),
        "POST weights_info": service.policies.checkpoint_info,
        "GET training_runs": service.store.runs,
        "GET training_runs/{model}": service.store.run,
        "GET training_runs/{model}/checkpoints": service.store.checkpoints_of_run,
        "GET checkpoints": service.store.checkpoints,
        f"DELETE {checkpoint}": service.store.remove,
        f"PUT {checkpoint}/ttl": service.store.set_ttl,
        "POST create_sampling_session": service.samplers.create,
        "GET samplers/{sampler}": service.samplers.info,
        "POST retrieve_future": service.retrieve_future,
    }
    handlers = {route: json(answer) for route, answer in answers.items()}
    handlers |= {"POST asample": asample, "POST forward_backward": forward_backward, "POST telemetry": telemetry}
    return [_route(route, handler, key) for route, handler in handlers.items()]


def _route(route: str, handler: Handler, key: str | None) -> Route:
    async def endpoint(request: Request) -> Response:
        sent = request.headers.get("x-api-key", "")
        right = _ANY_KEY.match(sent) if key is None else hmac.compare_digest(sent.encode(), key.encode())
        if path != "healthz" and not right:
            return JSONResponse({"detail": "X-API-Key: is missing, or not the key of this server"}, 401)
        try:
            result = await handler(request)
        except ClientDisconnect:
            return JSONResponse({"detail": "the request was cut off"}, 400)
        except (UserError, BusyError, EngineError) as error:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            return JSONResponse({"detail": str(error)}, status)
        return Response(result.body, result.status, media_type=result.media)

    method, path = route.split()
    return Route(f"/api/v1/{path}", endpoint, methods=[method])


async def _body(request: Request, limit: int) -> bytes:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "this server takes requests that are not compressed")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise HTTPException(
                413, f"the request has more than {limit} bytes, which is more than the model's context needs"
            )
    return bytes(body)

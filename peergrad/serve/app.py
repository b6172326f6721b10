"""The HTTP routes of the protocol that the tinker client speaks, version 0.36."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import Field
from peergrad.serve import checkpoint_routes
from peergrad.serve.checkpoint_routes import Handler
from peergrad.serve.errors import BusyError, GoneError, NotFoundError
from peergrad.serve.request_bodies import RequestBodies
from peergrad.serve.results import PROTOBUF
from peergrad.serve.service import Service
from peergrad.serve.training_data import parse_forward_backward

_POLL_S = 20.0  # clients give up on a response after 45 s
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
_STATUS = {UserError: 422, NotFoundError: 404, GoneError: 410, BusyError: 429, EngineError: 500}


def application(service: Service, key: str | None, *, loopback: str | None) -> Starlette:
    """The server. Clients must send ``key``; None accepts any key, which is safe on a loopback address only.

    ``loopback`` is that address as it is written in a URL; None if the server listens elsewhere.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.sweep())
        yield
        task.cancel()

    # Protects from DNS rebinding: a web page in a local browser can reach this server only under a name of its own.
    hosts = [Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, loopback])] if loopback else []
    return Starlette(
        routes=[Route(f"/api/v1/{path}", handler, methods=[method]) for method, path, handler in _routes(service)],
        lifespan=lifespan,
        middleware=[*hosts, Middleware(_ApiKeyMiddleware, key=key)],
        exception_handlers={
            ClientDisconnect: lambda _, __: _error(400, "the request was cut off"),
            **{kind: lambda _, error, status=status: _error(status, str(error)) for kind, status in _STATUS.items()},
        },
    )


class _ApiKeyMiddleware:
    """Refuses requests without the key, except health checks."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/api/v1/healthz":
            key = dict(scope["headers"]).get(b"x-api-key", b"")
            if not key or (self._key is not None and not hmac.compare_digest(key, self._key.encode())):
                await _error(401, "X-API-Key: is missing, or not the key of this server")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _error(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)


def _routes(service: Service) -> list[tuple[str, str, Handler]]:
    bodies = RequestBodies(service.limits.context)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def config(request: Request) -> Response:
        await bodies.json(request)
        return JSONResponse({"proto_compress_fwdbwd": False})  # clients have defaults for all other settings

    async def capabilities(_: Request) -> Response:
        model = {"model_name": service.model, "max_context_length": service.limits.context}
        return JSONResponse({"supported_models": [model | {"trainable": True, "sampleable": True}]})

    async def create_session(request: Request) -> Response:
        await bodies.json(request)
        return JSONResponse({"session_id": service.sessions.create(request.headers.get("x-idempotency-key"))})

    async def heartbeat(request: Request) -> Response:
        session = (await bodies.json(request))["session_id"].text()
        try:
            service.sessions.touch(session)
        except NotFoundError as error:
            raise GoneError(str(error)) from None  # clients stop their heartbeat at 410, not at 404
        return JSONResponse({})

    async def finish(request: Request) -> Response:
        await bodies.json(request)
        service.sessions.end(request.path_params["session"])
        return JSONResponse({})

    async def telemetry(request: Request) -> Response:
        await bodies.parse_data(request, lambda _: None)
        return JSONResponse({"status": "accepted"})

    async def create_model(request: Request) -> Response:
        id, model = service.policies.create(await bodies.json(request), service.model)
        return JSONResponse({"request_id": id, "model_id": model})

    async def get_info(request: Request) -> Response:
        policy, name = service.policies.find((await bodies.json(request))["model_id"].text()), service.model
        data = {"arch": None, "model_name": name, "tokenizer_id": name}
        info = {"model_id": policy.id, "model_name": name, "is_lora": True, "lora_rank": policy.info.rank}
        return JSONResponse(info | {"model_data": data})

    async def forward_backward(request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF:
            raise HTTPException(415, f"training data must be {PROTOBUF}; this server needs tinker 0.25 or newer")
        message = await bodies.parse_data(request, parse_forward_backward)
        return JSONResponse({"request_id": service.policies.forward_backward(message)})

    def queued(submit: Callable[[Field], str]) -> Handler:
        async def handler(request: Request) -> Response:
            return JSONResponse({"request_id": submit(await bodies.json(request))})

        return handler

    async def weights_info(request: Request) -> Response:
        _, info = await service.policies.checkpoint((await bodies.json(request))["tinker_path"])
        parts = {"train_mlp": info.train_mlp, "train_attn": info.train_attn, "train_unembed": False}
        return JSONResponse({"base_model": info.base_model, "is_lora": True, "lora_rank": info.rank} | parts)

    async def create_sampling_session(request: Request) -> Response:
        id = await service.samplers.create(await bodies.json(request), service.model)
        return JSONResponse({"sampling_session_id": id})

    async def get_sampler(request: Request) -> Response:
        id = request.path_params["sampler"]
        path = service.samplers.checkpoint_path(id)
        return JSONResponse({"sampler_id": id, "base_model": service.model, "model_path": path})

    async def asample(request: Request) -> Response:
        id, sample_ids = await service.samplers.sample(await bodies.parse_json(request, service.sample_request))
        return JSONResponse({"request_id": id, "sample_sequence_ids": sample_ids})

    async def retrieve_future(request: Request) -> Response:
        id = (await bodies.json(request))["request_id"].text()
        service.sessions.touch_owner(id)
        result = await service.futures.result(id, _POLL_S)
        if result is None:
            return JSONResponse({"type": "try_again", "request_id": id, "queue_state": "active"}, 408)
        return Response(result.body, media_type=result.media)

    return [
        ("GET", "healthz", healthz),
        ("POST", "client/config", config),
        ("POST", "client/dynamic_config", config),
        ("GET", "get_server_capabilities", capabilities),
        ("POST", "create_session", create_session),
        ("POST", "session_heartbeat", heartbeat),
        ("POST", "sessions/{session}/finish", finish),
        ("POST", "telemetry", telemetry),
        ("POST", "create_model", create_model),
        ("POST", "get_info", get_info),
        ("POST", "forward_backward", forward_backward),
        ("POST", "optim_step", queued(service.policies.optim_step)),
        ("POST", "save_weights", queued(service.policies.save)),
        ("POST", "load_weights", queued(service.policies.load)),
        ("POST", "save_weights_for_sampler", queued(service.save_sampler)),
        ("POST", "weights_info", weights_info),
        *checkpoint_routes.routes(service, bodies.json),
        ("POST", "create_sampling_session", create_sampling_session),
        ("GET", "samplers/{sampler}", get_sampler),
        ("POST", "asample", asample),
        ("POST", "retrieve_future", retrieve_future),
    ]

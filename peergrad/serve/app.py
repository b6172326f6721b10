"""The addresses of the protocol that the tinker client speaks, version 0.36."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable

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
from peergrad.serve import kept
from peergrad.serve.bodies import Bodies
from peergrad.serve.lessons import training
from peergrad.serve.refusals import Busy, Gone, Missing
from peergrad.serve.results import PROTOBUF
from peergrad.serve.service import Service

_POLL_S = 20.0  # clients give up on an answer after 45 s
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]


def application(service: Service, key: str | None, *, loopback: str | None) -> Starlette:
    """The server. ``key`` is what clients must send; None: any will do, which only a loopback address should have.

    ``loopback`` is that address as it is written in a URL, if it is one.
    """

    @contextlib.asynccontextmanager
    async def sweeping(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.sweep())
        yield
        task.cancel()

    # A page in a browser can't be made to look like a local program: it can't give itself this host's name.
    hosts = [Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, loopback])] if loopback else []
    return Starlette(
        routes=[Route(f"/api/v1/{path}", handler, methods=[method]) for method, path, handler in _routes(service)],
        lifespan=sweeping,
        middleware=[*hosts, Middleware(_Keyed, key=key)],
        exception_handlers={
            UserError: lambda _, error: _sentence(422, str(error)),
            Missing: lambda _, error: _sentence(404, str(error)),
            Gone: lambda _, error: _sentence(410, str(error)),
            Busy: lambda _, error: _sentence(429, str(error)),
            EngineError: lambda _, error: _sentence(500, str(error)),
            ClientDisconnect: lambda _, __: _sentence(400, "the request was cut off"),
        },
    )


class _Keyed:
    """Lets nobody in without a key, but to ask whether the server lives."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/api/v1/healthz":
            sent = dict(scope["headers"]).get(b"x-api-key", b"")
            if not sent or (self._key is not None and not hmac.compare_digest(sent, self._key.encode())):
                await _sentence(401, "X-API-Key: is missing, or not the key of this server")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _sentence(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)


Handler = Callable[[Request], Awaitable[Response]]


def _routes(service: Service) -> list[tuple[str, str, Handler]]:
    bodies = Bodies(service.context)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def config(request: Request) -> Response:
        await bodies.fields(request)
        return JSONResponse({"proto_compress_fwdbwd": False})  # what is not named is as the client has it

    async def capabilities(_: Request) -> Response:
        model = {"model_name": service.rules.model, "max_context_length": service.context}
        return JSONResponse({"supported_models": [model | {"trainable": True, "sampleable": True}]})

    async def create_session(request: Request) -> Response:
        await bodies.fields(request)
        return JSONResponse({"session_id": service.sessions.begin(request.headers.get("x-idempotency-key"))})

    async def heartbeat(request: Request) -> Response:
        session = (await bodies.fields(request))["session_id"].text()
        try:
            service.sessions.hear(session)
        except Missing as error:
            raise Gone(str(error)) from None  # which is what clients end their heartbeat for
        return JSONResponse({})

    async def finish(request: Request) -> Response:
        await bodies.fields(request)
        service.sessions.end(request.path_params["session"])
        return JSONResponse({})

    async def telemetry(request: Request) -> Response:
        await bodies.data(request, lambda _: None)
        return JSONResponse({"status": "accepted"})

    async def create_model(request: Request) -> Response:
        promise, model = service.policies.create(await bodies.fields(request), service.rules.model)
        return JSONResponse({"request_id": promise, "model_id": model})

    async def get_info(request: Request) -> Response:
        learner, name = service.policies.find((await bodies.fields(request))["model_id"].text()), service.rules.model
        data = {"arch": None, "model_name": name, "tokenizer_id": name}
        about = {"model_id": learner.id, "model_name": name, "is_lora": True, "lora_rank": learner.about.rank}
        return JSONResponse(about | {"model_data": data})

    async def forward_backward(request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF:
            raise HTTPException(415, f"training data must be {PROTOBUF}; this server needs tinker 0.25 or newer")
        return _promised(service.policies.learn(await bodies.data(request, training)))

    def promised(ask: Callable[[Field], str]) -> Handler:
        async def handler(request: Request) -> Response:
            return _promised(ask(await bodies.fields(request)))

        return handler

    async def weights_info(request: Request) -> Response:
        about = await service.checkpoint((await bodies.fields(request))["tinker_path"])
        parts = {"train_mlp": about.train_mlp, "train_attn": about.train_attn, "train_unembed": False}
        return JSONResponse({"base_model": about.base_model, "is_lora": True, "lora_rank": about.rank} | parts)

    async def create_sampling_session(request: Request) -> Response:
        return JSONResponse(
            {"sampling_session_id": await service.samplers.make(await bodies.fields(request), service.rules.model)}
        )

    async def sampler(request: Request) -> Response:
        id = request.path_params["sampler"]
        path = service.samplers.find(id).path
        return JSONResponse({"sampler_id": id, "base_model": service.rules.model, "model_path": path})

    async def asample(request: Request) -> Response:
        promise, ids = await service.samplers.sample(await bodies.read(request, service.wish))
        return JSONResponse({"request_id": promise, "sample_sequence_ids": ids})

    async def retrieve_future(request: Request) -> Response:
        id = (await bodies.fields(request))["request_id"].text()
        service.sessions.hear_of(id)
        result = await service.promises.result(id, _POLL_S)
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
        ("POST", "optim_step", promised(service.policies.update)),
        ("POST", "save_weights", promised(service.policies.save)),
        ("POST", "load_weights", promised(service.policies.load)),
        ("POST", "save_weights_for_sampler", promised(service.save_sampler)),
        ("POST", "weights_info", weights_info),
        *kept.routes(service, bodies.fields),
        ("POST", "create_sampling_session", create_sampling_session),
        ("GET", "samplers/{sampler}", sampler),
        ("POST", "asample", asample),
        ("POST", "retrieve_future", retrieve_future),
    ]


def _promised(id: str) -> Response:
    return JSONResponse({"request_id": id})

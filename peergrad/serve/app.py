"""The addresses of the protocol that the tinker client speaks, version 0.36."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

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
from peergrad.serve.promises import Gone
from peergrad.serve.service import Busy, Service
from peergrad.serve.wire import PROTOBUF, Missing

_POLL_S = 20.0  # clients give up on an answer after 45 s
_MOST_JSON, _MOST_DATA = 64 * 2**20, 256 * 2**20
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]


def application(service: Service, key: str | None, *, loopback: bool) -> Starlette:
    """The server. ``key`` is what clients must send; None: any will do, which only a loopback address should have."""
    # A page in a browser can't be made to look like a local program: it can't give itself this host's name.
    hosts = [Middleware(TrustedHostMiddleware, allowed_hosts=_LOOPBACK)] if loopback else []
    return Starlette(
        routes=[Route(f"/api/v1/{path}", handler, methods=[method]) for method, path, handler in _routes(service)],
        middleware=[*hosts, Middleware(_Keyed, key=key)],
        exception_handlers={
            UserError: lambda _, error: _sentence(422, str(error)),
            Missing: lambda _, error: _sentence(404, str(error)),
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


async def _body(request: Request, most: int) -> bytes:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "this server takes requests that are not compressed")
    parts, size = list[bytes](), 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > most:
            raise HTTPException(413, f"the request has more than {most >> 20} MiB")
    return b"".join(parts)


async def _fields(request: Request) -> Field:
    return Field.parse(await _body(request, _MOST_JSON), "request")


Handler = Callable[[Request], Awaitable[Response]]


def _routes(service: Service) -> list[tuple[str, str, Handler]]:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def config(request: Request) -> Response:
        await _fields(request)
        return JSONResponse({"proto_compress_fwdbwd": False})  # what is not named is as the client has it

    async def capabilities(_: Request) -> Response:
        model = {"model_name": service.rules.model, "max_context_length": service.context}
        return JSONResponse({"supported_models": [model | {"trainable": True, "sampleable": True}]})

    async def create_session(request: Request) -> Response:
        await _fields(request)
        return JSONResponse({"session_id": service.begin(request.headers.get("x-idempotency-key"))})

    async def heartbeat(request: Request) -> Response:
        service.hear((await _fields(request))["session_id"].text())
        return JSONResponse({})

    async def finish(request: Request) -> Response:
        await _fields(request)
        service.end(request.path_params["session"])
        return JSONResponse({})

    async def telemetry(request: Request) -> Response:
        await _body(request, _MOST_JSON)  # and forget it
        return JSONResponse({"status": "accepted"})

    async def create_model(request: Request) -> Response:
        promise, model = service.create(await _fields(request))
        return JSONResponse({"request_id": promise, "model_id": model})

    async def get_info(request: Request) -> Response:
        learner, name = service.learner((await _fields(request))["model_id"].text()), service.rules.model
        data = {"arch": None, "model_name": name, "tokenizer_id": name}
        about = {"model_id": learner.id, "model_name": name, "is_lora": True, "lora_rank": learner.about.rank}
        return JSONResponse(about | {"model_data": data})

    async def forward_backward(request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF:
            raise HTTPException(415, f"training data must be {PROTOBUF}; this server needs tinker 0.25 or newer")
        return _promised(service.learn(await _body(request, _MOST_DATA)))

    def promised(ask: Callable[[Field], str]) -> Handler:
        async def handler(request: Request) -> Response:
            return _promised(ask(await _fields(request)))

        return handler

    async def weights_info(request: Request) -> Response:
        _, about = service.checkpoint((await _fields(request))["tinker_path"])
        parts = {"train_mlp": about.train_mlp, "train_attn": about.train_attn, "train_unembed": False}
        return JSONResponse({"base_model": about.base_model, "is_lora": True, "lora_rank": about.rank} | parts)

    async def create_sampling_session(request: Request) -> Response:
        return JSONResponse({"sampling_session_id": await service.sampler_of(await _fields(request))})

    async def sampler(request: Request) -> Response:
        return JSONResponse(service.about_sampler(request.path_params["sampler"]))

    async def asample(request: Request) -> Response:
        promise, ids = await service.sample(await _fields(request))
        return JSONResponse({"request_id": promise, "sample_sequence_ids": ids})

    async def retrieve_future(request: Request) -> Response:
        id = (await _fields(request))["request_id"].text()
        try:
            result = await service.promises.result(id, _POLL_S)
        except KeyError:
            return _sentence(404, f"there is no request {id!r}; the server was started anew")
        except Gone:
            return _sentence(410, f"the result of {id!r} is kept no longer")
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
        ("POST", "optim_step", promised(service.update)),
        ("POST", "save_weights", promised(service.save)),
        ("POST", "load_weights", promised(service.load)),
        ("POST", "save_weights_for_sampler", promised(service.save_sampler)),
        ("POST", "weights_info", weights_info),
        *kept.routes(service, _fields),
        ("POST", "create_sampling_session", create_sampling_session),
        ("GET", "samplers/{sampler}", sampler),
        ("POST", "asample", asample),
        ("POST", "retrieve_future", retrieve_future),
    ]


def _promised(id: str) -> Response:
    return JSONResponse({"request_id": id})

"""A server in front of another that loses requests, answers and time on the way, as told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Forward = Callable[[], Awaitable[Response]]
# (path, request, forward) → what is answered
Fault = Callable[[str, Request, Forward], Awaitable[Response]]


async def none(_path: str, _request: Request, forward: Forward) -> Response:
    return await forward()


class Proxy:
    """Passes everything on to ``target``, by way of ``fault``."""

    def __init__(self, target: str) -> None:
        self.target, self.fault, self.seen = target, none, list[str]()
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[bound]), daemon=True)
        self._thread.start()
        self._client: httpx.AsyncClient | None = None

    async def _answer(self, request: Request) -> Response:
        path, body = request.path_params["path"].removeprefix("api/v1/"), await request.body()
        self.seen.append(path)
        self._client = self._client or httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=500))
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}

        async def forward() -> Response:
            url = f"{self.target}/api/v1/{path}"
            try:
                answer = await self._client.request(request.method, url, content=body, headers=headers)
            except httpx.HTTPError as error:
                return JSONResponse({"detail": repr(error)}, 502)
            return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

        return await self.fault(path, request, forward)

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(5)


def unavailable() -> Response:
    return JSONResponse({"detail": "try again"}, 503)


async def delayed(seconds: float, forward: Forward) -> Response:
    await asyncio.sleep(seconds)
    return await forward()

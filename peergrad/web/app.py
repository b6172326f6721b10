"""The viewer's server: read-only, for one person on this machine (docs/reference/view.md)."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peergrad.debate.errors import UserError
from peergrad.web.app_files import encode, static_files
from peergrad.web.library import Library, NotFoundError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def application(library: Library, token: str, *, host: str = "127.0.0.1", port: int = 0) -> Starlette:
    """The server of a library; whoever has the token may look."""
    files, cookie = static_files(), f"peergrad_view_{port}"

    def page(request: Request) -> Response:
        if "token" in request.query_params:
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
            return answer
        return Response(files["index.html"], media_type="text/html")

    def static(request: Request) -> Response:
        name = request.path_params["name"]  # looked up, never made a path
        if name not in files or name == "index.html":
            return _problem("there is no such file", 404)
        return Response(files[name], media_type=_TYPES.get(f".{name.rpartition('.')[2]}", "text/plain"))

    def api(request: Request) -> Response:
        try:
            found = library.get(request.path_params["key"], dict(request.query_params))
        except NotFoundError as error:
            return _problem(str(error), 404)
        except UserError as error:
            return _problem(str(error), 400)
        return Response(encode(found), media_type="application/json")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        library.watch()
        yield
        library.close()

    routes = [Route("/", page), Route("/static/{name:path}", static), Route("/api/{key:path}", api)]
    guard = Middleware(Guard, token=token, cookie=cookie, host=host)
    small = Middleware(GZipMiddleware, minimum_size=1000)  # a tunnel to another machine may be slow
    return Starlette(routes=routes, lifespan=lifespan, middleware=[guard, small])


class Guard:
    """Lets nobody in but the person whom the token was printed for, at a name of this machine, to read."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str, host: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._hosts = {*LOOPBACK, f"[{host}]" if ":" in host else host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *named]
            await send(message)

        refused = self._refused(Request(scope))
        await (refused or self._app)(scope, receive, guarded)

    def _refused(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return _problem("only GET and HEAD are answered", 405)
        hosts = request.headers.getlist("host")
        name, colon, port = hosts[0].rpartition(":") if len(hosts) == 1 else ("", "", "")
        name = name if colon and port.isascii() and port.isdigit() else hosts[0] if len(hosts) == 1 else ""
        if name not in self._hosts:
            return _problem("this server is known by another name", 421)
        origins = request.headers.getlist("origin")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return _problem("pages of other servers are not answered", 403)
        site = request.headers.get("sec-fetch-site", "none")
        navigates = request.headers.get("sec-fetch-mode") == "navigate" and request.url.path == "/"
        if site not in ("same-origin", "none") and not navigates:
            return _problem("pages of other servers are not answered", 403)
        return None if self._knows(request) else _problem("open the address that peergrad view printed", 401)

    def _knows(self, request: Request) -> bool:
        given = [request.cookies.get(self._cookie, "")]
        given.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        if request.url.path == "/":
            given.append(request.query_params.get("token", ""))
        return any(hmac.compare_digest(one.encode("utf-8", "replace"), self._token.encode()) for one in given)


def _problem(sentence: str, status: int) -> Response:
    return Response(encode({"error": sentence}), status_code=status, media_type="application/json")

"""Connections to the server: how many may be open, and how long one may hold its place without doing anything."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_OPEN, _OTHER_FILES = 4096, 128  # a client opens 1,000; files that are no connections
_MAX_REFUSED = 64  # being refused at the same time; more are closed without a word
_LINGER_S = 1.0  # until a refused connection is closed: closed at once, its client might not see why
_PATIENCE_S, _LEAST_BYTES = 15.0, 65_536  # what must come within that time of a request that is not whole yet
_SAY_AGAIN_S = 60.0
_TEXT = b'{"detail": "the server has as many connections as it can; try again"}'
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
_FULL += b"Content-Length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)

log = logging.getLogger(__name__)


def max_open() -> int:
    """How many connections may be open. The limit of open files is raised as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN + _MAX_REFUSED + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft - _MAX_REFUSED - _OTHER_FILES))


def server(app: Any, limit: int, patience_s: float = _PATIENCE_S) -> uvicorn.Server:
    """A server of an application with at most ``limit`` open connections."""

    state = {"limit": limit, "patience_s": patience_s, "refused": set(), "said": -_SAY_AGAIN_S}
    bounded = type("Bounded", (Connection,), state)
    config = uvicorn.Config(app, http=bounded, log_level="warning", timeout_graceful_shutdown=3, lifespan="on")
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Server(config)


def _is_news(record: logging.LogRecord) -> bool:
    """Requests that are under way when the server is stopped are cancelled, which is no error to tell of."""
    cancelled = asyncio.CancelledError.__name__
    return cancelled not in record.getMessage() and not (record.exc_info and str(record.exc_info[0]).count(cancelled))


class Connection(H11Protocol):
    """A connection that is refused when there are too many, and closed when its client stops sending or reading."""

    limit: int
    patience_s: float
    refused: set[Connection]
    said: float  # when it was last said that connections are refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limit:
            self._refuse(transport)
            return
        super().connection_made(transport)
        self._received, self._stalled_in = 0, None
        self._watch()

    def _refuse(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        if time.monotonic() - self.said >= _SAY_AGAIN_S:
            type(self).said = time.monotonic()
            log.warning("%d connections are open; more are refused until some are closed", self.limit)
        if len(self.refused) >= _MAX_REFUSED:
            transport.abort()
            return
        self.refused.add(self)
        transport.write(_FULL)
        transport.write_eof()
        self.loop.call_later(_LINGER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.refused.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self in self.connections:
            self._received += len(data)
            super().data_received(data)

    def _watch(self) -> None:
        """Close it if it is the client's turn, and the client has hardly sent or read anything since the last look."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        receiving = (cycle is None or cycle.response_complete or cycle.more_body) and not self.flow.read_paused
        stalled = self._received < _LEAST_BYTES if receiving else self.flow.write_paused
        if stalled and self._stalled_in == (cycle, receiving):
            self.transport.abort()
            return
        self._received, self._stalled_in = 0, (cycle, receiving) if stalled else None
        self.loop.call_later(self.patience_s, self._watch)

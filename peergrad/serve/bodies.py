"""Requests as they come in: no larger than they need to be, and those that take long to read are read beside the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from peergrad.debate.fields import Field

_SMALL = 16_384  # bytes, which are read at once: a thread takes longer to begin
_JSON, _JSON_TOKEN = 2**20, 16  # a prompt fills a context at most, its tokens are written in digits
_DATA, _DATA_TOKEN = 16 * 2**20, 64  # clients send parts of 5 MB, or one sequence

T = TypeVar("T")


class Bodies:
    """Reads requests for a model of so much context."""

    def __init__(self, context: int) -> None:
        self._most_json, self._most_data = _JSON + _JSON_TOKEN * context, _DATA + _DATA_TOKEN * context
        # Threads of its own: the others may all be waiting for the model.
        self._readers = ThreadPoolExecutor(2, "reader")

    async def fields(self, request: Request) -> Field:
        """A request in JSON."""
        return await self.read(request, lambda field: field)

    async def read(self, request: Request, read: Callable[[Field], T]) -> T:
        """What ``read`` makes of a request in JSON."""
        return await self._aside(await _body(request, self._most_json), lambda body: read(Field.parse(body, "request")))

    async def data(self, request: Request, read: Callable[[bytes], T]) -> T:
        """What ``read`` makes of training data."""
        return await self._aside(await _body(request, self._most_data), read)

    async def _aside(self, body: bytes, read: Callable[[bytes], T]) -> T:
        if len(body) <= _SMALL:
            return read(body)
        return await asyncio.get_running_loop().run_in_executor(self._readers, read, body)


async def _body(request: Request, most: int) -> bytes:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "this server takes requests that are not compressed")
    parts, size = list[bytes](), 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > most:
            raise HTTPException(413, f"the request has more than {most} bytes, which is more than the model's context needs")
    return b"".join(parts)

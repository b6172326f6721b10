"""Reading request bodies: bounded in size, and large ones are parsed outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from peergrad.debate.fields import Field

_INLINE_BYTES = 16_384  # parsing a smaller body takes less time than handing it to a thread
_JSON_BYTES, _JSON_BYTES_PER_TOKEN = 2**20, 16  # a prompt fills a context at most, its tokens are written in digits
_DATA_BYTES, _DATA_BYTES_PER_TOKEN = 16 * 2**20, 64  # clients send parts of 5 MB, or one sequence

T = TypeVar("T")


class RequestBodies:
    """Reads request bodies for a model with ``context`` tokens of context."""

    def __init__(self, context: int) -> None:
        self._max_json = _JSON_BYTES + _JSON_BYTES_PER_TOKEN * context
        self._max_data = _DATA_BYTES + _DATA_BYTES_PER_TOKEN * context
        # Threads of its own: those of the default executor may all be waiting for the model.
        self._parsers = ThreadPoolExecutor(2, "parser")

    async def json(self, request: Request) -> Field:
        """The body as a JSON object."""
        return await self.parse_json(request, lambda field: field)

    async def parse_json(self, request: Request, parse: Callable[[Field], T]) -> T:
        """The body as JSON, parsed further by ``parse``."""
        body = await _body(request, self._max_json)
        return await self._run(body, lambda body: parse(Field.parse(body, "request")))

    async def parse_data(self, request: Request, parse: Callable[[bytes], T]) -> T:
        """The body of a training request, parsed by ``parse``."""
        return await self._run(await _body(request, self._max_data), parse)

    async def _run(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        if len(body) <= _INLINE_BYTES:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._parsers, parse, body)


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

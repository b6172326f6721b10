"""A real HTTP server on loopback, in a thread, that does to each request what a function says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.content)


@dataclass(frozen=True)
class Response:
    """``cut``: the connection is closed after so many bytes of the content. ``drip_s``: a pause before every tenth of it."""

    content: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    cut: int | None = None
    drip_s: float = 0.0

    @property
    def bytes(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()


def completion(
    text: str | None, finish: str | None = "stop", *, message=None, usage=(10, 5), **choice: Any
) -> dict[str, Any]:
    """A body as servers send it."""
    message = {"role": "assistant", "content": text} | (message or {})
    body: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": finish} | choice]
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def first_tokens(**logprobs: Any) -> dict[str, Any]:
    """The part of a choice that says how likely its first token could be which."""
    top = [{"token": token, "logprob": logprob, "bytes": list(token.encode())} for token, logprob in logprobs.items()]
    return {"content": [top[0] | {"top_logprobs": top}]}


def events(
    pieces: Sequence[str], finish: str | None = "stop", *, usage=(10, 5), done: bool = True, **choice: Any
) -> Response:
    """A stream as servers send it."""
    chunks = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}}]} for piece in pieces]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish} | choice]})
    if usage:
        chunks.append({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"] * done
    return Response("".join(lines).encode(), headers={"content-type": "text/event-stream"})


class Server:
    """``with Server(handle) as server``: it listens at ``server.url`` and keeps what it was asked in ``server.requests``."""

    def __init__(self, handle: Callable[[Request], Response]) -> None:
        self._handle = handle
        self.requests: list[Request] = []
        self.sent: list[tuple[Request, Response]] = []  # answers whose every byte was handed over
        self.most = self._under_way = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                self.requests.append(request)
                self._under_way += 1
                self.most = max(self.most, self._under_way)
                try:
                    response = self._handle(request)
                    await asyncio.sleep(response.after_s)
                finally:
                    self._under_way -= 1
                await _write(writer, response)
                if response.cut is not None:
                    break
                self.sent.append((request, response))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side left, or it is all over
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(first.split(" ")[1], headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _write(writer: asyncio.StreamWriter, response: Response) -> None:
    content = response.bytes
    headers = {"content-type": "application/json", "content-length": str(len(content))} | dict(response.headers)
    head = f"HTTP/1.1 {response.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode() + b"\r\n")
    if response.drip_s:
        size = max(1, len(content) // 10)
        for start in range(0, len(content), size):
            await asyncio.sleep(response.drip_s)
            writer.write(content[start : start + size])
            await writer.drain()
        return
    writer.write(content[: response.cut])
    await writer.drain()

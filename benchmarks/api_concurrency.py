"""200 debates at once against a server that answers in 50 ms: wall-clock against the ideal at the concurrency limit.

The server is another process, on loopback. The ideal is what the limit allows if our own work took no time: every slot
busy with one request after another, each of 50 ms, from the first to the last (rounds × asks per round / limit × 50 ms).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from peergrad import Parallel, Question, play_all
from peergrad.config import ApiConfig, EngineConfig
from peergrad.engines.openai.engine import Api

LATENCY_S, DEBATES, AGENTS, ROUNDS = 0.05, 200, 3, 2
TEXT = (
    "<solution>\n"
    + "17 + 25 is 42. " * 20
    + "\n</solution>\n<evaluation>\nfine\n</evaluation>\n<comparison>\nN/A\n</comparison>"
)
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": TEXT}}
BODY = json.dumps({"choices": [CHOICE], "usage": {"prompt_tokens": 400, "completion_tokens": 150}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


class Server(asyncio.Protocol):
    """Answers every request in 50 ms."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, rest = self.received.partition(b"\r\n\r\n")
        if end and len(rest) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            self.received = b""
            asyncio.get_running_loop().call_later(LATENCY_S, self.transport.write, ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure(url: str, limit: int, *, floor: bool = False) -> float:
    """Seconds that the debates take; ``floor``: the same requests with nothing of ours but the client, for comparison."""
    questions = [Question(f"q{n}", f"What is {n} + 25?") for n in range(DEBATES)]
    protocol = Parallel(agents=AGENTS, max_rounds=ROUNDS)
    async with Api(EngineConfig(model="m", base_url=url), ApiConfig(max_concurrent=limit), environ={}) as api:
        await play_all(Parallel(agents=AGENTS, max_rounds=1), questions[: limit // AGENTS + 1], api)  # open the connections
        if not floor:
            played = await play_all(protocol, questions, api)
            assert len(played.debates) == DEBATES
            assert played.seconds
            return played.seconds
        started, slots = time.monotonic(), asyncio.Semaphore(limit)
        messages = [{"role": "user", "content": "x" * 1500}]

        async def one() -> None:
            async with slots:
                body = {"model": "m", "messages": messages, "max_tokens": 9}
                (await api._client.post("chat/completions", json=body)).json()

        await asyncio.gather(*(one() for _ in range(DEBATES * AGENTS * ROUNDS)))
        return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--limits", type=int, nargs="+", default=[8, 16, 32])
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        result: dict[str, object] = {"benchmark": "api_concurrency", "debates": DEBATES, "agents": AGENTS, "rounds": ROUNDS}
        for limit in arguments.limits:
            ideal = math.ceil(DEBATES * AGENTS * ROUNDS / limit) * LATENCY_S
            seconds = sorted(asyncio.run(measure(url, limit)) for _ in range(3))
            client = asyncio.run(measure(url, limit, floor=True))
            result[f"limit_{limit}"] = {
                "ideal_s": round(ideal, 3),
                "seconds": [round(second, 3) for second in seconds],
                "ratio": round(seconds[1] / ideal, 3),
                "client_alone_ratio": round(client / ideal, 3),
            }
        print(json.dumps(result))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()

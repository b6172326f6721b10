"""How much of a slow line pipelining hides: steps on a service whose every call takes so long, and with each call awaited.

``python benchmarks/tinker_latency.py --latency 2``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import tinker

from peergrad.config import EngineConfig, UpdateConfig
from peergrad.debate.protocols import Parallel
from peergrad.engines.tinker.engine import Tinker
from peergrad.engines.tinker.sampler import TinkerSampler
from peergrad.learn.train import LearnRules, self_play, train
from peergrad.learn.trainer import StepStats
from peergrad.tasks.arithmetic import arithmetic
from tests.runs.killing import PARROT
from tests.tinker.processes import Processes, Server
from tests.tinker.proxy import Proxy, delayed


class _WaitingClient(tinker.TrainingClient):
    """Awaits a gradient before the update that uses it is sent."""

    async def forward_backward_async(self, *args: object) -> object:
        made = await super().forward_backward_async(*args)
        await made.result_async()
        return made


class _Waiting(Tinker):
    """Awaits each request before the next is sent."""

    _one = asyncio.Lock()

    async def step(self, *args: Any) -> StepStats:
        async with self._one:
            client = await self._training()
            client.__class__ = _WaitingClient
            return await super().step(*args)

    async def sampler(self) -> TinkerSampler:
        async with self._one:
            return await super().sampler()


async def seconds(url: str, steps: int, *, pipelined: bool) -> float:
    """How long a step takes. The first and the last are not counted: they begin with nothing, and end without a sampler."""
    protocol = Parallel(max_rounds=2, max_tokens=48, wording="brief")
    protocol = replace(protocol, personas=tuple(replace(one, temperature=1.0) for one in protocol.personas))
    task = arithmetic(1, count=64)
    engine = (Tinker if pipelined else _Waiting)(EngineConfig(model=str(PARROT), base_url=url), UpdateConfig(rank=4))
    rules = LearnRules(steps=steps + 2, batch=4, lr=1e-4, center="batch", max_staleness=int(pipelined))
    rollout = self_play(protocol, lambda step: [task[4 * step + i] for i in range(4)], max_calls=64)
    moments: list[float] = []
    async for step in train(engine, rollout, rules):
        assert step.stats is not None, "a step had nothing to learn from"
        moments.append(time.monotonic())
    return (moments[-2] - moments[0]) / steps


def main(latency: float, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder))
        try:
            proxy = Proxy(Server(processes, Path(folder) / "served").url)
            proxy.fault = lambda path, _, forward: delayed(0 if path == "healthz" else latency, forward)
            waiting = asyncio.run(seconds(proxy.url, steps, pipelined=False))
            pipelined = asyncio.run(seconds(proxy.url, steps, pipelined=True))
            proxy.close()
        finally:
            processes.close()
    found = {"latency_s": latency, "waiting_s": waiting, "pipelined_s": pipelined, "ratio": waiting / pipelined}
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    main(given.latency, given.steps)

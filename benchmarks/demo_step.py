"""Where the time of a step of ``peergrad train --preset demo-parallel`` goes, and what the loop itself costs.

First the real thing: its model and settings, a few steps, each part timed. Then the same steps again with an engine
that gives the recorded replies at once and learns nothing: what is left is our own time. It must stay under 5 % of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from peergrad.config import TrainConfig, preset
from peergrad.debate.settings import changed
from peergrad.debate.types import Ask, Reply
from peergrad.engines.base import Setup
from peergrad.engines.local import engine as local
from peergrad.engines.local.sample.scheduler import Scheduler
from peergrad.engines.registry import open_trainer
from peergrad.learn.trainer import StepStats
from peergrad.runs.folder import Run
from peergrad.runs.training import train_run

SPENT: defaultdict[str, float] = defaultdict(float)


def timed(owner: object, name: str, label: str) -> None:
    """Add up the time spent in a function."""
    real = getattr(owner, name)

    def call(*args: object, **settings: object) -> object:
        started = time.perf_counter()
        try:
            return real(*args, **settings)
        finally:
            SPENT[label] += time.perf_counter() - started

    setattr(owner, name, call)


class Recorded:
    """An engine that says what was said before, and learns nothing."""

    def __init__(self, run: Run) -> None:
        self.replies = {
            (debate.id, turn.agent, index): Reply(turn.text, turn.truncated, turn.tokens)
            for _, debate in run.debates()
            for index, turn in enumerate(debate.turns)
        }

    async def sampler(self) -> Recorded:
        return self

    async def sample(self, asks: Sequence[Ask]) -> list[Reply]:
        return [self.replies[ask.debate, ask.agent, ask.turn] for ask in asks]

    async def step(self, *_: object) -> StepStats:
        return StepStats(0.0, 1.0)

    async def save(self, path: Path) -> None:
        (path / "nothing").write_bytes(b"")

    async def load(self, _: Path) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    folder = Path(tempfile.mkdtemp())
    base = {"steps": steps, "eval_questions": 0, "eval_debates": 0}

    def settings(name: str, **more: object) -> TrainConfig:
        return changed(preset("demo-parallel"), base | {"out": folder / name} | more, "benchmark")

    timed(Scheduler, "_prefill", "prompts")
    timed(Scheduler, "_decode", "decoding tokens")
    timed(Scheduler, "_merge", "merging the adapter")
    timed(local, "gradient", "gradient")
    timed(Run, "keep", "keeping debates")

    real_settings = settings("real")
    made = open_trainer(Setup(engine=real_settings.engine, update=real_settings.update, seed=real_settings.keep.seed))
    asyncio.run(train_run(settings("real", steps=1), load=lambda *_: made))  # the warm start and a step, not counted
    SPENT.clear()
    started = time.perf_counter()
    real = asyncio.run(train_run(settings("real", steps=1 + steps), load=lambda *_: made))
    whole = (time.perf_counter() - started) / steps
    parts = {name: round(seconds / steps, 3) for name, seconds in SPENT.items()}
    lines = [line for line in real.metrics() if line["phase"] == "train"][1:]

    own: list[float] = []
    for repeat in range(3):
        recorded = Recorded(real)
        started = time.perf_counter()
        asyncio.run(
            train_run(settings(f"own{repeat}", steps=1 + steps, warm_steps=0), load=lambda *_, engine=recorded: engine)
        )
        own.append((time.perf_counter() - started) / (1 + steps))
    shutil.rmtree(folder)
    result = {
        "benchmark": "demo_step",
        "step_s": round(whole, 2),
        "sample_s": round(statistics.mean(line["time/sample_s"] for line in lines), 2),
        "train_s": round(statistics.mean(line["time/train_s"] for line in lines), 2),
        "parts_s": parts,
        "sampled_tokens": statistics.mean(line["tokens/sampled"] for line in lines),
        "trained_tokens": statistics.mean(line["tokens/trained"] for line in lines),
        "own_s": round(statistics.median(own), 4),
        "own_share": round(statistics.median(own) / whole, 5),
        "own_share_limit": 0.05,
    }
    print(json.dumps(result))
    assert result["own_share"] < result["own_share_limit"]


if __name__ == "__main__":
    main()

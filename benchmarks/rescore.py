"""How long ``peergrad rescore`` takes over a run of 1,000 debates of 5 agents and 3 rounds, prompts and tokens kept.

Limit: 10 s from the start of the process to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.chunks import Chunks
from peergrad import Batcher, Parallel, Question, play_all
from peergrad.config import TrainConfig
from peergrad.debate.types import Ask, Reply, Tokens
from peergrad.runs.folder import Run

PROTOCOL = Parallel(agents=5, max_rounds=3, max_tokens=512)
LIMIT_S = 10.0
VOCABULARY = 150_000


class Debaters(Chunks):
    """Debaters who are right more or less often, vote for the right one more often than not, and break the form at times."""

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Reply]:
        return [self._argued(ask) for ask in asks]

    def _argued(self, ask: Ask) -> Reply:
        chance = random.Random(zlib.crc32(f"{ask.debate}/{ask.turn}".encode()))
        reply = self.reply(ask)
        text = reply.text.replace("\n</solution>", f" \\boxed{{{self._answer(ask.debate, ask.agent)}}}\n</solution>")
        if ask.seen:
            text = text[: text.index("<comparison>")] + f"<comparison>\n{self._votes(ask, chance)}\n</comparison>"
        if chance.random() < 0.05:
            text = text.replace("</solution>", "")
        return Reply(text, tokens=_tokens(text, reply.tokens, chance))

    def _answer(self, debate: str, agent: int) -> int:
        chance = random.Random(zlib.crc32(f"{debate}/{agent}".encode()))
        hard = zlib.crc32(debate.encode()) % 100 / 100
        return 42 if chance.random() > hard else chance.randrange(40, 45)

    def _votes(self, ask: Ask, chance: random.Random) -> str:
        others = [agent for agent in range(self.agents) if agent != ask.agent]
        lines: list[str] = []
        for a, b in ((others[0], others[1]), (others[2], others[3]), (others[1], others[2])):
            right = [self._answer(ask.debate, agent) == 42 for agent in (a, b)]
            sign = "><"[right[1] > right[0]] if chance.random() < 0.7 else chance.choice("><=")
            lines.append(f"Agent {a} {sign} Agent {b}")
        wrong = chance.choice(("Agent 9 > Agent 1", f"Agent {ask.agent} > Agent {others[0]}", lines[0], "both are good"))
        return "\n".join([*lines, wrong])


def _tokens(text: str, tokens: Tokens | None, chance: random.Random) -> Tokens:
    """Four bytes a token, ids of a usual vocabulary and log-probabilities with all their digits."""
    assert tokens is not None
    count = -(-len(text.encode()) // 4)
    noise = np.random.default_rng(chance.randrange(2**32))
    return replace(
        tokens,
        prompt_T=tokens.prompt_T % VOCABULARY,
        ids_T=noise.integers(0, VOCABULARY, count, np.int32),
        logprobs_T=-noise.exponential(0.5, count).astype(np.float32),
        starts_T=np.arange(count, dtype=np.int32) * 4,
    )


async def write_run(folder: Path, debates: int, per_step: int = 16) -> None:
    """A run folder as training writes it."""
    run = Run(folder)
    run.begin(TrainConfig(), {})
    for step, first in enumerate(range(0, debates, per_step), 1):
        questions = [
            Question(f"q{i}", f"What is {i} + {42 - i}?", "42", "boxed", "sums")
            for i in range(first, min(first + per_step, debates))
        ]
        async with Batcher(Debaters(PROTOCOL.agents, solution=180, evaluation=90)) as batcher:
            run.save_debates(f"step_{step:06}", await play_all(PROTOCOL, questions, batcher, prefix=f"step{step}/"))


def seconds(folder: Path) -> tuple[float, dict[str, object]]:
    """The real command in a process of its own."""
    root = Path(__file__).parent.parent
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "peergrad", "rescore", str(folder), "--json"],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--debates", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="write the run here and leave it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary) / "run"
        if not folder.exists():
            asyncio.run(write_run(folder, args.debates))
        size = sum(path.stat().st_size for path in folder.glob("debates/*"))
        runs = [seconds(folder) for _ in range(3)]
    result = {
        "benchmark": "rescore",
        "debates": runs[0][1]["debates"],
        "megabytes": round(size / 1e6),
        "seconds": round(statistics.median(took for took, _ in runs), 2),
        "limit_s": LIMIT_S,
    }
    print(json.dumps(result))
    return int(result["seconds"] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())

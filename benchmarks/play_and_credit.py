"""What our own code costs: 1,000 concurrent debates on an engine that takes no time, then datums and credit.

Floors: 0.5 ms of our code per turn, 1 M datum tokens/s on one core, memory linear in debates.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.chunks import Chunks
from peergrad import Batcher, Parallel, Played, Question, advantages, credit, datums, play_all, score
from peergrad.debate.types import Ask, Reply

PROTOCOL = Parallel(agents=3, max_rounds=3)


class Timed(Chunks):
    """Knows how much of the time was the engine's."""

    seconds = 0.0

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Reply]:
        start = time.perf_counter()
        replies = await super().sample(asks)
        self.seconds += time.perf_counter() - start
        return replies


async def play(debates: int, engine: Chunks) -> Played:
    questions = [Question(f"q{i}", f"What is {i} + {i}?", style="boxed") for i in range(debates)]
    async with Batcher(engine) as batcher:
        return await play_all(PROTOCOL, questions, batcher)


def own_ms_per_turn(debates: int) -> tuple[float, Played]:
    engine = Timed(PROTOCOL.agents)
    start = time.perf_counter()
    played = asyncio.run(play(debates, engine))
    own = time.perf_counter() - start - engine.seconds
    return 1000 * own / sum(len(debate.turns) for debate in played.debates), played


def tokens_per_second(played: Played) -> tuple[float, float]:
    """Datum tokens and scored turns per second, scoring and centring timed apart from assembly and credit."""
    start = time.perf_counter()
    scored = [score(debate) for debate in played.debates]
    centred = advantages(scored)
    middle = time.perf_counter()
    data = [
        datum
        for one, values in zip(scored, centred, strict=True)
        for datum in datums(one.debate, credit(one.debate, one.streams, values))
    ]
    end = time.perf_counter()
    turns = sum(len(one.debate.turns) for one in scored)
    return sum(len(datum) for datum in data) / (end - middle), turns / (middle - start)


def peak_bytes(debates: int) -> int:
    tracemalloc.start()
    asyncio.run(play(debates, Chunks(PROTOCOL.agents)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    runs = [own_ms_per_turn(1000) for _ in range(3)]
    played = runs[-1][1]
    rates = [tokens_per_second(played) for _ in range(3)]
    small, large = peak_bytes(250), peak_bytes(1000)
    result = {
        "benchmark": "play_and_credit",
        "debates": len(played.debates),
        "turns": sum(len(debate.turns) for debate in played.debates),
        "own_ms_per_turn": round(statistics.median(ms for ms, _ in runs), 4),
        "own_ms_limit": 0.5,
        "datum_tokens_per_s": round(statistics.median(rate for rate, _ in rates)),
        "datum_tokens_floor": 1_000_000,
        "scored_turns_per_s": round(statistics.median(rate for _, rate in rates)),
        "peak_kb_per_debate": round(large / 1000 / 1024, 1),
        "memory_ratio_for_4x_debates": round(large / small, 2),
    }
    print(json.dumps(result))
    ok = result["own_ms_per_turn"] <= 0.5 and result["datum_tokens_per_s"] >= 1e6 and large <= 4.4 * small
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

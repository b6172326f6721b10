"""Training steps as a real run makes them, on a real model and real questions: where the time goes, and what is lost.

    python benchmarks/real_step.py --model MODEL --task QUESTIONS.jsonl.gz --steps 6
    python benchmarks/real_step.py --model MODEL --task QUESTIONS.jsonl.gz --plain --steps 50 --updates 4

A step is 64 questions, debated by 5 agents in 2 rounds, 512 tokens a reply. ``--plain``: 8 plain answers to each question,
rewarded if right, so that what trains is groups of sequences with the same prompt. ``--keep FILE`` writes how long the
sequences of the last step are and what they share, from which ``local_gpu.py`` makes its batch. Prints a line a step and,
last, one line of JSON: medians of all steps but the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from peergrad import Batcher, datums, play_all
from peergrad.config import preset
from peergrad.debate.play import Played
from peergrad.debate.protocols import Direct
from peergrad.debate.settings import changed
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.engines.local.sample.scheduler import Scheduler
from peergrad.engines.registry import engine_of
from peergrad.learn.data import Datum
from peergrad.learn.train import self_play, train
from peergrad.learn.trainer import StepStats, joined, parts
from peergrad.runs.plan import Plan, plan_run
from peergrad.tasks.base import grade_all

PARTS = ("_admit", "_prefill", "_decode", "_collect", "_retire")


@dataclass
class Took:
    """One step."""

    sampling_s: float
    training_s: float
    whole_s: float
    sampled: int
    data: list[Datum]
    stats: StepStats | None


def sampled(played: Played) -> int:
    return sum(len(turn.tokens.ids_T) for debate in played.debates for turn in debate.turns if turn.tokens)


def timed(spent: dict[str, float]) -> None:
    """Add up how long the host spends in each part of sampling; waiting for the device counts where it happens."""
    for name in PARTS:
        real = getattr(Scheduler, name)

        def timing(*args: Any, real: Callable[..., Any] = real, name: str = name, **more: Any) -> Any:
            started = time.perf_counter()
            try:
                return real(*args, **more)
            finally:
                spent[name] += time.perf_counter() - started

        setattr(Scheduler, name, timing)


async def debates(made: Plan, local: Local) -> AsyncIterator[Took]:
    """Steps of self-play, as ``peergrad train`` makes them."""
    rollout = self_play(made.protocol, made.batch, **engine_of(made.config.engine).batching(made.config.engine))
    last = time.perf_counter()
    async for step in train(local, rollout, made.config.learn):
        now = time.perf_counter()
        yield Took(step.played.seconds or 0.0, step.trained_s, now - last, sampled(step.played), list(step.data), step.stats)
        last = time.perf_counter()


async def plain(made: Plan, local: Local) -> AsyncIterator[Took]:
    """Steps of ordinary reinforcement learning with answers that can be checked."""
    learn = made.config.learn
    protocol = Direct(agents=8, max_tokens=made.config.debate.max_tokens, temperature=1.0)
    for index in range(learn.steps):
        start = time.perf_counter()
        async with Batcher(await local.sampler(), **engine_of(made.config.engine).batching(made.config.engine)) as sampler:
            played = await play_all(protocol, made.batch(index), sampler, prefix=f"step-{index + 1}/")
        pairs = [(debate.question, turn.text) for debate in played.debates for turn in debate.turns]
        grades = iter(grade_all(made.task.grade, pairs))
        data: list[Datum] = []
        for debate in played.debates:
            right = np.array([float(bool(next(grades).correct)) for _ in debate.turns])
            if right.std():
                values = right - right.mean()
                worth = [np.full(len(t.tokens.ids_T), v, np.float32) for t, v in zip(debate.turns, values, strict=True)]
                data += datums(debate, worth)
        between = time.perf_counter()
        stats = [await local.step(part, learn.loss, learn.lr) for part in parts(data, learn.updates)]
        end = time.perf_counter()
        yield Took(played.seconds or 0.0, end - between, end - start, sampled(played), data, joined(stats))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--kv-gb", type=float)
    parser.add_argument("--max-rows", type=int)
    parser.add_argument("--train-tokens", type=int)
    parser.add_argument("--fraction", type=float, help="of the card's memory that may be used")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    if args.fraction:
        torch.cuda.set_per_process_memory_fraction(args.fraction)
    settings = {"model": args.model, "task": args.task, "agents": args.agents, "max_rounds": 2, "max_tokens": args.tokens}
    settings |= {"batch": args.questions, "steps": args.steps, "updates": args.updates, "lr": args.lr, "center": "seat"}
    settings |= {"lambda_judge": 0.0, "eval_every": 0, "eval_questions": 0, "stop_after_bad": 1000}
    made = plan_run(changed(preset("math-easy"), settings, "benchmark"))
    sizes = {"kv_gb": args.kv_gb, "max_rows": args.max_rows, "train_tokens": args.train_tokens}
    sizes = {name: value for name, value in sizes.items() if value}
    local = Local.load_model(args.model, lora=LoraRules(rank=32), say=lambda text: print(text, flush=True), **sizes)
    spent: dict[str, float] = defaultdict(float)
    timed(spent)
    lines: list[dict[str, float]] = []
    took: Took | None = None
    async for took in (plain if args.plain else debates)(made, local):
        tokens = sum(map(len, took.data))
        stats, updates = took.stats, min(args.updates, len(took.data))
        skipped = stats.metrics.get("optim/skipped", float(stats.skipped)) if stats else 0.0
        line = {
            "step_s": took.whole_s,
            "sampling_s": took.sampling_s,
            "training_s": took.training_s,
            "sampled": took.sampled,
            "sampled_tok_s": took.sampled / max(took.sampling_s, 1e-9),
            "trained": tokens,
            "trained_tok_s": tokens / max(took.training_s, 1e-9),
            "skipped": skipped * updates,
            "retried": stats.metrics.get("optim/retried", 0.0) if stats else 0.0,
            "updates": updates,
        } | {f"host{name}_s": spent[name] for name in PARTS}
        spent.clear()
        print(" ".join(f"{name} {value:.2f}" for name, value in line.items()), flush=True)
        lines.append(line)
    if args.keep and took:
        args.keep.write_text(json.dumps(lengths(took.data)))
    later = lines[1:] or lines
    result: dict[str, Any] = {"benchmark": "real_step", "shape": "plain" if args.plain else "debates", "steps": len(lines)}
    result |= {name: round(statistics.median(line[name] for line in later), 3) for name in lines[0]}
    result |= {name: sum(line[name] for line in lines) for name in ("skipped", "retried", "updates")}
    result |= {"first_step_s": round(lines[0]["step_s"], 2), "machine": torch.cuda.get_device_name() if cuda else "cpu"}
    if cuda:
        result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    print(json.dumps(result))


def lengths(data: list[Datum]) -> list[list[int]]:
    """Of each sequence its length, what it shares with an earlier one that shares most, which, and its replies' places."""
    found: list[list[int]] = []
    for index, one in enumerate(data):
        shared, with_ = 0, -1
        for other in range(index):
            common = min(len(one), len(data[other]))
            differ = np.flatnonzero(one.inputs_T[:common] != data[other].inputs_T[:common])
            same = int(differ[0]) if len(differ) else common
            if same > shared:
                shared, with_ = same, other
        edges = np.flatnonzero(np.diff(np.concatenate(([0.0], one.mask_T, [0.0]))))
        found.append([len(one), shared, with_, *edges.tolist()])
    return found


if __name__ == "__main__":
    asyncio.run(main())

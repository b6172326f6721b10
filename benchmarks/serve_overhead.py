"""What a model costs when it is served: sampling and an update through ``peergrad serve``, and by the local engine itself.

``python benchmarks/serve_overhead.py --model smollm2``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from peergrad.config import EngineConfig
from peergrad.debate.types import Ask, Message, Reply
from peergrad.engines.local.engine import Local
from peergrad.engines.tinker.engine import Tinker
from peergrad.learn.data import Datum


@contextlib.contextmanager
def served(model: str, rows: int, kv_gb: float, train_tokens: int) -> Iterator[str]:
    """The address of a server of its own process."""
    with tempfile.TemporaryDirectory() as out:
        sizes = ["--max-rows", str(rows), "--kv-gb", str(kv_gb), "--train-tokens", str(train_tokens)]
        command = [sys.executable, "-m", "peergrad", "serve", "--model", model, "--port", "0", "--out", out, *sizes]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            for line in server.stderr or ():
                print(line, end="", file=sys.stderr)
                if " at http://" in line:
                    yield line.split(" at ")[1].split(";")[0]
                    return
            raise SystemExit("the server did not start")
        finally:
            server.terminate()
            server.wait()


def datum(reply: Reply, rng: np.random.Generator) -> Datum:
    """What was said, as something to learn from."""
    assert reply.tokens is not None
    prompt_T, ids_T, said_T = reply.tokens.prompt_T, reply.tokens.ids_T, reply.tokens.logprobs_T
    all_T = np.concatenate([prompt_T, ids_T]).astype(np.int32)
    mask_T = np.concatenate([np.zeros(len(prompt_T) - 1), np.ones(len(ids_T))]).astype(np.float32)
    logprobs_T = np.concatenate([np.zeros(len(prompt_T) - 1), said_T]).astype(np.float32)
    advantage = np.float32(rng.normal())
    return Datum("", 0, (0,), all_T[:-1], all_T[1:], logprobs_T, mask_T * advantage, mask_T, np.ones_like(mask_T))


async def measured(trainer: Local | Tinker, asks: list[Ask], repeats: int) -> tuple[float, float]:
    """Tokens sampled in a second, and tokens trained on: medians."""
    rng, sampling, training = np.random.default_rng(0), list[float](), list[float]()
    for repeat in range(repeats + 1):
        sampler = await trainer.sampler()
        begun = time.monotonic()
        replies = [reply for reply in await sampler.sample(asks) if isinstance(reply, Reply)]
        took = time.monotonic() - begun
        assert len(replies) == len(asks)
        data = [datum(reply, rng) for reply in replies]
        begun = time.monotonic()
        await trainer.step(data, "importance_sampling", 1e-5)
        trained = time.monotonic() - begun
        if repeat:  # the first one warms up
            sampling.append(sum(len(reply.tokens.ids_T) for reply in replies if reply.tokens) / took)
            training.append(sum(map(len, data)) / trained)
    return statistics.median(sampling), statistics.median(training)


def main(model: str, count: int, tokens: int, kv_gb: float, train_tokens: int, repeats: int) -> None:
    words = "Explain step by step, in many words, how to add {} and {}, and then how to multiply them."
    asks = [
        Ask(f"d{i}", 0, 0, 0, (Message("user", words.format(i, 3 * i + 1)),), (), tokens, temperature=1.0)
        for i in range(count)
    ]
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent))
    here = Local.load_model(model, max_rows=count, kv_gb=kv_gb, train_tokens=train_tokens)
    local = asyncio.run(measured(here, asks, repeats))
    here.scheduler.release()
    with served(model, count, kv_gb, train_tokens) as url:
        far = asyncio.run(measured(Tinker(EngineConfig(model=model, base_url=url)), asks, repeats))
    found = {"local_sampled_per_s": local[0], "served_sampled_per_s": far[0], "local_trained_per_s": local[1]}
    found |= {"served_trained_per_s": far[1]}
    shown = {name: round(value) for name, value in found.items()}
    print(json.dumps(shown | {"sampling": round(far[0] / local[0], 3), "training": round(far[1] / local[1], 3)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--kv-gb", type=float, default=4.0)
    parser.add_argument("--train-tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    main(given.model, given.count, given.tokens, given.kv_gb, given.train_tokens, given.repeats)

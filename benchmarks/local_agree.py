"""Sampler against trainer on a real model: log-probabilities of the same tokens, on whatever device there is.

Plays debates with an adapter that is not zero, and evaluates what was said as training does. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from peergrad import Batcher, Parallel, Question, advantages, credit, datums, play_all, score
from peergrad.engines.local.engine import Local
from peergrad.engines.local.train.backward import gradient


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--debates", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    start = time.perf_counter()
    local = Local.load_model(args.model, dtype=args.dtype)
    loaded = time.perf_counter() - start
    with torch.no_grad():
        for name, weight in local._lora.weights.items():
            if "lora_B" in name:
                weight.normal_(std=0.002)
    protocol = Parallel(agents=3, max_rounds=2, max_tokens=args.tokens)
    questions = [
        Question(f"q{i}", f"A farmer has {17 + i} sheep and buys {5 * i} more. How many?", style="boxed")
        for i in range(args.debates)
    ]
    start = time.perf_counter()
    async with Batcher(await local.sampler(), max_calls=1) as sampler:
        played = await play_all(protocol, questions, sampler)
    seconds = time.perf_counter() - start
    data = []
    for debate in played.debates:
        scored = score(debate)
        data += datums(debate, credit(debate, scored.streams, advantages([scored])[0]))
    found = gradient(local.decoder, local._lora, data, "importance_sampling", 8192).logprobs
    off = np.concatenate([np.abs(new - one.logprobs_T)[one.mask_T > 0] for new, one in zip(found, data, strict=True)])
    print(played.debates[0].turns[0].text[:300], file=sys.stderr)
    result = {
        "benchmark": "local_agree",
        "model": Path(args.model).name,
        "device": str(local.decoder.device),
        "dtype": str(local.decoder.dtype),
        "tokens": len(off),
        "mean": float(off.mean()),
        "p99": float(np.quantile(off, 0.99)),
        "max": float(off.max()),
        "readable": float(np.mean([not turn.parsed.error for debate in played.debates for turn in debate.turns])),
        "load_s": round(loaded, 1),
        "sampled_tok_s": round(len(off) / seconds),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())

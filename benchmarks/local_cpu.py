"""The local engine against ``transformers.generate`` on the CPU: the same debate waves, SmolLM2 in float32.

8 questions of 3 agents and 3 rounds, 96 new tokens a turn. The peer gets each wave as one left-padded batch and prefills it
anew, which is what a loop over ``generate`` does. Prints the ratio and, last, one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from transformers import AutoModelForCausalLM

from peergrad import Batcher, Parallel, Question, play_all
from peergrad.debate.sampler import Answer, Sampler
from peergrad.debate.types import Ask
from peergrad.engines.local.engine import Local
from peergrad.engines.local.fetch.models import resolve


class Full:
    """Asks for every token there is room for, and keeps the prompts of each wave."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.waves, self.seconds = sampler, [], 0.0

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        start = time.perf_counter()
        answers = await self.sampler.sample([replace(ask, stop=()) for ask in asks])
        self.seconds += time.perf_counter() - start
        self.waves.append([answer.tokens.prompt_T.tolist() for answer in answers])
        return answers


def peer_seconds(waves: list[list[list[int]]], tokens: int) -> float:
    model = AutoModelForCausalLM.from_pretrained(str(resolve("smollm2")), dtype=torch.float32)
    total = 0.0
    for wave in waves:
        longest = max(map(len, wave))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in wave])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in wave])
        start = time.perf_counter()
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
        with torch.no_grad():
            model.generate(ids, attention_mask=mask, **options)
        total += time.perf_counter() - start
    return total


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    local = Local.load_model("smollm2", threads=os.cpu_count())
    local.chat.ends = frozenset()
    questions = [
        Question(f"q{i}", f"Tom has {3 + i} boxes of {4 + i} pens. How many pens?", style="boxed")
        for i in range(args.questions)
    ]
    full = Full(local.base_sampler())
    async with Batcher(full, max_calls=1) as sampler:
        await play_all(Parallel(agents=3, max_rounds=3, max_tokens=args.tokens), questions, sampler)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"peergrad: {full.seconds:.1f} s, {local.scheduler.prefilled_tokens} tokens prefilled, peak {peak:.2f} GiB",
        flush=True,
    )
    prompts = sum(len(prompt) for wave in full.waves for prompt in wave)
    peer = peer_seconds(full.waves, args.tokens)
    print(f"transformers.generate: {peer:.1f} s, {prompts} tokens prefilled", flush=True)
    result = {
        "benchmark": "local_cpu",
        "new_tokens": 9 * args.questions * args.tokens,
        "peergrad_s": round(full.seconds, 1),
        "transformers_s": round(peer, 1),
        "ratio": round(peer / full.seconds, 2),
        "prefilled": local.scheduler.prefilled_tokens,
        "prefilled_by_peer": prompts,
        "peak_gib": round(peak, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())

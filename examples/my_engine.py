"""An engine of one's own: any Python function answers. It can debate and be evaluated, but not learn.

    peergrad debate "What is 2 + 3?" --engine my_engine:CALCULATOR --model careful      # in the folder of this file
    peergrad eval --engine my_engine:CALCULATOR --model careless --task arithmetic --questions 4

or ``open_engine(Setup(engine=EngineConfig(engine="my_engine:CALCULATOR", model="careful")))`` in Python.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from peergrad.debate.types import Ask, Reply
from peergrad.engines.base import Engine, Setup


def answer(model: str, prompt: str) -> str:
    """Put anything here: a program, a client of a service, a person at a keyboard."""
    numbers = re.search(r"(\d+) \+ (\d+)", prompt) or {1: 0, 2: 0}
    solution = int(numbers[1]) + (int(numbers[2]) if model == "careful" else 0)
    votes = "Agent 1 > Agent 2" if "Agent 1 said" in prompt and "Agent 2 said" in prompt else "N/A"
    return (
        f"<solution>\\boxed{{{solution}}}</solution>\n<evaluation>I added the numbers.</evaluation>\n"
        f"<comparison>{votes}</comparison>"
    )


class Calculator:
    """A sampler over a function, and the model it belongs to, which has no checkpoints."""

    def __init__(self, model: str) -> None:
        self._model = model

    async def sample(self, asks: Sequence[Ask]) -> list[Reply]:
        prompts = ["\n".join(message.text for message in ask.messages if message.role == "user") for ask in asks]
        texts = await asyncio.gather(*(asyncio.to_thread(answer, self._model, prompt) for prompt in prompts))
        return [Reply(text) for text in texts]

    async def sampler_with(self, checkpoint: Path | None) -> Calculator:
        return self

    async def close(self) -> None:
        pass


def open_calculator(setup: Setup) -> Calculator:
    return Calculator(setup.engine.model)


CALCULATOR = Engine(name="calculator", open=open_calculator, max_asks=8)

"""A zero-latency engine for benchmarks: replies of realistic length, a token for every four bytes of text."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np

from peergrad.debate.types import Ask, Ids, Message, Reply, Tokens

WORDS = ("first", "we", "add", "the", "two", "numbers", "then", "check", "that", "each", "step", "follows", "from", "it")
END = np.array([-1], np.int32)


class Chunks:
    """Answers with a solution and an evaluation of the given lengths in tokens, and a vote about two others."""

    def __init__(self, agents: int, *, solution: int = 180, evaluation: int = 100) -> None:
        self.agents, self.solution, self.evaluation = agents, solution, evaluation

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Reply]:
        return [self.reply(ask) for ask in asks]

    def reply(self, ask: Ask) -> Reply:
        rng = random.Random(zlib.crc32(f"{ask.debate}/{ask.turn}".encode()))
        others = [agent for agent in range(self.agents) if agent != ask.agent]
        rng.shuffle(others)
        votes = f"Agent {others[0]} {rng.choice('>=<')} Agent {others[1]}" if ask.seen else "N/A"
        text = (
            f"<solution>\n{_words(rng, self.solution)}\n</solution>\n<evaluation>\n{_words(rng, self.evaluation)}\n"
            f"</evaluation>\n<comparison>\n{votes}\n</comparison>"
        )
        ids_T = np.append(_chunks(text), END)
        starts_T = np.arange(len(ids_T), dtype=np.int32) * 4
        starts_T[-1] = len(text.encode())
        logprobs_T = np.full(len(ids_T), -0.5, np.float32)
        return Reply(text, tokens=Tokens(render(ask.messages), ids_T, logprobs_T, starts_T, ask.temperature))


def render(messages: Sequence[Message]) -> Ids:
    """Messages as tokens, an assistant's own tokens copied."""
    parts: list[Ids] = []
    for message in messages:
        parts += [message.tokens.ids_T] if message.tokens else [_chunks(message.text), END]
    return np.concatenate(parts)


def _words(rng: random.Random, tokens: int) -> str:
    return " ".join(rng.choices(WORDS, k=round(tokens * 4 / 4.7)))


def _chunks(text: str) -> Ids:
    encoded = text.encode()
    return np.frombuffer(encoded + b"\0" * (-len(encoded) % 4), np.int32) & 0x7FFFFFFF

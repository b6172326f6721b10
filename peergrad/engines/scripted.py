"""An engine that says what it is told: for tests, benchmarks, and to look at the machinery without a model.

It has a real token stream: a token is a UTF-8 byte, with ids from 256 up for what separates messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from peergrad.debate.sampler import Answer
from peergrad.debate.types import Ask, Ids, Message, Reply, Tokens
from peergrad.engines.base import decode

END = 256
_OPENS = {"system": 257, "user": 258, "assistant": 259}

Script = Callable[[Ask], str]


class Scripted:
    """Answers each ask with a function of it, or from a table ``(agent, turn) → text``, with tokens unless told not to.

    Example: ``Scripted(lambda ask: f"<solution>{ask.agent}</solution>…")``
    """

    def __init__(self, script: Script | Mapping[tuple[int, int], str], *, tokens: bool = True) -> None:
        self._script: Script = script if callable(script) else lambda ask: script[ask.agent, ask.turn]
        self._tokens = tokens
        self.asked = 0

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        self.asked += len(asks)
        return [self._reply(ask) for ask in asks]

    def _reply(self, ask: Ask) -> Reply:
        text = self._script(ask)
        encoded = _encode(text)
        truncated = len(encoded) > ask.max_tokens
        if truncated:
            encoded = encoded[: ask.max_tokens]
            text, _ = decode([bytes([byte]) for byte in encoded])
        if not self._tokens:
            return Reply(text, truncated)
        ids_T = encoded if truncated else np.append(encoded, np.int32(END))
        logprobs_T = np.zeros(len(ids_T), np.float32)  # a script is certain of what it says
        starts_T = np.arange(len(ids_T), dtype=np.int32)
        return Reply(text, truncated, Tokens(render(ask.messages), ids_T, logprobs_T, starts_T, ask.temperature))


def render(messages: Sequence[Message]) -> Ids:
    """Chat messages as tokens, ending where the assistant is to speak; an assistant's own tokens are copied verbatim."""
    parts: list[Ids] = []
    for message in messages:
        parts.append(np.array([_OPENS[message.role]], np.int32))
        ids_T = _encode(message.text) if message.tokens is None else message.tokens.ids_T
        parts.append(ids_T if len(ids_T) and ids_T[-1] == END else np.append(ids_T, np.int32(END)))
    parts.append(np.array([_OPENS["assistant"]], np.int32))
    return np.concatenate(parts)


def _encode(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

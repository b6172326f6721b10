"""A snapshot of a policy on the service, which answers asks."""

from __future__ import annotations

from collections.abc import Sequence

import tinker

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer, all_of
from peergrad.debate.types import Ask, Reply, Tokens
from peergrad.engines.shared.chat import Chat
from peergrad.engines.shared.sampling import seed_of
from peergrad.engines.tinker.connection import Connection


class TinkerSampler:
    """Answers with the weights as they were when it was made. The service samples its asks side by side."""

    def __init__(
        self, client: tinker.SamplingClient, chat: Chat, connection: Connection, *, context: int, seed: int
    ) -> None:
        self._client, self._chat, self._connection = client, chat, connection
        self._context, self._seed = context, seed
        # Stops are all texts or all tokens, never both: the ends of a turn are given as the texts they stand for.
        self._ends = tuple(text for id in sorted(chat.ends) if (text := chat.piece(id).decode("utf-8", "ignore")))

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return await all_of([self._one(ask) for ask in asks])

    async def _one(self, ask: Ask) -> Answer:
        prompt_T = self._chat.prompt(ask.messages)
        room = self._context - len(prompt_T)
        if room < 1:
            return EngineError(f"a prompt of {len(prompt_T)} tokens does not fit the model's context of {self._context}")
        params = tinker.SamplingParams(
            max_tokens=min(max(1, ask.max_tokens), room),
            seed=seed_of(ask, self._seed),
            temperature=ask.temperature,
            # Not all services end a reply where its turn ends unless they are told to.
            stop=[*ask.stop, *self._ends] if ask.stop else sorted(self._chat.ends),
        )
        prompt = tinker.ModelInput.from_ints(prompt_T.tolist())
        try:
            response = await self._connection.wait("a reply", self._client.sample_async(prompt, 1, params))
        except EngineError as error:
            return error
        return _reply(response, prompt_T.tolist(), ask, self._chat)


def _reply(response: tinker.SampleResponse, prompt: list[int], ask: Ask, chat: Chat) -> Answer:
    sequence = response.sequences[0] if response.sequences else None
    ids, logprobs = (list(sequence.tokens), sequence.logprobs) if sequence else ([], None)
    if not sequence or not ids or logprobs is None or len(logprobs) != len(ids):
        return EngineError("the service gave a reply without tokens, or without their log-probabilities")
    if min(ids) < 0 or len(ids) > max(1, ask.max_tokens):
        return EngineError("the service gave a reply that no model gives: tokens below 0, or more than were asked for")
    text, starts = chat.text(ids)
    ended = ids[-1] in chat.ends or any(stop in text for stop in ask.stop)
    truncated = sequence.stop_reason == "length" and not ended
    return Reply(text, truncated, Tokens.of(prompt, ids, logprobs, starts, ask.temperature))

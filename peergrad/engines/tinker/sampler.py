"""A policy on the service as a sampler. Replies are checked here: no token of them is trusted to be one a model gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tinker

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer, Likely, all_of
from peergrad.debate.types import Ask, Floats, Reply, Tokens
from peergrad.engines.base import no_logprobs, seed_of, too_long
from peergrad.engines.shared.chat import Chat
from peergrad.engines.tinker.connection import Connection


class TinkerSampler:
    """A snapshot of a policy on the service: answers with the weights as they were when it was made."""

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
            return too_long(len(prompt_T), self._context)
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

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> Sequence[Likely | EngineError]:
        """How likely each option is as the reply to each ask, by the token it begins with."""
        tokens = self._chat.first_tokens(options)
        return await all_of([self._likely(ask, tokens) for ask in asks])

    async def _likely(self, ask: Ask, tokens: Sequence[int]) -> Likely | EngineError:
        """Every token is scored as the last of a prompt, at temperature 1. The service then samples one more, unread."""
        prompt = self._chat.prompt(ask.messages).tolist()
        if len(prompt) + 2 > self._context:
            return too_long(len(prompt), self._context)

        async def score(token: int) -> float:
            whole = tinker.ModelInput.from_ints([*prompt, token])
            scores = await self._connection.wait(
                "log-probabilities", self._client.compute_logprobs_async(whole, prompt_logprobs_last_n=1)
            )
            if not scores:
                raise no_logprobs(self._connection.host)
            if scores[-1] is None or not math.isfinite(scores[-1]):
                raise EngineError(f"{self._connection.host} gave no log-probability of a prompt's last token")
            return scores[-1]

        try:
            logprobs_K = np.array(await all_of([score(token) for token in tokens]))
        except EngineError as error:
            return error
        shares_K = np.exp(logprobs_K - logprobs_K.max())
        return Likely(tuple((shares_K / shares_K.sum()).tolist()), len(tokens) * (len(prompt) + 1))

    async def logprobs(self, ids: list[int]) -> Floats:
        """The log-probability of each token but the first, given those before it, at temperature 1."""
        whole = tinker.ModelInput.from_ints(ids)
        scores = await self._connection.wait("log-probabilities", self._client.compute_logprobs_async(whole))
        if not scores:
            raise no_logprobs(self._connection.host)
        return np.array([math.nan if score is None else score for score in scores[1:]], np.float32)


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

"""A snapshot of the policy that answers asks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer, Likely
from peergrad.debate.types import Ask, Floats, Ids, Reply, Tokens
from peergrad.engines.base import seed_name, too_long
from peergrad.engines.local.memory import catch_out_of_memory
from peergrad.engines.local.model.decoder import Adapter
from peergrad.engines.local.sample.scheduler import Job, Poll
from peergrad.engines.local.train.backward import token_logprobs
from peergrad.engines.local.train.packing import next_token_shares
from peergrad.engines.shared.chat import Chat
from peergrad.learn.data import Datum

if TYPE_CHECKING:
    from peergrad.engines.local.engine import Local

PACKED_TOKENS = 32768  # of prompts read at once; without a gradient they take little memory


@dataclass(frozen=True, slots=True, eq=False)
class CompletionRequest:
    """A tokenized prompt and how to complete it.

    A completion ends with a token of ``end_tokens``, after a text of ``stop``, or after ``max_tokens``. The same ``seed``
    draws the same random numbers.
    """

    prompt_T: Ids
    max_tokens: int
    temperature: float
    stop: tuple[str, ...]
    end_tokens: frozenset[int]
    seed: str


class LocalSampler:
    """Samples with the weights as they were when it was created. All samplers share one copy of the base model."""

    def __init__(self, engine: Local, adapter: Adapter | None, weights: int) -> None:
        self._engine, self._adapter, self._weights = engine, adapter, weights

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        chat = self._engine.chat
        jobs = await self.complete(await asyncio.to_thread(_render, asks, chat, self._engine.seed))
        return [job.error or _reply(job, chat) for job in jobs]

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Job]:
        """Sample a completion for each request."""
        jobs = await asyncio.to_thread(lambda: [self.job(request) for request in requests])
        await self._run(lambda: [job for job in jobs if job.error is None], joinable=False)
        return jobs

    async def run_batch(self, poll: Poll) -> None:
        """Sample for the jobs there are, and for those that arrive while it runs. The first decide how long rows are.

        ``poll`` and the jobs' ``on_done`` are called on another thread.
        """
        await self._run(poll, joinable=True)

    async def _run(self, poll: Poll, *, joinable: bool) -> None:
        cancelled = threading.Event()

        def run() -> None:
            with self._engine.sampling:
                more = poll if joinable else None
                self._engine.scheduler.run(poll(), self._adapter, self._weights, cancelled, more)

        try:
            await asyncio.to_thread(run)
        finally:
            cancelled.set()  # a thread can't be ended from outside: it checks this between tokens

    def job(
        self,
        request: CompletionRequest,
        on_done: Callable[[Job], object] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Job:
        """The job of a request; with an error, if the model's context or the memory can't hold it."""
        engine, tokens = self._engine, len(request.prompt_T)
        context = engine.decoder.shape.context
        limit = min(max(1, request.max_tokens), context - tokens)
        digest = hashlib.blake2b(request.seed.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
        job = Job(
            request.prompt_T,
            limit,
            request.temperature,
            generator.random(max(0, limit), np.float32),
            request.end_tokens,
            _stop_check(request.stop, engine.chat),
            on_done,
            cancelled,
        )
        if tokens >= context:
            job.error = too_long(tokens, context)
        elif not engine.scheduler.memory.fits(tokens + limit):
            job.error = EngineError(f"a dialogue of {tokens + limit} tokens does not fit into kv_gb; raise it")
        return job

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> Sequence[Likely | EngineError]:
        """How likely each option is as the reply to each ask, by the token it begins with."""
        return await asyncio.to_thread(self._choose, asks, options)

    def _choose(self, asks: Sequence[Ask], options: Sequence[str]) -> list[Likely | EngineError]:
        engine, chat = self._engine, self._engine.chat
        tokens = chat.first_tokens(options)
        context = engine.decoder.shape.context
        prompts = [request.prompt_T for request in _render(asks, chat, engine.seed)]
        fit = [index for index, prompt_T in enumerate(prompts) if len(prompt_T) < context]
        shares = self._retry(
            lambda packed: next_token_shares(engine.decoder, self._adapter, [prompts[i] for i in fit], tokens, packed),
            "choosing between words",
            PACKED_TOKENS,
        )
        rows: list[Likely | EngineError] = [too_long(len(prompt_T), context) for prompt_T in prompts]
        for index, row in zip(fit, shares, strict=True):
            rows[index] = Likely(tuple(row.tolist()), len(prompts[index]))
        return rows

    def _retry(self, compute: Callable[[int], Floats], what: str, packed: int = 0) -> Floats:
        """What is computed from ``packed`` tokens at once, or from fewer if memory runs out; 0: it has no parts."""
        with self._engine.sampling:
            while True:
                with catch_out_of_memory() as oom:
                    return compute(packed)
                if not self._engine.scheduler.free():
                    if packed < 256:
                        raise EngineError(f"out of memory while {what} ({oom.message})")
                    packed //= 2

    async def logprobs(self, ids_T: Ids) -> Floats:
        """The log-probability of each token but the first, given those before it, at temperature 1."""
        if len(ids_T) < 2:
            return np.zeros(0, np.float32)
        ones_T = np.ones(len(ids_T) - 1, np.float32)
        datum = Datum("", 0, (), ids_T[:-1], ids_T[1:], ones_T, ones_T, ones_T, ones_T)
        decoder, adapter = self._engine.decoder, self._adapter
        compute = lambda _: token_logprobs(decoder, adapter, [datum], len(ids_T))[0]  # noqa: E731
        return await asyncio.to_thread(self._retry, compute, f"reading {len(ids_T)} tokens; give fewer")


def _render(asks: Sequence[Ask], chat: Chat, seed: int) -> list[CompletionRequest]:
    """Asks as token requests, in threads: tokenizers release the GIL, and a GPU would wait meanwhile."""

    def render(ask: Ask) -> CompletionRequest:
        # The random numbers of an ask do not depend on what else is sampled.
        prompt_T, own_seed = chat.prompt(ask.messages), seed_name(ask, seed)
        return CompletionRequest(prompt_T, ask.max_tokens, ask.temperature, ask.stop, chat.ends, own_seed)

    with ThreadPoolExecutor(min(len(asks), os.cpu_count() or 1) or 1) as threads:
        return list(threads.map(render, asks))


def _stop_check(texts: tuple[str, ...], chat: Chat) -> Callable[[list[int]], bool]:
    """A function that says whether tokens contain a stop text that the newest token completed."""
    stops = [text.encode() for text in texts]
    longest = max(map(len, stops), default=0)

    def stopped(ids: list[int]) -> bool:
        # A stop text ends in the newest token and reaches back over at most its own length in tokens.
        newest = chat.piece(ids[-1])
        if not any(stop[-1:] in newest for stop in stops):
            return False
        tail = b"".join(chat.piece(id) for id in ids[-longest - 1 :])
        return any(stop in tail for stop in stops)

    return stopped


def _reply(job: Job, chat: Chat) -> Reply:
    text, starts = chat.text(job.ids)
    tokens = Tokens.of(job.prompt_T.tolist(), job.ids, job.logprobs, starts, job.temperature)
    return Reply(text, not job.ended, tokens)

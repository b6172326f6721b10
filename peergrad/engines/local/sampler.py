"""A snapshot of the policy that answers asks."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer
from peergrad.debate.types import Ask, Floats, Reply, Tokens
from peergrad.engines.local.chat import Chat
from peergrad.engines.local.forward import Adapter
from peergrad.engines.local.generate import Job
from peergrad.engines.local.memory import FULL, ran_out

if TYPE_CHECKING:
    from peergrad.engines.local.engine import Local


class LocalSampler:
    """Answers with the weights as they were when it was made. Many share one copy of the base model."""

    def __init__(self, engine: Local, adapter: Adapter | None, weights: int) -> None:
        self._engine, self._adapter, self._weights = engine, adapter, weights

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._sample, asks, cancelled)
        finally:
            cancelled.set()  # a thread can't be ended from outside: it looks at this between two tokens

    def _sample(self, asks: Sequence[Ask], cancelled: threading.Event) -> list[Answer]:
        engine = self._engine
        jobs = [_job(ask, engine.chat, engine.decoder.shape.context, engine.seed) for ask in asks]
        runnable = [job for job in jobs if isinstance(job, Job)]
        too_long = {id(job) for job in runnable if not engine.generator.fits(len(job.prompt_T) + job.limit)}
        with engine.sampling:
            try:
                engine.generator.run([j for j in runnable if id(j) not in too_long], self._adapter, self._weights, cancelled)
            except FULL as error:
                if not ran_out(error):
                    raise
                raise EngineError(f"out of memory while sampling; lower kv_gb or max_rows ({error})") from None
        return [
            job
            if isinstance(job, EngineError)
            else EngineError(f"a dialogue of {len(job.prompt_T) + job.limit} tokens does not fit into kv_gb; raise it")
            if id(job) in too_long
            else EngineError("sampling was cancelled")
            if cancelled.is_set()
            else _reply(job, engine.chat)
            for job in jobs
        ]


def _job(ask: Ask, chat: Chat, context: int, seed: int) -> Job | EngineError:
    prompt_T = chat.prompt(ask.messages)
    room = context - len(prompt_T)
    if room < 1:
        return EngineError(f"a prompt of {len(prompt_T)} tokens does not fit the model's context of {context}")
    limit = min(max(1, ask.max_tokens), room)
    stops = [stop.encode() for stop in ask.stop]
    longest = max(map(len, stops), default=0)

    def stopped(ids: list[int]) -> bool:
        # A stop text ends in the newest token and reaches back over at most its own length in tokens.
        newest = chat.piece(ids[-1])
        if not any(stop[-1:] in newest for stop in stops):
            return False
        tail = b"".join(chat.piece(id) for id in ids[-longest - 1 :])
        return any(stop in tail for stop in stops)

    return Job(prompt_T, limit, ask.temperature, _uniforms(ask, seed, limit), chat.ends, stopped)


def _reply(job: Job, chat: Chat) -> Reply:
    text, starts = chat.text(job.ids)
    ended = job.ids[-1] in job.ends or job.stopped(job.ids)
    return Reply(text, not ended, Tokens.of(job.prompt_T.tolist(), job.ids, job.logprobs, starts, job.temperature))


def _uniforms(ask: Ask, seed: int, count: int) -> Floats:
    """The ask's own random numbers, the same whoever else is being sampled."""
    name = f"{seed}\n{ask.debate}\n{ask.agent}\n{ask.turn}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big")
    return np.random.Generator(np.random.Philox(key=key)).random(count, np.float32)

"""A snapshot of the policy that answers asks."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer
from peergrad.debate.types import Ask, Floats, Ids, Reply, Tokens
from peergrad.engines.local.model.forward import Adapter
from peergrad.engines.local.model.memory import FULL, ran_out
from peergrad.engines.local.sample.generate import Job
from peergrad.engines.local.train.scoring import logprobs
from peergrad.engines.shared.chat import Chat
from peergrad.engines.shared.seeds import seed_name

if TYPE_CHECKING:
    from peergrad.engines.local.engine import Local


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Tokens to go on from, and how: an ask once it is rendered.

    A reply ends with a token of ``ends``, after a text of ``stop``, or after ``max_tokens``. The same ``name`` draws the
    same random numbers.
    """

    prompt_T: Ids
    max_tokens: int
    temperature: float
    stop: tuple[str, ...]
    ends: frozenset[int]
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What was sampled after a start, the end or stop included. ``ended``: it was not cut off by its limit."""

    ids: list[int]
    logprobs: list[float]
    ended: bool


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Somebody's start, and whom to tell what came of it; ``None``: there is no room now, come again.

    ``left`` says whether whoever wanted it does no longer.
    """

    start: Start
    tell: Callable[[Sampled | EngineError | None], None]
    left: Callable[[], bool]


class LocalSampler:
    """Answers with the weights as they were when it was made. Many share one copy of the base model."""

    def __init__(self, engine: Local, adapter: Adapter | None, weights: int) -> None:
        self._engine, self._adapter, self._weights = engine, adapter, weights

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        chat = self._engine.chat
        starts = await asyncio.to_thread(_starts, asks, chat, self._engine.seed)
        made = await self.go_on(starts)
        return [
            one if isinstance(one, EngineError) else _reply(start, one, chat)
            for start, one in zip(starts, made, strict=True)
        ]

    async def go_on(self, starts: Sequence[Start]) -> list[Sampled | EngineError]:
        """What comes after each of these tokens."""
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._go_on, starts, cancelled)
        finally:
            cancelled.set()  # a thread can't be ended from outside: it looks at this between two tokens

    async def flow(self, more: Callable[[], list[Wanted]]) -> None:
        """Sample for all who are there and all who come while it lasts; each is told as soon as it is done.

        ``more`` gives those who have come since it was last asked. It is asked on another thread, and they are told on it.
        The memory is laid out for those who came first.
        """
        cancelled = threading.Event()
        try:
            await asyncio.to_thread(self._flow, more, cancelled)
        finally:
            cancelled.set()

    def _flow(self, more: Callable[[], list[Wanted]], cancelled: threading.Event) -> None:
        generator = self._engine.generator

        def jobs(fits: Callable[[Job], bool]) -> list[Job]:
            made: list[Job] = []
            for one in more():
                job = self._checked(one.start)
                if isinstance(job, EngineError):
                    one.tell(job)
                elif fits(job):
                    job.tell = lambda one=one, job=job: one.tell(_sound(job))
                    job.unwanted = one.left
                    made.append(job)
                else:
                    one.tell(None)
            return made

        with self._engine.sampling:
            generator.run(jobs(lambda _: True), self._adapter, self._weights, cancelled, jobs)

    def _checked(self, start: Start) -> Job | EngineError:
        """A job, if the model and the memory can take it."""
        engine = self._engine
        job = _job(start, engine.chat, engine.decoder.shape.context)
        if isinstance(job, Job) and not engine.generator.room.fits(len(job.prompt_T) + job.limit):
            return EngineError(f"a dialogue of {len(job.prompt_T) + job.limit} tokens does not fit into kv_gb; raise it")
        return job

    def _go_on(self, starts: Sequence[Start], cancelled: threading.Event) -> list[Sampled | EngineError]:
        jobs = [self._checked(start) for start in starts]
        with self._engine.sampling:
            runnable = [job for job in jobs if isinstance(job, Job)]
            self._engine.generator.run(runnable, self._adapter, self._weights, cancelled)
        return [
            job
            if isinstance(job, EngineError)
            else EngineError("sampling was cancelled")
            if cancelled.is_set()
            else _sampled(job)
            for job in jobs
        ]

    async def logprobs(self, ids_T: Ids) -> Floats:
        """The log-probability of each of these tokens but the first, after those before it, at temperature 1."""
        return await asyncio.to_thread(self._logprobs, ids_T)

    def _logprobs(self, ids_T: Ids) -> Floats:
        with self._engine.sampling:
            while True:
                try:
                    return logprobs(self._engine.decoder, self._adapter, ids_T)
                except FULL as error:
                    if not ran_out(error):
                        raise
                    why = str(error)
                if not self._engine.generator.free():
                    raise EngineError(f"out of memory while reading {len(ids_T)} tokens; give fewer ({why})")


def _sound(job: Job) -> Sampled | EngineError:
    if job.failed is None and not math.isfinite(sum(job.logprobs)):
        return EngineError("the model gave a log-probability that is not finite")
    return _sampled(job)


def _sampled(job: Job) -> Sampled | EngineError:
    if job.failed is not None:
        tokens = len(job.prompt_T) + job.limit
        return EngineError(f"out of memory while sampling {tokens} tokens by themselves; give fewer ({job.failed})")
    return Sampled(job.ids, job.logprobs, job.ids[-1] in job.ends or job.stopped(job.ids))


def _starts(asks: Sequence[Ask], chat: Chat, seed: int) -> list[Start]:
    """Tokenizers let other threads run, and a GPU waits meanwhile."""
    with ThreadPoolExecutor(min(len(asks), os.cpu_count() or 1) or 1) as threads:
        return list(threads.map(lambda ask: _start(ask, chat, seed), asks))


def _start(ask: Ask, chat: Chat, seed: int) -> Start:
    """An ask's own random numbers are the same whoever else is being sampled."""
    name = seed_name(ask, seed)
    return Start(chat.prompt(ask.messages), ask.max_tokens, ask.temperature, ask.stop, chat.ends, name)


def _job(start: Start, chat: Chat, context: int) -> Job | EngineError:
    room = context - len(start.prompt_T)
    if room < 1:
        return EngineError(f"a prompt of {len(start.prompt_T)} tokens does not fit the model's context of {context}")
    limit = min(max(1, start.max_tokens), room)
    stops = [stop.encode() for stop in start.stop]
    longest = max(map(len, stops), default=0)

    def stopped(ids: list[int]) -> bool:
        # A stop text ends in the newest token and reaches back over at most its own length in tokens.
        newest = chat.piece(ids[-1])
        if not any(stop[-1:] in newest for stop in stops):
            return False
        tail = b"".join(chat.piece(id) for id in ids[-longest - 1 :])
        return any(stop in tail for stop in stops)

    return Job(start.prompt_T, limit, start.temperature, _uniforms(start.name, limit), start.ends, stopped)


def _reply(start: Start, made: Sampled, chat: Chat) -> Reply:
    text, starts = chat.text(made.ids)
    tokens = Tokens.of(start.prompt_T.tolist(), made.ids, made.logprobs, starts, start.temperature)
    return Reply(text, not made.ended, tokens)


def _uniforms(name: str, count: int) -> Floats:
    key = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "big")
    return np.random.Generator(np.random.Philox(key=key)).random(count, np.float32)

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
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer, Likely
from peergrad.debate.types import Ask, Floats, Ids, Reply, Tokens
from peergrad.engines.base import seed_name, too_long
from peergrad.engines.local.memory import catch_out_of_memory
from peergrad.engines.local.model.decoder import Adapter
from peergrad.engines.local.model.ops import LOGITS_CHUNK
from peergrad.engines.local.sample.scheduler import Job
from peergrad.engines.local.train.packing import Node, next_token_shares, packed_attention
from peergrad.engines.shared.chat import Chat

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


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """The sampled tokens, end token or stop text included. ``ended`` is false if the token limit cut it off."""

    ids: list[int]
    logprobs: list[float]
    ended: bool


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request for a batch. ``deliver`` gets its completion, or None if the running batch has no room for it."""

    request: CompletionRequest
    deliver: Callable[[Completion | EngineError | None], None]
    cancelled: Callable[[], bool] = lambda: False


# Returns the requests that arrived since the last call.
Poll = Callable[[], list[QueuedRequest]]


class LocalSampler:
    """Samples with the weights as they were when it was created. All samplers share one copy of the base model."""

    def __init__(self, engine: Local, adapter: Adapter | None, weights: int) -> None:
        self._engine, self._adapter, self._weights = engine, adapter, weights

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        chat = self._engine.chat
        requests = await asyncio.to_thread(_render, asks, chat, self._engine.seed)
        completions = await self.complete(requests)
        return [
            completion if isinstance(completion, EngineError) else _reply(request, completion, chat)
            for request, completion in zip(requests, completions, strict=True)
        ]

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion | EngineError]:
        """Sample a completion for each request."""
        completions: dict[int, Any] = {}
        queue = [QueuedRequest(request, partial(completions.__setitem__, i)) for i, request in enumerate(requests)]
        await self._run(lambda: queue, joinable=False)
        return [completions[i] for i in range(len(requests))]

    async def run_batch(self, poll: Poll) -> None:
        """Sample for all requests in the queue, and for those that arrive while it runs. Delivers each when it is done.

        ``poll`` and ``deliver`` are called on another thread. A log-probability that is not finite is an error. The first
        requests decide how long rows are.
        """
        await self._run(poll, joinable=True)

    async def _run(self, poll: Poll, *, joinable: bool) -> None:
        cancelled = threading.Event()
        try:
            await asyncio.to_thread(self._run_in_thread, poll, joinable, cancelled)
        finally:
            cancelled.set()  # a thread can't be ended from outside: it checks this between tokens

    def _run_in_thread(self, poll: Poll, joinable: bool, cancelled: threading.Event) -> None:
        def arrivals(fits: Callable[[Job], bool]) -> list[Job]:
            result: list[Job] = []
            for queued in poll():
                job = self._job(queued.request)
                if isinstance(job, EngineError):
                    queued.deliver(job)
                elif fits(job):
                    job.on_done = partial(_deliver, queued, finite=joinable)
                    job.cancelled = queued.cancelled
                    result.append(job)
                else:
                    queued.deliver(None)
            return result

        with self._engine.sampling:
            jobs = arrivals(lambda _: True)
            self._engine.scheduler.run(jobs, self._adapter, self._weights, cancelled, arrivals if joinable else None)

    def _job(self, request: CompletionRequest) -> Job | EngineError:
        """The job of a request, if the model's context and the memory can hold it."""
        engine, tokens = self._engine, len(request.prompt_T)
        context = engine.decoder.shape.context
        if tokens >= context:
            return too_long(tokens, context)
        limit = min(max(1, request.max_tokens), context - tokens)
        if not engine.scheduler.memory.fits(tokens + limit):
            return EngineError(f"a dialogue of {tokens + limit} tokens does not fit into kv_gb; raise it")
        stopped = _stop_check(request.stop, engine.chat)
        digest = hashlib.blake2b(request.seed.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
        uniforms_T = generator.random(limit, np.float32)
        return Job(request.prompt_T, limit, request.temperature, uniforms_T, request.end_tokens, stopped)

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
        return await asyncio.to_thread(self._logprobs, ids_T)

    @torch.no_grad()
    def _logprobs(self, ids_T: Ids) -> Floats:
        if len(ids_T) < 2:
            return np.zeros(0, np.float32)
        decoder = self._engine.decoder
        ids = torch.from_numpy(ids_T.astype(np.int64)).to(decoder.device)
        inputs, targets = ids[:-1], ids[1:]

        def compute(_: int) -> Floats:
            decoder.grow_rotations(len(inputs))
            attend = packed_attention([Node(0, 0, len(inputs))], decoder)
            hidden = decoder.hidden(inputs, torch.arange(len(inputs), device=decoder.device), attend, self._adapter)
            logprobs: list[torch.Tensor] = []
            for chunk, chosen in zip(hidden.split(LOGITS_CHUNK), targets.split(LOGITS_CHUNK), strict=True):
                scores = decoder.logits(chunk)
                logprobs.append(scores.gather(1, chosen[:, None])[:, 0] - scores.logsumexp(-1))
            return torch.cat(logprobs).float().cpu().numpy()

        return self._retry(compute, f"reading {len(ids_T)} tokens; give fewer")


def _deliver(queued: QueuedRequest, job: Job, *, finite: bool) -> None:
    """Deliver the completion of a job; ``finite``: log-probabilities that are not finite are an error."""
    if job.failed is not None:
        tokens = len(job.prompt_T) + job.limit
        message = f"out of memory while sampling {tokens} tokens by themselves; give fewer ({job.failed})"
        queued.deliver(EngineError(message))
    elif finite and not math.isfinite(sum(job.logprobs)):
        queued.deliver(EngineError("the model gave a log-probability that is not finite"))
    else:
        queued.deliver(Completion(job.ids, job.logprobs, job.ids[-1] in job.end_tokens or job.stopped(job.ids)))


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


def _reply(request: CompletionRequest, completion: Completion, chat: Chat) -> Reply:
    text, starts = chat.text(completion.ids)
    tokens = Tokens.of(request.prompt_T.tolist(), completion.ids, completion.logprobs, starts, request.temperature)
    return Reply(text, not completion.ended, tokens)

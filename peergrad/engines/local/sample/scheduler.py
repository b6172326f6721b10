"""Continuous batching: one forward pass decodes a token for every row, and a finished row is given to the next prompt.

A job is one reply to be sampled. Its prompt is prefilled from the longest cached prefix (see ``PrefixCache``). It has its
own random numbers, one uniform number a token, so other jobs in the batch do not change what it says. So a job may also be
restarted: when memory runs out, those that are running are, with less memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergrad.debate.errors import EngineError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.memory import Sizes, catch_out_of_memory
from peergrad.engines.local.model.decoder import Adapter, Decoder, Forward
from peergrad.engines.local.sample.cache import BatchState, CacheEntry, SampleMemory

# A GPU decodes several tokens before the host looks at them, and the next ones while it looks. Tokens after the end of a
# reply are discarded.
_LOOKAHEAD = 4


@dataclass(eq=False, slots=True)
class Job:
    """One reply to sample. It ends after ``limit`` tokens, with a token of ``end_tokens``, or when ``stopped`` says so."""

    prompt_T: Ids
    limit: int
    temperature: float
    uniforms_T: Floats
    end_tokens: frozenset[int]
    stopped: Callable[[list[int]], bool]
    on_done: Callable[[Job], object] = lambda _: None
    """Called on the sampling thread when the reply is complete, or failed, or the running batch has no room for it."""
    cancelled: Callable[[], bool] = lambda: False
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    entry: CacheEntry = field(init=False)
    """What is computed of it; set when it gets a row."""
    done: bool = False
    error: EngineError | None = None
    """Why it can't be sampled."""

    @property
    def row(self) -> int:
        assert self.entry.row is not None
        return self.entry.row

    @property
    def ended(self) -> bool:
        """Whether the reply has its end token or stop text; else the limit cut it off."""
        return self.ids[-1] in self.end_tokens or self.stopped(self.ids)

    def append(self, id: int, logprob: float) -> None:
        """Add a token, unless the reply is complete."""
        if not self.done:
            self.ids.append(id)
            self.logprobs.append(logprob)
            self.done = len(self.ids) >= self.limit or self.ended

    def reset(self) -> Job:
        """Discard all tokens."""
        self.ids, self.logprobs, self.done = [], [], False
        return self


# Returns the jobs that arrived since the last call.
Poll = Callable[[], list[Job]]


@dataclass(eq=False, slots=True)
class _DecodedTokens:
    """Tokens on their way from the device, (steps, rows), and the jobs that had the rows when they were decoded."""

    jobs: list[tuple[Job, int]]
    ids: Tensor
    logprobs: Tensor
    ready: torch.cuda.Event | None


class Scheduler:
    """Samples jobs with one decoder in memory of these sizes, and in less if memory runs out, which ``say`` is told."""

    def __init__(self, decoder: Forward, sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> None:
        self.decoder = decoder
        self._cuda = decoder.device.type == "cuda"
        self._lookahead = _LOOKAHEAD if self._cuda else 1
        self._prefill_tokens = sizes.prefill_tokens
        self.memory = SampleMemory(decoder, sizes, self._lookahead, say)
        self._merged_adapter: tuple[Adapter, Any] | None = None
        self._has_nan = False  # some row holds a number that is not finite
        self.prefilled_tokens = 0
        self.unused_weights: list[int] = []  # ids of weights that nobody will sample with again

    def release(self) -> None:
        """Free what only sampling needs and is quickly computed again, because training needs the memory."""
        self._merged_adapter = None

    def free(self) -> bool:
        """Free all memory until it is needed again. Returns whether there was any. Must not be called while it samples."""
        self._merged_adapter = None
        return self.memory.free()

    @torch.no_grad()
    def run(
        self,
        jobs: Sequence[Job],
        adapter: Adapter | None,
        weights: int,
        cancelled: threading.Event,
        poll: Poll | None = None,
    ) -> None:
        """Sample every job. When cancelled, stops early with replies unfinished.

        ``weights`` is the id of the base model with this adapter: prefixes cached under the same id are reused. ``poll`` is
        called between tokens for jobs that join.
        """
        waiting, active = list(jobs), list[Job]()
        del jobs  # a long run must not keep the first ones in memory
        while self.unused_weights:
            self.memory.prefixes.evict_weights(self.unused_weights.pop())
        while (waiting or active) and not cancelled.is_set():
            waiting += [job.reset() for job in active]
            active.clear()
            waiting.sort(key=lambda job: len(job.prompt_T) + job.limit, reverse=True)
            with catch_out_of_memory() as oom:
                self._run_batch(waiting, active, adapter, weights, cancelled, poll)
                return
            self._merged_adapter = None
            if not self.memory.shrink():  # the job in the only row does not fit, or the one that would have got it
                job = (active or waiting).pop(0)
                tokens = len(job.prompt_T) + job.limit
                why = f"out of memory while sampling {tokens} tokens by themselves; give fewer ({oom.message})"
                job.error = EngineError(why)
                job.on_done(job)
                self.memory.restore()

    def _run_batch(
        self,
        waiting: list[Job],
        active: list[Job],
        adapter: Adapter | None,
        weights: int,
        cancelled: threading.Event,
        poll: Poll | None,
    ) -> None:
        """Sample the waiting jobs. If it fails, every unfinished job is in one of the two lists."""
        if not waiting:
            return
        state = self.memory.allocate(waiting, joinable=poll is not None)
        adapter = self._merge(adapter)
        state.use_adapter(adapter)
        tokens: _DecodedTokens | None = None
        try:
            while (waiting or active) and not cancelled.is_set():
                if poll is not None:
                    present = [*active, *waiting]
                    for job in poll():
                        if self.memory.has_room(state, job, present):
                            waiting.append(job)
                        else:
                            job.on_done(job)
                waiting[:] = [job for job in waiting if not job.cancelled()]
                if not active:
                    self._clear_nan(state)
                while waiting and len(active) < state.rows and not self._has_nan and not cancelled.is_set():
                    admitted = self._admit(waiting, active, state, weights)
                    firsts = self._prefill(admitted, state, adapter)
                    for (job, _), (id, logprob) in zip(admitted, firsts, strict=True):
                        job.append(id, logprob)
                    self._retire(active, state)
                if active:
                    before, tokens = tokens, self._decode(active, state, adapter)
                    self._collect(before if self._cuda else tokens, active, state)
        finally:
            for job in active:  # cancelled or failed: their rows are about to be overwritten
                self.memory.prefixes.remove(job.entry)
                self._has_nan |= not math.isfinite(sum(job.logprobs))
            self._clear_nan(state)

    def _clear_nan(self, state: BatchState) -> None:
        """Zero all rows if one may hold a NaN: masked or not, it would spread to the next job in it."""
        if self._has_nan:
            state.cache.kv.zero_()
        self._has_nan = False

    def _merge(self, adapter: Adapter | None) -> Any:
        """The adapter in the form to sample with; cached, since it may be a copy of the weights."""
        if adapter is None or not isinstance(self.decoder, Decoder):
            return adapter
        cached = self._merged_adapter  # training may release it at any moment
        if cached is None or cached[0] is not adapter:
            cached = self._merged_adapter = None  # free the old copy before making the new one
            cached = self._merged_adapter = (adapter, self.decoder.merged(adapter))
        return cached[1]

    def _admit(self, waiting: list[Job], active: list[Job], state: BatchState, weights: int) -> list[tuple[Job, int]]:
        """Give rows to jobs that are prefilled together. Returns each with the length of the prefix that is in its row.

        A job that shares more with another of this batch than with a cached prefix waits until that one is computed.
        """
        batch: list[tuple[Job, int]] = []
        computing: set[tuple[int, bytes]] = set()
        total = at = 0
        while at < len(waiting) and len(active) < state.rows:
            job = waiting[at]
            entry, common = self.memory.prefixes.longest_prefix(weights, job.prompt_T)
            common = min(common, len(job.prompt_T) - 1)  # the last token is always computed: its output is the first draw
            start = (common, job.prompt_T[common : common + 64].tobytes())
            if start in computing and len(job.prompt_T) >= common + 64:
                at += 1
                continue
            total += len(job.prompt_T) - common
            if batch and total > self._prefill_tokens:
                break
            computing.add(start)
            job.entry = CacheEntry(weights, job.prompt_T, row=len(active))
            active.append(waiting.pop(at))
            batch.append((job, common))
            if entry is not None:
                state.cache.load(job.row, entry, common)
        return batch

    def _prefill(self, batch: list[tuple[Job, int]], state: BatchState, adapter: Adapter | None) -> list[tuple[int, float]]:
        """Compute the rest of each prompt and draw each job's first token; in smaller parts where memory runs out."""
        with catch_out_of_memory(when=len(batch) > 1):
            return self._prefill_at_once(batch, state, adapter)
        self._prefill_tokens = max(1, self._prefill_tokens // 2)
        torch.cuda.empty_cache()
        half = len(batch) // 2
        return [first for part in (batch[:half], batch[half:]) for first in self._prefill(part, state, adapter)]

    def _prefill_at_once(
        self, batch: list[tuple[Job, int]], state: BatchState, adapter: Adapter | None
    ) -> list[tuple[int, float]]:
        """``_prefill`` in one forward pass, with all prompts packed end to end."""
        decoder, device = self.decoder, self.decoder.device
        jobs = [job for job, _ in batch]
        rows = torch.tensor([job.row for job in jobs], device=device)
        lengths = np.array([len(job.prompt_T) - common for job, common in batch])
        ids = np.concatenate([job.prompt_T[common:] for job, common in batch]).astype(np.int64)
        positions = np.concatenate([np.arange(common, len(job.prompt_T)) for job, common in batch])
        uniforms = np.array([job.uniforms_T[0] for job in jobs], np.float32)
        on_device = (torch.from_numpy(x).to(device) for x in (ids, positions, lengths.cumsum() - 1, uniforms))
        ids, positions, last, uniforms = on_device
        attend = state.cache.attend(rows, positions, max(len(job.prompt_T) for job in jobs), lengths.tolist())
        hidden = decoder.hidden(ids, positions, attend, adapter)[last]
        temperatures = torch.tensor([job.temperature for job in jobs], device=device)
        first_ids, logprobs = state.draw(decoder.logits(hidden), temperatures, uniforms)
        state.fill_rows(jobs, rows, first_ids)
        for job in jobs:
            self.memory.prefixes.add(job.entry)
        self.prefilled_tokens += int(lengths.sum())
        return list(zip(first_ids.tolist(), logprobs.tolist(), strict=True))

    def _decode(self, active: list[Job], state: BatchState, adapter: Adapter | None) -> _DecodedTokens:
        """Start decoding the next tokens of all rows."""
        longest = max(len(job.prompt_T) + len(job.ids) for job in active)
        longest += 2 * self._lookahead if self._cuda else 1  # on a GPU rows are further than the host knows
        ids, logprobs = state.steps(len(active), longest, self._lookahead, adapter)
        ready = None
        if self._cuda:
            pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in (ids, logprobs)]
            ids, logprobs = pinned[0].copy_(ids, non_blocking=True), pinned[1].copy_(logprobs, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        return _DecodedTokens([(job, job.row) for job in active], ids, logprobs, ready)

    def _collect(self, tokens: _DecodedTokens | None, active: list[Job], state: BatchState) -> None:
        """Append decoded tokens to their jobs, and retire those that are done."""
        if tokens is None:
            return
        if tokens.ready is not None:
            tokens.ready.synchronize()
        for ids, logprobs in zip(tokens.ids.tolist(), tokens.logprobs.tolist(), strict=True):
            for job, row in tokens.jobs:
                job.append(ids[row], logprobs[row])
        for job in active:
            job.done = job.done or job.cancelled()
        self._retire(active, state)

    def _retire(self, active: list[Job], state: BatchState) -> None:
        """Store the prefixes of jobs that are done, and move the last rows into theirs, so that rows in use are adjacent."""
        for job in [job for job in active if job.done]:
            row = job.row
            computed_T = np.concatenate((job.prompt_T, np.array(job.ids[:-1], np.int32)))  # the last token was only drawn
            if math.isfinite(sum(job.logprobs)):
                self.memory.prefixes.store(state.cache, job.entry, computed_T)
            else:
                self.memory.prefixes.remove(job.entry)
                job.entry.row = None
                state.cache.kv[:, :, row] = 0  # another row may be moved here at once
                self._has_nan = True
            active.remove(job)
            job.on_done(job)
            last = max(active, key=lambda other: other.row, default=None)
            if last is not None and last.row > row:
                state.move(last.row, row, len(last.prompt_T) + len(last.ids) + 2 * self._lookahead)
                last.entry.row = row

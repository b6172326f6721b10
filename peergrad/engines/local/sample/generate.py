"""Continuous batching: many prompts, one forward pass a token, a finished row's place taken by the next prompt.

A job is one reply to be sampled. Its prompt is prefilled from the longest prefix already held (see ``cache``). Its
randomness is its own, one uniform number a token, so its neighbours in the batch do not change what it says. So a job
may also be begun anew: when memory runs out, those under way are, with less of it.
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

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.forward import Adapter, Forward
from peergrad.engines.local.model.memory import FULL, ran_out
from peergrad.engines.local.sample.cache import Held
from peergrad.engines.local.sample.room import Room
from peergrad.engines.local.sample.state import State

# A GPU draws several tokens before the host looks, and goes on while it looks. What a row draws after its end is
# thrown away.
_AHEAD = 4


@dataclass(eq=False, slots=True)
class Job:
    """One reply to sample. It ends after ``limit`` tokens, with a token of ``end_tokens``, or when ``stopped`` says so."""

    prompt_T: Ids
    limit: int
    temperature: float
    uniforms_T: Floats
    end_tokens: frozenset[int]
    stopped: Callable[[list[int]], bool]
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    on_done: Callable[[], None] = lambda: None
    """Called when the reply is over, on the thread that samples."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether nobody waits for the reply any more."""
    held: Held | None = None
    over: bool = False
    failed: str | None = None
    """Why it can't be sampled even by itself."""

    @property
    def row(self) -> int:
        assert self.held is not None
        assert self.held.row is not None
        return self.held.row

    def take(self, id: int, logprob: float) -> None:
        """Add a token, unless the reply is over."""
        if not self.over:
            self.ids.append(id)
            self.logprobs.append(logprob)
            self.over = id in self.end_tokens or len(self.ids) >= self.limit or self.stopped(self.ids)

    def again(self) -> Job:
        """The same with nothing done yet."""
        self.ids, self.logprobs, self.held, self.over = [], [], None, False
        return self


@dataclass(eq=False, slots=True)
class _Drawn:
    """Tokens on their way from the device: (steps, rows), and whose row each was when they were drawn."""

    jobs: list[tuple[Job, int]]
    ids: Tensor
    logprobs: Tensor
    ready: torch.cuda.Event | None


class Generator:
    """Samples jobs with one decoder within a budget of memory for keys and values, and with less if there is less.

    ``prefill_tokens`` of several prompts are computed at once, at most. ``say`` is told when memory runs out.
    """

    def __init__(
        self,
        decoder: Forward,
        *,
        kv_bytes: int,
        max_rows: int,
        prefill_tokens: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.decoder = decoder
        self._cuda = decoder.device.type == "cuda"
        self._ahead = _AHEAD if self._cuda else 1
        self._kernels = self._cuda and isinstance(decoder, Decoder)
        self._prefill_tokens = prefill_tokens
        self.room = Room(decoder, kv_bytes, max_rows, self._ahead, say)
        self._in_use: tuple[Adapter, Any] | None = None
        self._spoiled = False  # a row has had a number that is not finite
        self.prefilled = 0
        self.gone: list[int] = []  # names of weights nobody will sample with again

    def release(self) -> None:
        """Let go of what only sampling needs and is quickly made again, for training needs the memory."""
        self._in_use = None

    def free(self) -> bool:
        """Let go of everything, which the next job has to lay out anew; whether there was anything. Not while it samples."""
        self._in_use = None
        return self.room.free()

    @torch.no_grad()
    def run(
        self,
        jobs: Sequence[Job],
        adapter: Adapter | None,
        weights: int,
        cancelled: threading.Event,
        more: Callable[[Callable[[Job], bool]], list[Job]] | None = None,
    ) -> None:
        """Sample every job, filling in its tokens; stops early, with replies unfinished, when cancelled.

        ``weights`` names the base model with this adapter: what was computed under the same name is used again. ``more`` is
        asked between tokens who else has come; it is given a function that says whether there is room for a job.
        """
        waiting, active = list(jobs), list[Job]()
        del jobs  # a long run must not keep those who came first
        while self.gone:
            self.room.shelf.drop(self.gone.pop())
        while (waiting or active) and not cancelled.is_set():
            waiting += [job.again() for job in active]
            active.clear()
            waiting.sort(key=lambda job: len(job.prompt_T) + job.limit, reverse=True)
            try:
                self._sample(waiting, active, adapter, weights, cancelled, more)
                return
            except FULL as error:
                if not ran_out(error):
                    raise
                why = str(error)
            # Only here has the exception let go of the tensors it held.
            self._in_use = None
            if not self.room.give_way():  # whoever has the one row there is does not fit, or who would have got it
                job = (active or waiting).pop(0)
                job.failed = why
                job.on_done()
                job.on_done = lambda: None  # it knows the job, and the job it
                self.room.restore()

    def _sample(
        self,
        waiting: list[Job],
        active: list[Job],
        adapter: Adapter | None,
        weights: int,
        cancelled: threading.Event,
        more: Callable[[Callable[[Job], bool]], list[Job]] | None,
    ) -> None:
        """Go through those who wait. Whoever is not done is in one of the lists, whatever happens."""
        if not waiting:
            return
        state = self.room.make(waiting, joining=more is not None)
        adapter = self._merged(adapter)
        state.use(adapter)
        drawn: _Drawn | None = None
        try:
            while (waiting or active) and not cancelled.is_set():
                if more is not None:
                    here = [*active, *waiting]
                    waiting += more(lambda job, here=here: self.room.holds(state, job, here))
                waiting[:] = [job for job in waiting if not job.cancelled()]
                if self._spoiled and not active:
                    self._clean(state)
                while waiting and len(active) < state.rows and not self._spoiled and not cancelled.is_set():
                    admitted = self._admit(waiting, active, state, weights)
                    firsts = self._prefill(admitted, state, adapter)
                    for (job, _), (id, logprob) in zip(admitted, firsts, strict=True):
                        job.take(id, logprob)
                    self._close(active, state)
                if active:
                    before, drawn = drawn, self._draw(active, state, adapter)
                    self._collect(before if self._cuda else drawn, active, state)
        finally:
            for job in active:  # cancelled or failed: what the pool holds of them is about to be overwritten
                assert job.held is not None
                self.room.shelf.forget(job.held)
                self._spoiled |= not math.isfinite(sum(job.logprobs))
            if self._spoiled:
                self._clean(state)

    def _clean(self, state: State) -> None:
        """Masked or not, a NaN left in a row would spread to whoever gets it next."""
        state.pool.kv.zero_()
        self._spoiled = False

    def _merged(self, adapter: Adapter | None) -> Any:
        """What to sample with; made once for the adapter in use, since a copy of the weights may be behind it."""
        if adapter is None or not isinstance(self.decoder, Decoder):
            return adapter
        used = self._in_use  # training may let go of it at any moment
        if used is None or used[0] is not adapter:
            used = self._in_use = None  # the old copy goes before the new one comes
            used = self._in_use = (adapter, self.decoder.merged(adapter))
        return used[1]

    def _admit(self, waiting: list[Job], active: list[Job], state: State, weights: int) -> list[tuple[Job, int]]:
        """Give rows to jobs that may be prefilled together; with each, how much of it is already there in its row.

        One that shares more with another of this batch than with what is held waits until that one is computed.
        """
        batch: list[tuple[Job, int]] = []
        computing: set[tuple[int, bytes]] = set()
        total = longest = at = 0
        while at < len(waiting) and len(active) < state.rows:
            job = waiting[at]
            held, common = self.room.shelf.longest(weights, job.prompt_T)
            common = min(common, len(job.prompt_T) - 1)  # the last token is always computed: its output is the first draw
            start = (common, job.prompt_T[common : common + 64].tobytes())
            if start in computing and len(job.prompt_T) >= common + 64:
                at += 1
                continue
            new = len(job.prompt_T) - common
            total, longest = total + new, max(longest, new)
            if batch and (total if self._kernels else longest * (len(batch) + 1)) > self._prefill_tokens:
                break
            computing.add(start)
            job.held = Held(weights, job.prompt_T, row=len(active))
            active.append(waiting.pop(at))
            batch.append((job, common))
            if held is not None:
                state.pool.fill(job.row, held, common)
        return batch

    def _prefill(self, batch: list[tuple[Job, int]], state: State, adapter: Adapter | None) -> list[tuple[int, float]]:
        """Compute the rest of each prompt and draw each job's first token; in smaller parts where memory runs out."""
        try:
            return self._prefill_at_once(batch, state, adapter)
        except FULL as error:
            if not ran_out(error) or (len(batch) == 1 and not self.room.shelf.used):
                raise
        if len(batch) == 1:
            self.room.unpark()
            parts = [batch]
        else:
            self._prefill_tokens = max(1, self._prefill_tokens // 2)
            parts = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
        self.room.empty()
        return [first for part in parts for first in self._prefill(part, state, adapter)]

    def _prefill_at_once(
        self, batch: list[tuple[Job, int]], state: State, adapter: Adapter | None
    ) -> list[tuple[int, float]]:
        """All of them in one forward pass."""
        decoder, device = self.decoder, self.decoder.device
        rows = torch.tensor([job.row for job, _ in batch], device=device)
        last = (self._packed if self._kernels else self._padded)(batch, state, rows, adapter)
        temperatures = torch.tensor([job.temperature for job, _ in batch], device=device)
        uniforms = torch.from_numpy(np.array([job.uniforms_T[0] for job, _ in batch], np.float32)).to(device)
        drawn, logprobs = state.draw(decoder.logits(last), temperatures, uniforms)
        state.seat([job for job, _ in batch], rows, drawn)
        for job, _ in batch:
            assert job.held is not None
            self.room.shelf.add(job.held)
        self.prefilled += sum(len(job.prompt_T) - common for job, common in batch)
        return list(zip(drawn.tolist(), logprobs.tolist(), strict=True))

    def _packed(self, batch: list[tuple[Job, int]], state: State, rows: Tensor, adapter: Adapter | None) -> Tensor:
        """The last hidden state of each prompt, all of them packed end to end."""
        device = self.decoder.device
        new = np.array([len(job.prompt_T) - common for job, common in batch])
        ids = np.concatenate([job.prompt_T[common:] for job, common in batch]).astype(np.int64)
        positions = torch.from_numpy(np.concatenate([np.arange(c, len(job.prompt_T)) for job, c in batch])).to(device)
        attend = state.pool.attend_prompts(rows, positions, new.tolist())
        hidden = self.decoder.hidden(torch.from_numpy(ids).to(device), positions, attend, adapter)
        return hidden[torch.from_numpy(new.cumsum() - 1).to(device)]

    def _padded(self, batch: list[tuple[Job, int]], state: State, rows: Tensor, adapter: Adapter | None) -> Tensor:
        """The same, all of them padded to the longest."""
        device = self.decoder.device
        new = [len(job.prompt_T) - common for job, common in batch]
        ids = np.zeros((len(batch), max(new)), np.int64)
        for line, (job, common) in zip(ids, batch, strict=True):
            line[: len(job.prompt_T) - common] = job.prompt_T[common:]
        # Padding on the right writes beyond a row's end, where nobody looks before it is overwritten.
        starts = torch.tensor([common for _, common in batch])
        positions = (starts[:, None] + torch.arange(max(new))).clamp(max=state.positions - 1).to(device)
        seen = max(common + max(new) for _, common in batch)
        attend = state.pool.attend(rows, positions, min(seen, state.positions))
        hidden = self.decoder.hidden(torch.from_numpy(ids).to(device), positions, attend, adapter)
        return hidden[torch.arange(len(batch)), torch.tensor(new) - 1]

    def _draw(self, active: list[Job], state: State, adapter: Adapter | None) -> _Drawn:
        """Start drawing the next tokens of all rows."""
        longest = max(len(job.prompt_T) + len(job.ids) for job in active)
        longest += 2 * self._ahead if self._cuda else 1  # on a GPU rows are further than the host knows
        ids, logprobs = state.steps(len(active), longest, self._ahead, adapter)
        ready = None
        if self._cuda:
            ids, logprobs = (_to_host(tensor) for tensor in (ids, logprobs))
            ready = torch.cuda.Event()
            ready.record()
        return _Drawn([(job, job.row) for job in active], ids, logprobs, ready)

    def _collect(self, drawn: _Drawn | None, active: list[Job], state: State) -> None:
        """Hand drawn tokens to their jobs, and give back the places of those that are over."""
        if drawn is None:
            return
        if drawn.ready is not None:
            drawn.ready.synchronize()
        for ids, logprobs in zip(drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True):
            for job, row in drawn.jobs:
                job.take(ids[row], logprobs[row])
        for job in active:
            job.over = job.over or job.cancelled()
        self._close(active, state)

    def _close(self, active: list[Job], state: State) -> None:
        """Park the rows of jobs that are over and fill the gaps with the last ones, so that rows in use stay together."""
        for job in [job for job in active if job.over]:
            assert job.held is not None
            row = job.row
            held_T = np.concatenate((job.prompt_T, np.array(job.ids[:-1], np.int32)))  # the last token is not computed yet
            if math.isfinite(sum(job.logprobs)):
                self.room.shelf.park(state.pool, job.held, held_T)
            else:
                self.room.shelf.forget(job.held)
                job.held.row = None
                state.pool.kv[:, :, row] = 0  # another row may be moved here at once
                self._spoiled = True
            active.remove(job)
            job.held = None
            job.on_done()
            job.on_done = lambda: None  # it knows the job, and the job it
            last = max(active, key=lambda other: other.row, default=None)
            if last is not None and last.row > row:
                assert last.held is not None
                state.move(last.row, row, len(last.prompt_T) + len(last.ids) + 2 * self._ahead)
                last.held.row = row


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)

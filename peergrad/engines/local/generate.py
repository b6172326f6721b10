"""Continuous batching: many prompts, one forward pass a token, a finished row's place taken by the next prompt.

A job is one reply to be sampled. Its prompt is prefilled from the longest prefix already held (see ``cache``). Its
randomness is its own, one uniform number a token, so its neighbours in the batch do not change what it says.
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
from peergrad.engines.local.cache import Held, Shelf
from peergrad.engines.local.decoder import Decoder
from peergrad.engines.local.forward import Adapter, Forward
from peergrad.engines.local.state import State, draw

# A GPU draws several tokens before the host looks, and goes on while it looks. What a row draws after its end is
# thrown away.
_AHEAD = 4


@dataclass(eq=False, slots=True)
class Job:
    """One reply to sample: ``limit`` tokens at most, ended by a token of ``ends`` or by ``stopped`` of the tokens so far."""

    prompt_T: Ids
    limit: int
    temperature: float
    uniforms_T: Floats
    ends: frozenset[int]
    stopped: Callable[[list[int]], bool]
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    tell: Callable[[], None] = lambda: None
    """Called when the reply is over, on the thread that samples."""
    unwanted: Callable[[], bool] = lambda: False
    """Whether nobody waits for the reply any more."""
    held: Held | None = None
    over: bool = False

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
            self.over = id in self.ends or len(self.ids) >= self.limit or self.stopped(self.ids)


@dataclass(eq=False, slots=True)
class _Drawn:
    """Tokens on their way from the device: (steps, rows), and whose row each was when they were drawn."""

    jobs: list[tuple[Job, int]]
    ids: Tensor
    logprobs: Tensor
    ready: torch.cuda.Event | None


class Generator:
    """Samples jobs with one decoder within a budget of memory for keys and values, half for rows, half for the shelf."""

    def __init__(self, decoder: Forward, *, kv_bytes: int, max_rows: int) -> None:
        self.decoder = decoder
        self.kv_bytes, self.max_rows = kv_bytes, max_rows
        self._cuda = decoder.device.type == "cuda"
        self._ahead = _AHEAD if self._cuda else 1
        self._kernels = self._cuda and isinstance(decoder, Decoder)
        self._prefill_tokens = 16384 if self._kernels else 4096 if self._cuda else 1
        self._state: State | None = None
        self._shelf = Shelf(kv_bytes // 2)
        self._in_use: tuple[Adapter, Any] | None = None
        self._spoiled = False  # a row has had a number that is not finite
        self.prefilled = 0
        self.gone: list[int] = []  # names of weights nobody will sample with again

    def release(self) -> None:
        """Let go of what only sampling needs, for training needs the memory."""
        self._in_use = None

    def fits(self, tokens: int) -> bool:
        """Whether a row of this many tokens can be held at all."""
        return self._row_bytes(tokens) <= self.kv_bytes // 2

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
        if not jobs:
            return
        waiting = sorted(jobs, key=lambda job: len(job.prompt_T) + job.limit, reverse=True)
        while self.gone:
            self._shelf.drop(self.gone.pop())
        del jobs  # a long run must not keep those who came first
        state = self._make_room(waiting, joining=more is not None)
        adapter = self._merged(adapter)
        state.use(adapter)
        active: list[Job] = []
        drawn: _Drawn | None = None
        try:
            while (waiting or active) and not cancelled.is_set():
                if more is not None:
                    here = [*active, *waiting]
                    waiting += more(lambda job, here=here: self._holds(state, job, here))
                waiting = [job for job in waiting if not job.unwanted()]
                if self._spoiled and not active:
                    self._clean(state)
                while waiting and len(active) < state.rows and not self._spoiled and not cancelled.is_set():
                    admitted = self._admit(waiting, active, state, weights)
                    active += [job for job, _ in admitted]
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
                self._shelf.forget(job.held)
                self._spoiled |= not math.isfinite(sum(job.logprobs))
            if self._spoiled:
                self._clean(state)

    def _clean(self, state: State) -> None:
        """Masked or not, a NaN left in a row would spread to whoever gets it next."""
        state.pool.kv.zero_()
        self._spoiled = False

    def _holds(self, state: State, job: Job, present: Sequence[Job]) -> bool:
        """Whether a job fits into the rows there are, and they are not far fewer than those who are here could have."""
        if self._positions([job]) > state.positions or job.limit + 2 * self._ahead > state.uniforms.shape[1]:
            return False
        better = min(self.max_rows, self._affordable(self._positions([*present, job])))
        return len(present) < state.rows or better < 2 * state.rows

    def _positions(self, jobs: Sequence[Job]) -> int:
        """How long a row must be for any of these."""
        return -(-(max(len(job.prompt_T) + job.limit for job in jobs) + 2 * self._ahead) // 64) * 64

    def _merged(self, adapter: Adapter | None) -> Any:
        """What to sample with; made once for the adapter in use, since a copy of the weights may be behind it."""
        if adapter is None or not isinstance(self.decoder, Decoder):
            return adapter
        used = self._in_use  # training may let go of it at any moment
        if used is None or used[0] is not adapter:
            used = self._in_use = None  # the old copy goes before the new one comes
            used = self._in_use = (adapter, self.decoder.merged(adapter))
        return used[1]

    def _make_room(self, jobs: Sequence[Job], *, joining: bool) -> State:
        """Rows long enough for the longest job, as many as are useful and the budget allows; with some to spare if others
        may join, but what there is is not laid out anew for them.
        """
        positions, uniforms = self._positions(jobs), max(job.limit for job in jobs) + 2 * self._ahead
        wanted = min(self.max_rows, len(jobs))
        state = self._state
        if state is not None:
            long_enough = state.positions >= positions and state.uniforms.shape[1] >= uniforms
            if long_enough and state.rows >= min(wanted, self._affordable(positions)):
                return state
            # Keep what the old one had where that costs no rows, so that sizes settle.
            wanted, uniforms = self.max_rows if joining else max(wanted, state.rows), max(uniforms, state.uniforms.shape[1])
            if self._affordable(max(positions, state.positions)) >= wanted:
                positions = max(positions, state.positions)
            state.free()
        elif joining:
            wanted = self.max_rows
        self._state = state = None
        self.decoder.grow_rotations(positions)
        self._state = State(self.decoder, min(wanted, self._affordable(positions)), positions, uniforms)
        return self._state

    def _affordable(self, positions: int) -> int:
        """How many rows of this length the budget has room for; one at least, which ``fits`` has been asked about."""
        return max(1, (self.kv_bytes // 2) // self._row_bytes(positions))

    def _row_bytes(self, tokens: int) -> int:
        shape = self.decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_size * self.decoder.dtype.itemsize * tokens

    def _admit(self, waiting: list[Job], active: list[Job], state: State, weights: int) -> list[tuple[Job, int]]:
        """Take jobs that may be prefilled together, with how much of each is already there in its row.

        One that shares more with another of this batch than with what is held waits until that one is computed.
        """
        batch: list[tuple[Job, int]] = []
        computing: set[tuple[int, bytes]] = set()
        longest = 0
        later: list[Job] = []
        while waiting and len(active) + len(batch) < state.rows:
            job = waiting.pop(0)
            held, common = self._shelf.longest(weights, job.prompt_T)
            common = min(common, len(job.prompt_T) - 1)  # the last token is always computed: its output is the first draw
            start = (common, job.prompt_T[common : common + 64].tobytes())
            if start in computing and len(job.prompt_T) >= common + 64:
                later.append(job)
                continue
            longest = max(longest, len(job.prompt_T) - common)
            if batch and longest * (len(batch) + 1) > self._prefill_tokens:
                waiting.insert(0, job)
                break
            computing.add(start)
            row = len(active) + len(batch)
            if held is not None:
                state.pool.fill(row, held, common)
            job.held = Held(weights, job.prompt_T, row=row)
            batch.append((job, common))
        waiting[:0] = later
        return batch

    def _prefill(self, batch: list[tuple[Job, int]], state: State, adapter: Adapter | None) -> list[tuple[int, float]]:
        """Compute the rest of each prompt and draw each job's first token."""
        decoder, device = self.decoder, self.decoder.device
        new = [len(job.prompt_T) - common for job, common in batch]
        self.prefilled += sum(new)
        ids = np.zeros((len(batch), max(new)), np.int64)
        for line, (job, common) in zip(ids, batch, strict=True):
            line[: len(job.prompt_T) - common] = job.prompt_T[common:]
        # Padding on the right writes beyond a row's end, where nobody looks before it is overwritten.
        starts = torch.tensor([common for _, common in batch])
        positions = (starts[:, None] + torch.arange(max(new))).clamp(max=state.positions - 1).to(device)
        rows = torch.tensor([job.row for job, _ in batch], device=device)
        if self._kernels:
            attend = state.pool.attend_prompt(rows, positions)
        else:
            seen = max(common + max(new) for _, common in batch)
            attend = state.pool.attend(rows, positions, min(seen, state.positions))
        hidden = decoder.hidden(torch.from_numpy(ids).to(device), positions, attend, adapter)
        last = hidden[torch.arange(len(batch)), torch.tensor(new) - 1]
        temperatures = torch.tensor([job.temperature for job, _ in batch], device=device)
        uniforms = torch.from_numpy(np.array([job.uniforms_T[0] for job, _ in batch], np.float32)).to(device)
        drawn, logprobs = draw(decoder.logits(last), temperatures, uniforms)
        state.seat([job for job, _ in batch], rows, drawn)
        for job, _ in batch:
            assert job.held is not None
            self._shelf.add(job.held)
        return list(zip(drawn.tolist(), logprobs.tolist(), strict=True))

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
            job.over = job.over or job.unwanted()
        self._close(active, state)

    def _close(self, active: list[Job], state: State) -> None:
        """Park the rows of jobs that are over and fill the gaps with the last ones, so that rows in use stay together."""
        for job in [job for job in active if job.over]:
            assert job.held is not None
            row = job.row
            held_T = np.concatenate((job.prompt_T, np.array(job.ids[:-1], np.int32)))  # the last token is not computed yet
            if math.isfinite(sum(job.logprobs)):
                self._shelf.park(state.pool, job.held, held_T)
            else:
                self._shelf.forget(job.held)
                job.held.row = None
                state.pool.kv[:, :, row] = 0  # another row may be moved here at once
                self._spoiled = True
            active.remove(job)
            job.held = None
            job.tell()
            job.tell = lambda: None  # it knows the job, and the job it
            last = max(active, key=lambda other: other.row, default=None)
            if last is not None and last.row > row:
                assert last.held is not None
                state.move(last.row, row, len(last.prompt_T) + len(last.ids) + 2 * self._ahead)
                last.held.row = row


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)

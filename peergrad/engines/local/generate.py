"""Continuous batching: many prompts, one forward pass a token, a finished row's place taken by the next prompt.

A job is one reply to be sampled. Its prompt is prefilled from the longest prefix already held (see ``cache``). Its
randomness is its own, one uniform number a token, so its neighbours in the batch do not change what it says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.cache import Held, Pool, Shelf
from peergrad.engines.local.decoder import Adapter, Decoder


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
    held: Held | None = None

    @property
    def row(self) -> int:
        assert self.held is not None
        assert self.held.row is not None
        return self.held.row

    def take(self, id: int, logprob: float) -> bool:
        """Add a token; whether the reply is over."""
        self.ids.append(id)
        self.logprobs.append(logprob)
        return id in self.ends or len(self.ids) >= self.limit or self.stopped(self.ids)


class Generator:
    """Samples jobs with one decoder within a budget of memory for keys and values, half for rows, half for the shelf."""

    def __init__(self, decoder: Decoder, *, kv_bytes: int, max_rows: int) -> None:
        self.decoder = decoder
        self.kv_bytes, self.max_rows = kv_bytes, max_rows
        self._cuda = decoder.device.type == "cuda"
        # How many tokens a GPU draws before the host looks: what a row draws after its end is thrown away.
        self._ahead = 8 if self._cuda else 1
        self._prefill_tokens = 16384 if self._cuda else 1
        self._state: _State | None = None
        self._shelf = Shelf(kv_bytes // 2)
        self.prefilled = 0

    def fits(self, tokens: int) -> bool:
        """Whether a row of this many tokens can be held at all."""
        return self._row_bytes(tokens) <= self.kv_bytes // 2

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job], adapter: Adapter | None, weights: int, cancelled: threading.Event) -> None:
        """Sample every job, filling in its tokens; stops early, with replies unfinished, when cancelled.

        ``weights`` names the base model with this adapter: what was computed under the same name is used again.
        """
        if not jobs:
            return
        waiting = sorted(jobs, key=lambda job: len(job.prompt_T) + job.limit, reverse=True)
        state = self._make_room(waiting)
        active: list[Job] = []
        try:
            while (waiting or active) and not cancelled.is_set():
                while waiting and len(active) < state.rows and not cancelled.is_set():
                    admitted = self._admit(waiting, active, state, weights)
                    firsts = self._prefill(admitted, state, adapter)
                    active += [job for job, _ in admitted]
                    for (job, _), (id, logprob) in zip(admitted, firsts, strict=True):
                        if job.take(id, logprob):
                            self._finish(job, active, state)
                if active:
                    self._decode(active, state, adapter)
        finally:
            for job in active:  # cancelled: what the pool holds of them is about to be overwritten
                assert job.held is not None
                self._shelf.forget(job.held)

    def _make_room(self, jobs: Sequence[Job]) -> _State:
        """Rows long enough for the longest job, as many as are useful and the budget allows."""
        positions = -(-(max(len(job.prompt_T) + job.limit for job in jobs) + self._ahead) // 64) * 64
        rows = min(self.max_rows, len(jobs), max(1, (self.kv_bytes // 2) // self._row_bytes(positions)))
        uniforms = max(job.limit for job in jobs) + self._ahead
        state = self._state
        if state is None or state.rows < rows or state.positions < positions or state.uniforms.shape[1] < uniforms:
            self._state = None  # free the old one first
            self._state = state = _State(self.decoder, rows, positions, uniforms)
        self.decoder.grow_rotations(state.positions)
        return state

    def _row_bytes(self, tokens: int) -> int:
        shape = self.decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_size * self.decoder.dtype.itemsize * tokens

    def _admit(self, waiting: list[Job], active: list[Job], state: _State, weights: int) -> list[tuple[Job, int]]:
        """Take jobs that may be prefilled together, with how much of each is already there in its row.

        One that shares more with another of this batch than with what is held waits until that one is computed.
        """
        batch: list[tuple[Job, int]] = []
        computing: dict[bytes, int] = {}
        longest = 0
        later: list[Job] = []
        while waiting and len(active) + len(batch) < state.rows:
            job = waiting.pop(0)
            held, common = self._shelf.longest(weights, job.prompt_T)
            common = min(common, len(job.prompt_T) - 1)  # the last token is always computed: its output is the first draw
            start = job.prompt_T[common : common + 64].tobytes()
            if start in computing and computing[start] == common and len(start) == 256:
                later.append(job)
                continue
            longest = max(longest, len(job.prompt_T) - common)
            if batch and longest * (len(batch) + 1) > self._prefill_tokens:
                waiting.insert(0, job)
                break
            computing[start] = common
            row = len(active) + len(batch)
            if held is not None:
                state.pool.fill(row, held, common)
            job.held = Held(weights, job.prompt_T, row=row)
            batch.append((job, common))
        waiting[:0] = later
        return batch

    def _prefill(self, batch: list[tuple[Job, int]], state: _State, adapter: Adapter | None) -> list[tuple[int, float]]:
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
        seen = max(len(job.prompt_T) for job, _ in batch)
        attend = state.pool.attend(rows, positions, seen)
        hidden = decoder.hidden(torch.from_numpy(ids).to(device), positions, attend, adapter)
        last = hidden[torch.arange(len(batch)), torch.tensor(new) - 1]
        temperatures = torch.tensor([job.temperature for job, _ in batch], device=device)
        firsts = torch.tensor(np.stack([job.uniforms_T[:1] for job, _ in batch])[:, 0], device=device)
        drawn, logprobs = draw(decoder.logits(last), temperatures, firsts)
        for (job, _), id in zip(batch, drawn, strict=True):
            assert job.held is not None
            state.seat(job, id)
            self._shelf.add(job.held)
        return list(zip(drawn.tolist(), logprobs.tolist(), strict=True))

    def _decode(self, active: list[Job], state: _State, adapter: Adapter | None) -> None:
        """Draw the next tokens of all rows, and give back the places of those that are over."""
        longest = max(len(job.prompt_T) + len(job.ids) for job in active) + self._ahead
        ids, logprobs = state.steps(self.decoder, len(active), longest, self._ahead, adapter)
        over: list[Job] = []
        for job in active:
            for id, logprob in zip(ids[job.row], logprobs[job.row], strict=True):
                if job.take(id, logprob):
                    over.append(job)
                    break
        for job in over:
            self._finish(job, active, state)

    def _finish(self, job: Job, active: list[Job], state: _State) -> None:
        """Park the row and close the gap with the last one, so that rows in use stay together."""
        assert job.held is not None
        row = job.row
        held_ids = np.concatenate((job.prompt_T, np.array(job.ids[:-1], np.int32)))  # the last token is not computed yet
        self._shelf.park(state.pool, job.held, held_ids)
        active.remove(job)
        last = max(active, key=lambda other: other.row, default=None)
        if last is not None and last.row > row:
            assert last.held is not None
            state.move(last.row, row, len(last.prompt_T) + len(last.ids))
            last.held.row = row


class _State:
    """What stays on the device between two looks of the host: the pool, and each row's last token and random numbers."""

    def __init__(self, decoder: Decoder, rows: int, positions: int, uniforms: int) -> None:
        device = decoder.device
        self.rows, self.positions = rows, positions
        self.pool = Pool(decoder.shape, rows, positions, device, decoder.dtype)
        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.at = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self.temperatures = torch.ones(rows, device=device)
        self.uniforms = torch.zeros(rows, uniforms, device=device)

    def seat(self, job: Job, id: Tensor) -> None:
        """Prepare a row whose prompt is computed and whose first token is drawn."""
        row = job.row
        self.ids[row], self.at[row], self.drawn[row] = id, len(job.prompt_T), 1
        self.temperatures[row] = job.temperature
        self.uniforms[row, : len(job.uniforms_T)] = torch.from_numpy(job.uniforms_T)

    def move(self, source: int, target: int, length: int) -> None:
        self.pool.move(source, target, length)
        for tensor in (self.ids, self.at, self.drawn, self.temperatures, self.uniforms):
            tensor[target] = tensor[source]

    def steps(
        self, decoder: Decoder, rows: int, longest: int, steps: int, adapter: Adapter | None
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Draw ``steps`` tokens for each of the first rows."""
        drawn = [self._step(decoder, rows, min(longest, self.positions), adapter) for _ in range(steps)]
        ids, logprobs = (torch.stack(column, 1).tolist() for column in zip(*drawn, strict=True))
        return ids, logprobs

    def _step(self, decoder: Decoder, rows: int, seen: int, adapter: Adapter | None) -> tuple[Tensor, Tensor]:
        positions = self.at[:rows, None]
        attend = self.pool.attend(slice(rows), positions, seen)
        hidden = decoder.hidden(self.ids[:rows, None], positions, attend, adapter)
        uniform = self.uniforms[:rows].gather(1, self.drawn[:rows, None])[:, 0]
        ids, logprobs = draw(decoder.logits(hidden[:, 0]), self.temperatures[:rows], uniform)
        self.ids[:rows] = ids
        self.at[:rows] += 1
        self.drawn[:rows] += 1
        return ids, logprobs


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """A token per row by its uniform number, and its log-probability at the row's temperature; temperature 0 takes the best.

    By the inverse of the cumulative distribution: one random number a token, whatever the size of the vocabulary.
    """
    logprobs = torch.log_softmax(logits / temperatures.clamp(min=1e-6)[:, None], -1)
    mass = logprobs.exp().cumsum(-1)
    ids = torch.searchsorted(mass, uniforms[:, None] * mass[:, -1:], right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    ids = torch.where(temperatures > 0, ids, logits.argmax(-1))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]

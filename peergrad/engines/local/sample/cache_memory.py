"""The memory for keys and values while sampling: rows, and the prefix cache. Both shrink when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from peergrad.engines.local.model.forward import Forward
from peergrad.engines.local.model.memory import catch_out_of_memory
from peergrad.engines.local.sample.kv_cache import PrefixCache
from peergrad.engines.local.sample.state import BatchState

if TYPE_CHECKING:
    from peergrad.engines.local.sample.scheduler import Job


# On a GPU the length of rows is a multiple of this.
_ROW_MULTIPLE = 512


class SampleMemory:
    """A budget of ``kv_bytes``, half for rows, half for the prefix cache. ``lookahead``: tokens decoded at once."""

    def __init__(
        self, decoder: Forward, kv_bytes: int, max_rows: int, lookahead: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._decoder, self._lookahead, self._say = decoder, lookahead, say
        self._max_rows, self._half = max_rows, kv_bytes // 2
        self._row_budget = self._half  # less, where memory has run out
        self._warned = False
        self.state: BatchState | None = None
        self.prefixes = PrefixCache(self._half)

    def fits(self, tokens: int) -> bool:
        """Whether a row of this many tokens fits into the budget at all."""
        return self._row_bytes(tokens) <= self._half

    def allocate(self, jobs: Sequence[Job], *, joinable: bool) -> BatchState:
        """Rows long enough for the longest job, as many as are useful and the budget allows.

        If others may join, there are spare rows; but rows that suffice for these jobs are not replaced.
        """
        positions, uniforms = self._positions(jobs), max(job.limit for job in jobs) + 2 * self._lookahead
        rows = min(self._max_rows, len(jobs))
        state = self.state
        if state is not None:
            long_enough = state.positions >= positions and state.uniforms.shape[1] >= uniforms
            if long_enough and state.rows >= min(rows, self._affordable(positions)):
                return state
            # Keep what the old one had where that costs no rows, so that sizes settle.
            rows, uniforms = self._max_rows if joinable else max(rows, state.rows), max(uniforms, state.uniforms.shape[1])
            if self._affordable(max(positions, state.positions)) >= rows:
                positions = max(positions, state.positions)
            state.free()
        elif joinable:
            rows = self._max_rows
        if self._decoder.device.type == "cuda":
            # With some to spare where that costs no rows: graphs are captured anew for every layout, which takes seconds.
            longer = -(-positions // _ROW_MULTIPLE) * _ROW_MULTIPLE
            positions = longer if self._affordable(longer) >= rows else positions
        self.state = state = None
        self._decoder.grow_rotations(positions)
        return self._allocate(rows, positions, uniforms)

    def _allocate(self, max_rows: int, positions: int, uniforms: int) -> BatchState:
        """``max_rows`` rows, or as many as there is memory for."""
        while True:
            rows = min(max_rows, self._affordable(positions))
            with catch_out_of_memory(when=rows > 1 or self.prefixes.used > 0):
                self.state = BatchState(self._decoder, rows, positions, uniforms)
                return self.state
            if self.prefixes.used:
                self.shrink_prefixes()
            else:
                self._halve_rows(rows, positions)
                self.release_unused()

    def has_room(self, state: BatchState, job: Job, present: Sequence[Job]) -> bool:
        """Whether a job may join: it fits into the rows, and a new layout would not give all twice as many rows."""
        if self._positions([job]) > state.positions or job.limit + 2 * self._lookahead > state.uniforms.shape[1]:
            return False
        better = min(self._max_rows, self._affordable(self._positions([*present, job])))
        return len(present) < state.rows or better < 2 * state.rows

    def free(self) -> bool:
        """Free everything until it is needed again. Returns whether there was anything."""
        had = self.state is not None or self.prefixes.used > 0
        if self.state is not None:
            self.state.free()
        self.state = None
        self.prefixes.evict()
        self.release_unused()
        return had

    def shrink(self) -> bool:
        """Free everything and use less from now on: a smaller prefix cache or, if it was empty, half as many rows.

        Returns False if there was one row and nothing else.
        """
        rows, positions = (self.state.rows, self.state.positions) if self.state is not None else (1, 1)
        had_prefixes = self.prefixes.used > 0
        if had_prefixes:
            self.shrink_prefixes()
        elif rows > 1:
            self._halve_rows(rows, positions)
        self.free()
        return had_prefixes or rows > 1

    def shrink_prefixes(self) -> None:
        """Empty the prefix cache and halve its budget."""
        self.prefixes.evict()
        self.prefixes.budget //= 2
        self.release_unused()

    def restore(self) -> None:
        """Use the whole budget again: one job alone was too large, so there was enough for the others."""
        self._row_budget = self.prefixes.budget = self._half

    def release_unused(self) -> None:
        """Return the memory that PyTorch caches to the device."""
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def _halve_rows(self, rows: int, positions: int) -> None:
        if not self._warned:
            self._warned = True
            self._say("memory ran out while sampling: fewer replies at once from now on (kv_gb, max_rows)")
        self._row_budget = self._row_bytes(positions) * (rows // 2)

    def _positions(self, jobs: Sequence[Job]) -> int:
        """The length of rows that can hold any of these jobs."""
        return -(-(max(len(job.prompt_T) + job.limit for job in jobs) + 2 * self._lookahead) // 64) * 64

    def _affordable(self, positions: int) -> int:
        """How many rows of this length fit into the budget; at least one, which ``fits`` has checked."""
        return max(1, self._row_budget // self._row_bytes(positions))

    def _row_bytes(self, tokens: int) -> int:
        shape = self._decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_size * self._decoder.dtype.itemsize * tokens

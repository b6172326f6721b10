"""The memory that sampling works in: rows, and parked prefixes beside them. When it runs out, there is less of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from peergrad.engines.local.model.forward import Forward
from peergrad.engines.local.model.memory import FULL, ran_out
from peergrad.engines.local.sample.cache import Shelf
from peergrad.engines.local.sample.state import State

if TYPE_CHECKING:
    from peergrad.engines.local.sample.generate import Job


# On a GPU rows are as long as the next multiple of this.
_SPARE = 512


class Room:
    """A budget for keys and values, half for rows, half for the shelf. ``ahead``: so many tokens are drawn at once."""

    def __init__(
        self, decoder: Forward, kv_bytes: int, max_rows: int, ahead: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._decoder, self._ahead, self._say = decoder, ahead, say
        self._max_rows, self._half = max_rows, kv_bytes // 2
        self._budget = self._half  # of the rows; less, where memory has run out
        self._told = False
        self.state: State | None = None
        self.shelf = Shelf(self._half)

    def fits(self, tokens: int) -> bool:
        """Whether a row of this many tokens can be held at all."""
        return self._row_bytes(tokens) <= self._half

    def make(self, jobs: Sequence[Job], *, joining: bool) -> State:
        """Rows long enough for the longest job, as many as are useful and the budget allows; with some to spare if others
        may join, but what there is is not laid out anew for them.
        """
        positions, uniforms = self._positions(jobs), max(job.limit for job in jobs) + 2 * self._ahead
        wanted = min(self._max_rows, len(jobs))
        state = self.state
        if state is not None:
            long_enough = state.positions >= positions and state.uniforms.shape[1] >= uniforms
            if long_enough and state.rows >= min(wanted, self._affordable(positions)):
                return state
            # Keep what the old one had where that costs no rows, so that sizes settle.
            wanted, uniforms = self._max_rows if joining else max(wanted, state.rows), max(uniforms, state.uniforms.shape[1])
            if self._affordable(max(positions, state.positions)) >= wanted:
                positions = max(positions, state.positions)
            state.free()
        elif joining:
            wanted = self._max_rows
        if self._decoder.device.type == "cuda":
            # With some to spare where that costs no rows: graphs are captured anew for every layout, which takes seconds.
            longer = -(-positions // _SPARE) * _SPARE
            positions = longer if self._affordable(longer) >= wanted else positions
        self.state = state = None
        self._decoder.grow_rotations(positions)
        return self._laid_out(wanted, positions, uniforms)

    def _laid_out(self, wanted: int, positions: int, uniforms: int) -> State:
        """So many rows, or as many as there is memory for."""
        while True:
            rows = min(wanted, self._affordable(positions))
            try:
                self.state = State(self._decoder, rows, positions, uniforms)
                return self.state
            except FULL as error:
                if not ran_out(error) or (rows == 1 and not self.shelf.used):
                    raise
            if self.shelf.used:
                self.unpark()
            else:
                self._lessen(rows, positions)
                self.empty()

    def holds(self, state: State, job: Job, present: Sequence[Job]) -> bool:
        """Whether a job fits into the rows there are, and they are not far fewer than those who are here could have."""
        if self._positions([job]) > state.positions or job.limit + 2 * self._ahead > state.uniforms.shape[1]:
            return False
        better = min(self._max_rows, self._affordable(self._positions([*present, job])))
        return len(present) < state.rows or better < 2 * state.rows

    def free(self) -> bool:
        """Let go of all of it, until it is needed again; whether there was anything."""
        had = self.state is not None or self.shelf.used > 0
        if self.state is not None:
            self.state.free()
        self.state = None
        self.shelf.clear()
        self.empty()
        return had

    def give_way(self) -> bool:
        """Let go of all of it, and make do with less from now on: with fewer prefixes, or if there are none, with half as
        many rows. False if there was one row and nothing else.
        """
        rows, positions = (self.state.rows, self.state.positions) if self.state is not None else (1, 1)
        parked = self.shelf.used > 0
        if parked:
            self.unpark()
        elif rows > 1:
            self._lessen(rows, positions)
        self.free()
        return parked or rows > 1

    def unpark(self) -> None:
        """Let go of the prefixes, and keep half as much of them from now on."""
        self.shelf.clear()
        self.shelf.budget //= 2
        self.empty()

    def restore(self) -> None:
        """Have the whole budget again: one job alone was too much, so there was not too little for the others."""
        self._budget = self.shelf.budget = self._half

    def empty(self) -> None:
        """Give back what PyTorch keeps of the memory that was let go."""
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def _lessen(self, rows: int, positions: int) -> None:
        if not self._told:
            self._told = True
            self._say("memory ran out while sampling: fewer replies at once from now on (kv_gb, max_rows)")
        self._budget = self._row_bytes(positions) * (rows // 2)

    def _positions(self, jobs: Sequence[Job]) -> int:
        """How long a row must be for any of these."""
        return -(-(max(len(job.prompt_T) + job.limit for job in jobs) + 2 * self._ahead) // 64) * 64

    def _affordable(self, positions: int) -> int:
        """How many rows of this length the budget has room for; one at least, which ``fits`` has been asked about."""
        return max(1, self._budget // self._row_bytes(positions))

    def _row_bytes(self, tokens: int) -> int:
        shape = self._decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_size * self._decoder.dtype.itemsize * tokens

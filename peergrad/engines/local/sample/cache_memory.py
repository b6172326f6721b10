"""The memory for keys and values while sampling: rows, and the prefix cache. Both shrink when memory runs out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peergrad.debate.types import Ids
from peergrad.engines.local.memory import catch_out_of_memory
from peergrad.engines.local.model.decoder import Forward
from peergrad.engines.local.sample.batch_state import BatchState, CacheEntry, KVCache

if TYPE_CHECKING:
    from peergrad.engines.local.sample.scheduler import Job


# On a GPU the length of rows is a multiple of this.
_ROW_MULTIPLE = 512

# Tokens per block of the prefix cache.
_BLOCK = 16


class SampleMemory:
    """A budget of ``kv_bytes``, half for rows, half for the prefix cache. ``lookahead``: tokens decoded at once."""

    def __init__(
        self, decoder: Forward, kv_bytes: int, max_rows: int, lookahead: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._decoder, self._lookahead, self._say = decoder, lookahead, say
        self._max_rows, self._half = max_rows, kv_bytes // 2
        self._row_budget = self._half  # less, where memory has run out
        self._layout = (1, 1)  # rows and positions of the newest state
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
        if state := self.state:
            long_enough = state.positions >= positions and state.uniforms.shape[1] >= uniforms
            if long_enough and state.rows >= min(rows, self._affordable(positions)):
                return state
            # Keep what the old one had where that costs no rows, so that sizes settle.
            rows, uniforms = max(rows, state.rows), max(uniforms, state.uniforms.shape[1])
        rows = self._max_rows if joinable else rows
        if state:
            if self._affordable(max(positions, state.positions)) >= rows:
                positions = max(positions, state.positions)
            state.free()
        if self._decoder.device.type == "cuda":
            # With some to spare where that costs no rows: graphs are captured anew for every layout, which takes seconds.
            longer = -(-positions // _ROW_MULTIPLE) * _ROW_MULTIPLE
            positions = longer if self._affordable(longer) >= rows else positions
        self.state = state = None
        self._decoder.grow_rotations(positions)
        self._layout = min(rows, self._affordable(positions)), positions
        self.state = BatchState(self._decoder, *self._layout, uniforms)
        return self.state

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
        rows, positions = self._layout
        can_shrink = self.prefixes.used > 0 or rows > 1
        if self.prefixes.used:
            self.prefixes.budget //= 2
        elif can_shrink:
            self._row_budget = self._row_bytes(positions) * (rows // 2)
            if not self._warned:
                self._warned = True
                self._say("memory ran out while sampling: fewer replies at once from now on (kv_gb, max_rows)")
        self.free()
        return can_shrink

    def restore(self) -> None:
        """Use the whole budget again: one job alone was too large, so there was enough for the others."""
        self._row_budget = self.prefixes.budget = self._half

    def release_unused(self) -> None:
        """Return the memory that PyTorch caches to the device."""
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def _positions(self, jobs: Sequence[Job]) -> int:
        """The length of rows that can hold any of these jobs."""
        return -(-(max(len(job.prompt_T) + job.limit for job in jobs) + 2 * self._lookahead) // 64) * 64

    def _affordable(self, positions: int) -> int:
        """How many rows of this length fit into the budget; at least one, which ``fits`` has checked."""
        return max(1, self._row_budget // self._row_bytes(positions))

    def _row_bytes(self, tokens: int) -> int:
        shape = self._decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_size * self._decoder.dtype.itemsize * tokens


class PrefixCache:
    """Finds entries by their prefix, and stores those of finished rows within ``budget`` bytes; the oldest are evicted.

    Every block of tokens from the start is known by its hash, and a match is compared token by token, so a collision can
    cost time but not correctness. Different weights never share.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._by_block: dict[int, CacheEntry] = {}
        self._stored: OrderedDict[int, CacheEntry] = OrderedDict()  # least recently used first

    def longest_prefix(self, weights: int, ids_T: Ids) -> tuple[CacheEntry | None, int]:
        """The entry that shares the longest prefix with these tokens, and the length of that prefix."""
        for block in reversed(_blocks(weights, ids_T)):
            entry = self._by_block.get(block)
            if entry and entry.weights == weights:
                common = min(len(entry.ids_T), len(ids_T))
                differ = np.flatnonzero(entry.ids_T[:common] != ids_T[:common])
                if id(entry) in self._stored:
                    self._stored.move_to_end(id(entry))
                return entry, int(differ[0]) if len(differ) else common
        return None, 0

    def add(self, entry: CacheEntry) -> None:
        """Let an entry be found by its prefix."""
        entry.blocks = _blocks(entry.weights, entry.ids_T)
        for block in entry.blocks:
            self._by_block[block] = entry

    def remove(self, entry: CacheEntry) -> None:
        for block in entry.blocks:
            if self._by_block.get(block) is entry:
                del self._by_block[block]

    def evict_weights(self, weights: int) -> None:
        """Evict everything stored for these weights."""
        for key in [key for key, entry in self._stored.items() if entry.weights == weights]:
            self._evict(self._stored.pop(key))

    def evict(self, keep: int = 0) -> None:
        """Evict entries, the least recently used first, until they have no more than ``keep`` bytes."""
        while self.used > keep:
            self._evict(self._stored.popitem(last=False)[1])

    def _evict(self, entry: CacheEntry) -> None:
        self.remove(entry)
        assert entry.kv is not None
        self.used -= entry.kv.nbytes
        entry.kv = None  # frees the memory, whoever else refers to the entry

    def store(self, cache: KVCache, entry: CacheEntry, ids_T: Ids) -> None:
        """Store the keys and values of a finished row, if the budget and the memory allow it."""
        self.remove(entry)
        view = cache.kv[:, :, entry.row, :, : len(ids_T)]
        entry.row = None
        if view.nbytes > self.budget or len(ids_T) < _BLOCK:
            return
        self.evict(self.budget - view.nbytes)
        while entry.kv is None:
            with catch_out_of_memory():
                entry.kv = _copy(view)
                break
            if not self._stored:
                return
            self.evict(self.used // 2)
        entry.ids_T = ids_T
        self.used += view.nbytes
        self._stored[id(entry)] = entry
        self.add(entry)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone()


def _blocks(weights: int, ids_T: Ids) -> list[int]:
    """A hash for each block of tokens and all before it; each is made from the one before, so the text is read once."""
    raw = np.ascontiguousarray(ids_T, np.int32).tobytes()
    size = _BLOCK * 4
    blocks: list[int] = []
    block = weights
    for start in range(0, len(raw) - size + 1, size):
        block = hash((block, raw[start : start + size]))
        blocks.append(block)
    return blocks

"""The device state of sampling: the rows of a batch with their keys and values, and the prefix cache, within one budget.

One tensor holds the keys and values of all rows, so a row is stored, loaded or moved by a single copy. Shapes: L layers,
m key/value heads, S positions, n query heads, d head size, t new tokens; the axis of 2 is key and value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peergrad.debate.types import Ids
from peergrad.engines.local.memory import Sizes, catch_out_of_memory
from peergrad.engines.local.model import ops
from peergrad.engines.local.model.decoder import Adapter, Attend, Decoder, Forward
from peergrad.engines.local.train.packing import common_prefix

if TYPE_CHECKING:
    from peergrad.engines.local.sample.scheduler import Job

_ROW_MULTIPLE = 512  # on a GPU the length of rows is a multiple of this
_BLOCK = 16  # tokens per block of the prefix cache


@dataclass(eq=False, slots=True)
class CacheEntry:
    """Tokens whose keys and values exist: in a row of the ``KVCache``, or stored in ``kv`` (L, 2, m, tokens, d).

    ``weights`` is the id of the weights they were computed with.
    """

    weights: int
    ids_T: Ids
    row: int | None = None
    kv: Tensor | None = None
    blocks: list[int] = field(default_factory=list[int])


class KVCache:
    """Keys and values of rows, (L, 2, rows, m, S, d)."""

    def __init__(self, decoder: Forward, rows: int, positions: int) -> None:
        shape = decoder.shape
        size = (shape.layers, 2, rows, shape.kv_heads, positions, shape.head_size)
        self.kv = torch.zeros(size, device=decoder.device, dtype=decoder.dtype)
        self.rows, self._windows = rows, shape.windows
        self._kernels = decoder.device.type == "cuda" and isinstance(decoder, Decoder)

    def attend(self, rows: slice | Tensor, positions: Tensor, seen: int, lengths: Sequence[int] | None = None) -> Attend:
        """Attention of new tokens to everything before them in their rows.

        The tokens are packed end to end, ``lengths`` of each row or one of each. ``positions`` (t) are below ``seen``.
        """
        device = positions.device
        row_of = torch.arange(self.rows, device=device)[rows] if isinstance(rows, slice) else rows
        if lengths is not None:
            row_of = row_of.repeat_interleave(torch.tensor(lengths, device=device), output_size=sum(lengths))
        if self._kernels and lengths is not None:
            from peergrad.engines.local.sample.cache_kernels import prompt_attention

            read = prompt_attention(row_of, positions, lengths)
        else:
            read = ops.cached_attention(rows, positions, seen, lengths or [1] * len(positions), self._windows)
        write = (row_of, slice(None), positions)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[layer]
            keys[write], values[write] = k, v
            return read(layer, q, keys, values)

        return attend

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row into another."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def load(self, row: int, entry: CacheEntry, length: int) -> None:
        """Copy the first ``length`` positions of an entry into a row."""
        if entry.row is not None:
            self.move(entry.row, row, length)
        elif entry.kv is not None:
            self.kv[:, :, row, :, :length] = entry.kv[:, :, :, :length]


class BatchState:
    """Everything on the device that decoding a token for each row reads and changes."""

    def __init__(self, decoder: Forward, rows: int, positions: int, uniforms: int) -> None:
        device = decoder.device
        self._decoder = decoder
        self.rows, self.positions = rows, positions
        self.cache = KVCache(decoder, rows, positions)
        self.ids, self.at, self.drawn = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
        self.logprobs = torch.zeros(rows, device=device)
        self.temperatures = torch.ones(rows, device=device)
        self.uniforms = torch.zeros(rows, uniforms, device=device)
        self.draw = ops.for_device(device).draw
        self._graphs = None
        if device.type == "cuda" and isinstance(decoder, Decoder):
            from peergrad.engines.local.sample.cuda_graphs import DecodeGraphs

            self._graphs = DecodeGraphs(decoder, self)

    @property
    def step_tensors(self) -> tuple[Tensor, ...]:
        """What a step changes besides the keys and values."""
        return self.ids, self.at, self.drawn, self.logprobs

    def free(self) -> None:
        """Free the device memory now: graphs and state refer to each other, and Python would collect them later."""
        self._graphs = None
        del self.cache

    def use_adapter(self, adapter: Adapter | None) -> None:
        """Decode with this adapter from now on."""
        if self._graphs is not None:
            self._graphs.use_adapter(adapter)

    def fill_rows(self, jobs: list[Job], rows: Tensor, ids: Tensor) -> None:
        """Set the state of rows whose prompts are computed and whose first tokens are drawn."""
        device = self.ids.device
        uniforms = np.zeros((len(jobs), self.uniforms.shape[1]), np.float32)
        for row_uniforms, job in zip(uniforms, jobs, strict=True):
            row_uniforms[: len(job.uniforms_T)] = job.uniforms_T
        self.ids[rows] = ids
        self.at[rows] = torch.tensor([len(job.prompt_T) for job in jobs], device=device)
        self.drawn[rows] = 1
        self.temperatures[rows] = torch.tensor([job.temperature for job in jobs], device=device)
        self.uniforms[rows] = torch.from_numpy(uniforms).to(device)

    def move(self, source: int, target: int, length: int) -> None:
        self.cache.move(source, target, min(length, self.positions))
        for tensor in (*self.step_tensors, self.temperatures, self.uniforms):
            tensor[target] = tensor[source]

    def steps(self, rows: int, longest: int, steps: int, adapter: Adapter | None) -> tuple[Tensor, Tensor]:
        """Draw ``steps`` tokens for each of the first rows: ids and log-probabilities, (steps, rows)."""
        ids, logprobs = [], []
        for _ in range(steps):
            if self._graphs is not None:
                self._graphs.step(rows, adapter is not None)
            else:
                self._step(rows, min(longest, self.positions), adapter)
            ids.append(self.ids[:rows].clone())
            logprobs.append(self.logprobs[:rows].clone())
        return torch.stack(ids), torch.stack(logprobs)

    def _step(self, rows: int, seen: int, adapter: Adapter | None) -> None:
        positions = self.at[:rows]
        attend = self.cache.attend(slice(rows), positions, seen)
        hidden = self._decoder.hidden(self.ids[:rows], positions, attend, adapter)
        self.draw_next(rows, self._decoder.logits(hidden))

    def draw_next(self, rows: int, logits: Tensor) -> None:
        """Draw the next tokens. Finished rows continue until the host sees it, but not beyond their length."""
        uniforms = self.uniforms[:rows].gather(1, self.drawn[:rows, None])[:, 0]
        self.ids[:rows], self.logprobs[:rows] = self.draw(logits, self.temperatures[:rows], uniforms)
        self.at[:rows] = (self.at[:rows] + 1).clamp(max=self.positions - 1)
        self.drawn[:rows] = (self.drawn[:rows] + 1).clamp(max=self.uniforms.shape[1] - 1)


class SampleMemory:
    """The budget for keys and values, half for rows, half for the prefix cache. ``lookahead``: tokens decoded at once."""

    def __init__(self, decoder: Forward, sizes: Sizes, lookahead: int, say: Callable[[str], None]) -> None:
        self._decoder, self._lookahead, self._say = decoder, lookahead, say
        self._max_rows, self._half = sizes.max_rows, sizes.kv_bytes // 2
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
        torch.cuda.empty_cache()
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
                if id(entry) in self._stored:
                    self._stored.move_to_end(id(entry))
                return entry, common_prefix(entry.ids_T, ids_T)
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

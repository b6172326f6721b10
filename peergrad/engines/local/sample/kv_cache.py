"""Keys and values that are already computed: of rows being sampled, and of finished rows whose prefix may be reused.

One tensor holds all rows, so a row is stored, loaded or moved by a single copy. Shapes: L layers, R rows, m key/value
heads, S positions, d head size; the axis of 2 is key and value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.debate.types import Ids
from peergrad.engines.local.model.forward import Attend, Shape
from peergrad.engines.local.model.memory import catch_out_of_memory

BLOCK = 16


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
    """Keys and values of the rows being sampled."""

    def __init__(self, shape: Shape, rows: int, positions: int, device: torch.device, dtype: torch.dtype) -> None:
        size = (shape.layers, 2, rows, shape.kv_heads, positions, shape.head_size)
        self.kv = torch.zeros(size, device=device, dtype=dtype)
        self.rows, self.positions = rows, positions
        self._windows = shape.windows

    def attend(self, rows: slice | Tensor, positions: Tensor, seen: int) -> Attend:
        """Attention of new tokens at ``positions`` (b, t) of ``rows`` to everything before them, ``seen`` at most."""
        at = torch.arange(self.rows, device=positions.device)[rows] if isinstance(rows, slice) else rows
        write = (at[:, None], slice(None), positions)
        age = positions[:, None, :, None] - torch.arange(seen, device=positions.device)  # (b, 1, t, s)
        masks = {w: age >= 0 if w is None else (age >= 0) & (age < w) for w in set(self._windows)}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            b, t, n, d = q.shape
            keys, values = self.kv[layer, 0], self.kv[layer, 1]
            m = keys.shape[1]
            keys[write], values[write] = k, v
            # The n/m query heads that share a key head are folded into the query length, so keys are not repeated.
            q = q.view(b, t, m, n // m, d).permute(0, 2, 3, 1, 4).reshape(b, m, n // m * t, d)
            folded = masks[self._windows[layer]].repeat(1, 1, n // m, 1)
            y = F.scaled_dot_product_attention(q, keys[rows, :, :seen], values[rows, :, :seen], attn_mask=folded)
            return y.view(b, m, n // m, t, d).permute(0, 3, 1, 2, 4).reshape(b, t, n * d)

        return attend

    def attend_prompts(self, rows: Tensor, positions: Tensor, lengths: Sequence[int]) -> Attend:
        """``attend`` for new tokens of several rows, packed end to end, by a GPU kernel that reads rows in place."""
        from peergrad.engines.local.sample import cache_kernels

        device = rows.device
        row_of = rows.repeat_interleave(torch.tensor(lengths, device=device), output_size=sum(lengths))
        write = (row_of, slice(None), positions)
        tiles = torch.tensor(cache_kernels.prompt_tiles(lengths), dtype=torch.int32).to(device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[layer]
            keys[write], values[write] = k, v
            return cache_kernels.attend_prompts(q.contiguous(), keys, values, row_of, positions, tiles)

        return attend

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row into another."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def copy_row(self, row: int, length: int) -> Tensor | None:
        """A copy of the first ``length`` positions of a row; None if there is no memory for it."""
        with catch_out_of_memory():
            return _copy(self.kv[:, :, row, :, :length])
        return None

    def load(self, row: int, entry: CacheEntry, length: int) -> None:
        """Copy the first ``length`` positions of an entry into a row."""
        if entry.row is not None:
            self.move(entry.row, row, length)
        elif entry.kv is not None:
            self.kv[:, :, row, :, :length] = entry.kv[:, :, :, :length]


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
        self.used -= entry.kv.numel() * entry.kv.element_size()
        entry.kv = None  # frees the memory, whoever else refers to the entry

    def store(self, cache: KVCache, entry: CacheEntry, ids_T: Ids) -> None:
        """Store the keys and values of a finished row, if the budget and the memory allow it."""
        self.remove(entry)
        row, entry.row = entry.row, None
        assert row is not None
        size = cache.kv[:, :, 0, :, :1].numel() * cache.kv.element_size() * len(ids_T)
        if size > self.budget or len(ids_T) < BLOCK:
            return
        self.evict(self.budget - size)
        while (kv := cache.copy_row(row, len(ids_T))) is None:
            if not self._stored:
                return
            self.evict(self.used // 2)
        entry.ids_T, entry.kv = ids_T, kv
        self.used += size
        self._stored[id(entry)] = entry
        self.add(entry)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone()


def _blocks(weights: int, ids_T: Ids) -> list[int]:
    """A hash for each block of tokens and all before it; each is made from the one before, so the text is read once."""
    raw = np.ascontiguousarray(ids_T, np.int32).tobytes()
    size = BLOCK * 4
    blocks: list[int] = []
    block = weights
    for start in range(0, len(raw) - size + 1, size):
        block = hash((block, raw[start : start + size]))
        blocks.append(block)
    return blocks

"""Keys and values already computed: rows being sampled, and finished ones kept for turns that go on from them.

One tensor holds all rows, so a row is kept, brought back or moved by a single copy. Shapes: L layers, R rows, m key/value
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
from peergrad.engines.local.model.memory import FULL, ran_out

BLOCK = 16


@dataclass(eq=False, slots=True)
class Held:
    """Tokens whose keys and values, under one set of weights, exist: in a row of the pool, or parked (L, 2, m, len, d)."""

    weights: int
    ids_T: Ids
    row: int | None = None
    kv: Tensor | None = None
    blocks: list[int] = field(default_factory=list[int])


class Pool:
    """The rows being sampled."""

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
        """``attend`` by a kernel that reads rows in place, on a GPU, with the new tokens of several packed end to end."""
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

    def copied(self, row: int, length: int) -> Tensor | None:
        """A copy of the first ``length`` positions of a row, if there is memory for it."""
        try:
            return _copy(self.kv[:, :, row, :, :length])
        except FULL as error:
            if not ran_out(error):
                raise
        return None

    def fill(self, row: int, held: Held, length: int) -> None:
        """Give a row the first ``length`` positions of what is held."""
        if held.row is not None:
            self.move(held.row, row, length)
        elif held.kv is not None:
            self.kv[:, :, row, :, :length] = held.kv[:, :, :, :length]


class Shelf:
    """What is held, found by prefix, and parked rows within a budget in bytes: the longest unused goes first.

    Every block of tokens from the start is known by its hash, and a match is compared token by token, so a collision can
    cost time but not correctness. Different weights never share.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._by_block: dict[int, Held] = {}
        self._parked: OrderedDict[int, Held] = OrderedDict()

    def longest(self, weights: int, ids_T: Ids) -> tuple[Held | None, int]:
        """What shares the longest prefix with these tokens, and how long that is."""
        for block in reversed(_blocks(weights, ids_T)):
            held = self._by_block.get(block)
            if held and held.weights == weights:
                common = min(len(held.ids_T), len(ids_T))
                differ = np.flatnonzero(held.ids_T[:common] != ids_T[:common])
                if id(held) in self._parked:
                    self._parked.move_to_end(id(held))
                return held, int(differ[0]) if len(differ) else common
        return None, 0

    def add(self, held: Held) -> None:
        """Make something findable."""
        held.blocks = _blocks(held.weights, held.ids_T)
        for block in held.blocks:
            self._by_block[block] = held

    def forget(self, held: Held) -> None:
        for block in held.blocks:
            if self._by_block.get(block) is held:
                del self._by_block[block]

    def drop(self, weights: int) -> None:
        """Forget everything parked under a name."""
        for key in [key for key, held in self._parked.items() if held.weights == weights]:
            self._free(self._parked.pop(key))

    def clear(self, keep: int = 0) -> None:
        """Forget what is parked, the longest unused first, until it is no more than this many bytes."""
        while self.used > keep:
            self._free(self._parked.popitem(last=False)[1])

    def _free(self, held: Held) -> None:
        self.forget(held)
        assert held.kv is not None
        self.used -= held.kv.numel() * held.kv.element_size()
        held.kv = None  # whoever still knows of it does not keep the memory

    def park(self, pool: Pool, held: Held, ids_T: Ids) -> None:
        """Keep a finished row's keys and values, as far as the budget and the memory go."""
        self.forget(held)
        row, held.row = held.row, None
        assert row is not None
        size = pool.kv[:, :, 0, :, :1].numel() * pool.kv.element_size() * len(ids_T)
        if size > self.budget or len(ids_T) < BLOCK:
            return
        self.clear(self.budget - size)
        while (kv := pool.copied(row, len(ids_T))) is None:
            if not self._parked:
                return
            self.clear(self.used // 2)
        held.ids_T, held.kv = ids_T, kv
        self.used += size
        self._parked[id(held)] = held
        self.add(held)


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

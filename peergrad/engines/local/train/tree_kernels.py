"""Triton kernels for a GPU: attention over packed prefix trees, and back.

Nodes are packed before what is below them, so a key at place j is seen by exactly the queries from j up to where its node's
subtree ends: ``j <= i < ends[j]``. One number a key is the whole mask. A tile of queries reads the tiles of keys that any of
its queries sees; back, a tile of keys is seen by one run of queries, which is divided where it is long, as for instructions
that a whole batch shares, and added up after, in a fixed order.

No library's kernel is used on purpose: what PyTorch picks for a mask depends on the version and on the shape, and cuDNN's
gives gradients that are NaN where all of a row's scores are far below zero (``docs/log.md``). Here what is masked is minus
infinity before any exponential is taken.

Shapes: t tokens, n query heads, m key/value heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from peergrad.engines.local.memory import to_device
from peergrad.engines.local.sample.cache_kernels import on_chip

# With heads of 128 in bfloat16, on an H200: the fastest of 32, 64 and 128, with 4 warps and 2 stages.
_TILE = 64
_RUN = 16  # tiles of queries that one program goes back through; more in long sequences, so that runs stay few


def fit(size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the chip has the memory that the largest kernel takes, as compiled for chips from Turing to Blackwell."""
    tile = _TILE * triton.next_power_of_2(max(size, 16)) * dtype.itemsize
    scores = 4 * _TILE**2  # what a tile of queries makes of a tile of keys, in float32
    return on_chip(device) >= max(4 * tile + scores, 6 * tile + 1024 if _stages(size, dtype) == 2 else 0)


def _stages(size: int, dtype: torch.dtype) -> int:
    """Larger numbers or heads leave no memory on the chip for a second stage."""
    return 2 if dtype.itemsize == 2 and size <= 128 else 1


@dataclass(frozen=True, eq=False)
class Layout:
    """Where attention looks: what the kernels read of a batch of trees, all int32 on the device."""

    ends: Tensor  # (t) up to which place each key is seen
    positions: Tensor  # (t) in its own sequence
    firsts: Tensor  # (tiles of queries + 1) where its list of key tiles begins
    keys: Tensor  # those lists, one after the other
    runs: Tensor  # (runs, 3) a tile of keys, and from which to which tile of queries it is gone back through
    slots: Tensor  # (tiles of keys + 1) where the runs of each begin


def layout(ends_T: npt.NDArray[np.int32], positions_T: npt.NDArray[np.int32], device: torch.device) -> Layout:
    """Lists of the tiles that see each other, were there no window: what one hides is masked, not left out."""
    start = np.arange(0, len(ends_T), _TILE)
    reach = np.maximum.reduceat(ends_T, start)  # the last query, plus one, to see any key of a tile
    sees = (reach[None] > start[:, None]) & (start[None] <= start[:, None])
    firsts = np.concatenate(([0], np.cumsum(sees.sum(1))))
    runs: list[tuple[int, int, int]] = []
    slots = [0]
    run = max(_RUN, len(start) // 32)
    for tile in range(len(start)):
        last = -(-int(reach[tile]) // _TILE)
        runs += [(tile, first, min(last, first + run)) for first in range(tile, last, run)]
        slots.append(len(runs))

    def there(array: Any) -> Tensor:
        return to_device(np.ascontiguousarray(array, np.int32), device)

    return Layout(there(ends_T), there(positions_T), there(firsts), there(np.nonzero(sees)[1]), there(runs), there(slots))


class _TreeAttention(torch.autograd.Function):
    """(t, n, d), (t, m, d), (t, m, d) → (t, n·d)."""

    @staticmethod
    def forward(ctx, q, k, v, where, window):
        q, k, v = (x.contiguous() for x in (q, k, v))
        tokens, heads, size = q.shape
        out = torch.empty_like(q)
        lse = q.new_empty(heads, tokens, dtype=torch.float32)
        _forward[(triton.cdiv(tokens, _TILE), heads)](
            q, k, v, where.ends, where.positions, where.firsts, where.keys, out, lse,
            tokens, size**-0.5, window or 0, **_shape(q, k, window),
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.where, ctx.window = where, window
        return out.view(tokens, heads * size)

    @staticmethod
    def backward(ctx, *grads):
        q, k, v, out, lse = ctx.saved_tensors
        where, window = ctx.where, ctx.window
        tokens, heads, size = q.shape
        kv_heads = k.shape[1]
        to_out = grads[0].contiguous()
        to_q, to_k, to_v = (torch.empty_like(x) for x in (q, k, v))
        delta = torch.empty_like(lse)
        part = q.new_empty(len(where.runs), kv_heads, 2, _TILE, size, dtype=torch.float32)
        tiles, shape = triton.cdiv(tokens, _TILE), _shape(q, k, window)
        _to_queries[(tiles, heads)](
            q, k, v, where.ends, where.positions, where.firsts, where.keys, out, to_out, lse, delta, to_q,
            tokens, size**-0.5, window or 0, **shape,
        )  # fmt: skip
        _to_keys[(len(where.runs), kv_heads)](
            q, k, v, where.ends, where.positions, where.runs, to_out, lse, delta, part,
            tokens, size**-0.5, window or 0, **shape,
        )  # fmt: skip
        _add_runs[(tiles, kv_heads)](part, where.slots, to_k, to_v, tokens, size, shape["WIDTH"], _TILE)
        return to_q, to_k, to_v, None, None


tree_attention = _TreeAttention.apply


def _shape(q: Tensor, k: Tensor, window: int | None) -> dict[str, Any]:
    """What kernels are compiled for."""
    heads, size = q.shape[1:]
    return {
        "HEADS": heads,
        "GROUP": heads // k.shape[1],
        "SIZE": size,
        "WIDTH": triton.next_power_of_2(max(size, 16)),
        "TILE": _TILE,
        "WINDOWED": window is not None,
        "num_warps": 4,
        "num_stages": _stages(size, q.dtype),
    }


@triton.jit
def _seen(query, key, ends, positions, tokens, window, WINDOWED: tl.constexpr):
    """Whether a query, of a column, sees a key, of a row."""
    end = tl.load(ends + key, key < tokens, 0)
    seen = (key <= query) & (query < end)
    if WINDOWED:
        age = tl.load(positions + query, query < tokens, 0) - tl.load(positions + key, key < tokens, 0)
        seen = seen & (age < window)
    return seen


@triton.jit
def _forward(
    q, k, v, ends, positions, firsts, keys, out, lse, tokens, scale, window,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    query = tile * TILE + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    real = (query < tokens)[:, None] & (column < SIZE)[None, :]
    place = (query[:, None].to(tl.int64) * HEADS + head) * SIZE + column[None, :]
    q1 = tl.load(q + place, real, 0.0)
    top = tl.full((TILE,), -float("inf"), tl.float32)
    weight = tl.zeros((TILE,), tl.float32)
    sum_ = tl.zeros((TILE, WIDTH), tl.float32)
    for at in range(tl.load(firsts + tile), tl.load(firsts + tile + 1)):
        key = tl.load(keys + at) * TILE + tl.arange(0, TILE)
        there = (key < tokens)[:, None] & (column < SIZE)[None, :]
        from_ = (key[:, None].to(tl.int64) * (HEADS // GROUP) + head // GROUP) * SIZE + column[None, :]
        k1 = tl.load(k + from_, there, 0.0)
        v1 = tl.load(v + from_, there, 0.0)
        score = tl.dot(q1, tl.trans(k1), input_precision="ieee") * (scale * 1.4426950408889634)
        seen = _seen(query[:, None], key[None, :], ends, positions, tokens, window, WINDOWED)
        score = tl.where(seen, score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)  # a query that sees none of these keys
        p = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(top - safe)
        sum_ = sum_ * shrink[:, None] + tl.dot(p.to(v1.dtype), v1, input_precision="ieee")
        weight = weight * shrink + tl.sum(p, 1)
        top = new_top
    weight = tl.where(query < tokens, weight, 1.0)
    tl.store(out + place, (sum_ / weight[:, None]).to(out.dtype.element_ty), real)
    tl.store(lse + head * tokens + query, top + tl.log2(weight), query < tokens)


@triton.jit
def _to_queries(
    q, k, v, ends, positions, firsts, keys, out, to_out, lse, delta, to_q, tokens, scale, window,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    query = tile * TILE + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    real = (query < tokens)[:, None] & (column < SIZE)[None, :]
    place = (query[:, None].to(tl.int64) * HEADS + head) * SIZE + column[None, :]
    q1 = tl.load(q + place, real, 0.0)
    slope = tl.load(to_out + place, real, 0.0)
    # What the softmax takes off every slope of a row. The kernel that comes next reads it too.
    d = tl.sum(slope.to(tl.float32) * tl.load(out + place, real, 0.0).to(tl.float32), 1)
    tl.store(delta + head * tokens + query, d, query < tokens)
    level = tl.load(lse + head * tokens + query, query < tokens, float("inf"))
    sum_ = tl.zeros((TILE, WIDTH), tl.float32)
    for at in range(tl.load(firsts + tile), tl.load(firsts + tile + 1)):
        key = tl.load(keys + at) * TILE + tl.arange(0, TILE)
        there = (key < tokens)[:, None] & (column < SIZE)[None, :]
        from_ = (key[:, None].to(tl.int64) * (HEADS // GROUP) + head // GROUP) * SIZE + column[None, :]
        k1 = tl.load(k + from_, there, 0.0)
        v1 = tl.load(v + from_, there, 0.0)
        score = tl.dot(q1, tl.trans(k1), input_precision="ieee") * (scale * 1.4426950408889634)
        seen = _seen(query[:, None], key[None, :], ends, positions, tokens, window, WINDOWED)
        p = tl.exp2(tl.where(seen, score, -float("inf")) - level[:, None])
        back = p * (tl.dot(slope, tl.trans(v1), input_precision="ieee") - d[:, None])
        sum_ += tl.dot(back.to(k1.dtype), k1, input_precision="ieee")
    tl.store(to_q + place, (sum_ * scale).to(to_q.dtype.element_ty), real)


@triton.jit
def _to_keys(
    q, k, v, ends, positions, runs, to_out, lse, delta, part, tokens, scale, window,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    key = tl.load(runs + run * 3) * TILE + tl.arange(0, TILE)
    first = tl.load(runs + run * 3 + 1)
    last = tl.load(runs + run * 3 + 2)
    column = tl.arange(0, WIDTH)
    inside = (column < SIZE)[None, :]
    from_ = (key[:, None].to(tl.int64) * (HEADS // GROUP) + kv_head) * SIZE + column[None, :]
    k1 = tl.load(k + from_, (key < tokens)[:, None] & inside, 0.0)
    v1 = tl.load(v + from_, (key < tokens)[:, None] & inside, 0.0)
    sum_k = tl.zeros((TILE, WIDTH), tl.float32)
    sum_v = tl.zeros((TILE, WIDTH), tl.float32)
    for at in range((last - first) * GROUP):
        head = kv_head * GROUP + at % GROUP
        query = (first + at // GROUP) * TILE + tl.arange(0, TILE)
        real = (query < tokens)[:, None] & inside
        place = (query[:, None].to(tl.int64) * HEADS + head) * SIZE + column[None, :]
        q1 = tl.load(q + place, real, 0.0)
        slope = tl.load(to_out + place, real, 0.0)
        level = tl.load(lse + head * tokens + query, query < tokens, float("inf"))
        d = tl.load(delta + head * tokens + query, query < tokens, 0.0)
        score = tl.dot(k1, tl.trans(q1), input_precision="ieee") * (scale * 1.4426950408889634)
        seen = _seen(query[None, :], key[:, None], ends, positions, tokens, window, WINDOWED)
        p = tl.exp2(tl.where(seen, score, -float("inf")) - level[None, :])
        sum_v += tl.dot(p.to(slope.dtype), slope, input_precision="ieee")
        back = p * (tl.dot(v1, tl.trans(slope), input_precision="ieee") - d[None, :])
        sum_k += tl.dot(back.to(q1.dtype), q1, input_precision="ieee")
    row = tl.arange(0, TILE)
    to = ((run * (HEADS // GROUP) + kv_head) * 2 * TILE + row[:, None]) * SIZE + column[None, :]
    tl.store(part + to, sum_k * scale, inside)
    tl.store(part + to + TILE * SIZE, sum_v, inside)


@triton.jit
def _add_runs(part, slots, to_k, to_v, tokens, SIZE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    heads = tl.num_programs(1)
    column = tl.arange(0, WIDTH)
    row = tl.arange(0, TILE)
    inside = (column < SIZE)[None, :]
    sum_k = tl.zeros((TILE, WIDTH), tl.float32)
    sum_v = tl.zeros((TILE, WIDTH), tl.float32)
    for run in range(tl.load(slots + tile), tl.load(slots + tile + 1)):
        from_ = ((tl.cast(run, tl.int64) * heads + kv_head) * 2 * TILE + row[:, None]) * SIZE + column[None, :]
        sum_k += tl.load(part + from_, inside, 0.0)
        sum_v += tl.load(part + from_ + TILE * SIZE, inside, 0.0)
    key = tile * TILE + row
    to = (key[:, None].to(tl.int64) * heads + kv_head) * SIZE + column[None, :]
    real = (key < tokens)[:, None] & inside
    tl.store(to_k + to, sum_k.to(to_k.dtype.element_ty), real)
    tl.store(to_v + to, sum_v.to(to_v.dtype.element_ty), real)

"""Triton kernels for a GPU: keys and values into the cache, and attention to it while sampling.

Shapes: b rows, t new tokens, n query heads, m key/value heads, d head size, S positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROMPT_TILE = 128


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    at: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotate queries and keys to position ``at``, store key and value there, return the queries (b, n, d)."""
    rows, total, size = qkv.shape
    kv_heads = keys.shape[1]
    heads = total - 2 * kv_heads
    q = qkv.new_empty(rows, heads, size)
    query_norm, key_norm = norms or (cos, cos)
    _rotate_and_store[(rows, total)](
        qkv, cos, sin, at, keys, values, q, query_norm, key_norm, eps,
        qkv.stride(0), keys.stride(0), keys.stride(1), heads, kv_heads, size, norms is not None,
    )  # fmt: skip
    return q


def attend(q: Tensor, keys: Tensor, values: Tensor, at: Tensor, splits: int | None = None) -> Tensor:
    """Attention of one query a row to positions 0 … at of its own row: (b, n, d) → (b, n·d).

    Each row reads only what it holds. With few rows, positions are split among several programs and put together after.
    """
    rows, heads, size = q.shape
    kv_heads, positions = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    splits = splits or max(1, min(8, 128 // (rows * kv_heads), positions // 128))
    # A program that has a processor to itself is quicker with more on its way; many hide each other's waiting.
    alone = rows * kv_heads * splits <= 256 and on_chip(q.device) >= 6 * 128 * size * q.element_size() + 2**14
    out = q.new_empty(rows, heads, size)
    part = q.new_empty(rows, heads, splits, size, dtype=torch.float32) if splits > 1 else out
    lse = q.new_empty(rows, heads, splits, dtype=torch.float32)
    _attend[(rows, kv_heads, splits)](
        q, keys, values, at, part, lse, size**-0.5,
        keys.stride(0), keys.stride(1), heads, group, splits, size, triton.next_power_of_2(max(group, 16)),
        128 if alone else 64, num_warps=4, num_stages=3 if alone else 2,
    )  # fmt: skip
    if splits > 1:
        _merge[(rows, heads)](part, lse, out, splits, size, triton.next_power_of_2(splits))
    return out.view(rows, heads * size)


@cache
def on_chip(device: torch.device) -> int:
    """How much shared memory one program may have, in bytes; if PyTorch does not say, that of the smallest chips."""
    if device.type != "cuda":
        return 0
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024)


def prompt_attention(rows: Tensor, positions: Tensor, lengths: Sequence[int]) -> Callable[..., Tensor]:
    """Attention of new tokens to all before them in their row: (t, n, d) → (t, n·d).

    ``rows`` and ``positions`` say where each token's key and value are stored; ``lengths`` of them belong to each row.
    """
    # Tiles of queries, one for each program: where a tile begins, and how many queries it has.
    tiles = [
        (start + at, min(_PROMPT_TILE, length - at))
        for start, length in zip([0, *itertools.accumulate(lengths)], lengths, strict=False)
        for at in range(0, length, _PROMPT_TILE)
    ]
    on_device = torch.tensor(tiles, dtype=torch.int32).to(rows.device)

    def attend(_: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        tokens, heads, size = q.shape
        q = q.contiguous()
        out = torch.empty_like(q)
        _attend_prompts[(len(tiles), heads)](
            q, keys, values, rows, positions, on_device, out, size**-0.5,
            keys.stride(0), keys.stride(1), heads, heads // keys.shape[1], size, _PROMPT_TILE, 64,
            num_warps=8, num_stages=3,
        )  # fmt: skip
        return out.view(tokens, heads * size)

    return attend


@triton.jit
def _rotate_and_store(
    qkv, cos, sin, at, keys, values, q, query_norm, key_norm, eps,
    token_stride, row_stride, head_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = SIZE // 2
    column = tl.arange(0, SIZE // 2)
    source = qkv + row * token_stride + head * SIZE
    position = tl.load(at + row)
    low = tl.load(source + column).to(tl.float32)
    high = tl.load(source + half + column).to(tl.float32)
    if head >= HEADS + KV:
        target = values + row * row_stride + (head - HEADS - KV) * head_stride + position * SIZE
        tl.store(target + column, low.to(values.dtype.element_ty))
        tl.store(target + half + column, high.to(values.dtype.element_ty))
    else:
        if NORMED:
            weight = query_norm if head < HEADS else key_norm
            scale = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / SIZE + eps)
            low = low * scale * tl.load(weight + column).to(tl.float32)
            high = high * scale * tl.load(weight + half + column).to(tl.float32)
        c = tl.load(cos + position * SIZE + column).to(tl.float32)
        s = tl.load(sin + position * SIZE + column).to(tl.float32)
        first, second = low * c - high * s, high * c + low * s
        if head < HEADS:
            target = q + (row * HEADS + head) * SIZE
        else:
            target = keys + row * row_stride + (head - HEADS) * head_stride + position * SIZE
        tl.store(target + column, first.to(q.dtype.element_ty))
        tl.store(target + half + column, second.to(q.dtype.element_ty))


@triton.jit
def _attend(
    q, keys, values, at, part, lse, scale,
    row_stride, head_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, SIZE: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(at + row).to(tl.int32) + 1
    per_split = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    start = split * per_split
    end = tl.minimum(length, start + per_split)
    member = tl.arange(0, GROUP_BLOCK)
    head = kv_head * GROUP + member
    column = tl.arange(0, SIZE)
    real = member < GROUP
    query = tl.load(q + (row * HEADS + head[:, None]) * SIZE + column[None, :], real[:, None], 0.0)
    base = row * row_stride + kv_head * head_stride
    top = tl.full((GROUP_BLOCK,), -float("inf"), tl.float32)
    weight = tl.zeros((GROUP_BLOCK,), tl.float32)
    sum_ = tl.zeros((GROUP_BLOCK, SIZE), tl.float32)
    for block in range(start, end, BLOCK):
        position = block + tl.arange(0, BLOCK)
        held = position < end
        key = tl.load(keys + base + position[None, :].to(tl.int64) * SIZE + column[:, None], held[None, :], 0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(held[None, :], score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(score - new_top[:, None])
        value = tl.load(values + base + position[:, None].to(tl.int64) * SIZE + column[None, :], held[:, None], 0.0)
        sum_ = sum_ * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        weight = weight * shrink + tl.sum(p, 1)
        top = new_top
    empty = weight == 0
    result = sum_ / tl.where(empty, 1.0, weight)[:, None]
    place = (row * HEADS + head) * SPLITS + split
    tl.store(part + place[:, None] * SIZE + column[None, :], result.to(part.dtype.element_ty), real[:, None])
    tl.store(lse + place, tl.where(empty, -float("inf"), top + tl.log(weight)), real)


@triton.jit
def _attend_prompts(
    q, keys, values, rows, positions, tiles, out, scale,
    row_stride, head_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start = tl.load(tiles + tl.program_id(0) * 2)
    count = tl.load(tiles + tl.program_id(0) * 2 + 1)
    offset = tl.arange(0, QUERIES)
    column = tl.arange(0, SIZE)
    real = offset < count
    place = ((start + offset[:, None]).to(tl.int64) * HEADS + head) * SIZE + column[None, :]
    query = tl.load(q + place, real[:, None], 0.0)
    position = tl.load(positions + start).to(tl.int32) + offset
    base = tl.load(rows + start).to(tl.int64) * row_stride + (head // GROUP) * head_stride
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    sum_ = tl.zeros((QUERIES, SIZE), tl.float32)
    end = tl.load(positions + start).to(tl.int32) + count
    for block in range(0, end, BLOCK):
        at = block + tl.arange(0, BLOCK)
        held = at < end
        key = tl.load(keys + base + at[None, :].to(tl.int64) * SIZE + column[:, None], held[None, :], 0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(at[None, :] <= position[:, None], score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(score - new_top[:, None])
        value = tl.load(values + base + at[:, None].to(tl.int64) * SIZE + column[None, :], held[:, None], 0.0)
        sum_ = sum_ * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        weight = weight * shrink + tl.sum(p, 1)
        top = new_top
    tl.store(out + place, (sum_ / weight[:, None]).to(out.dtype.element_ty), real[:, None])


@triton.jit
def _merge(part, lse, out, SPLITS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = tl.arange(0, BLOCK)
    column = tl.arange(0, SIZE)
    inside = split < SPLITS
    weights = tl.load(lse + place * SPLITS + split, inside, -float("inf"))
    weights = tl.exp(weights - tl.max(weights))
    values = tl.load(part + (place * SPLITS + split[:, None]) * SIZE + column[None, :], inside[:, None], 0.0)
    result = tl.sum(values * weights[:, None], 0) / tl.sum(weights)
    tl.store(out + place * SIZE + column, result.to(out.dtype.element_ty))

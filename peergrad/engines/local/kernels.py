"""Triton kernels for a GPU: what lies between matrix products, attention to the cache, and drawing tokens.

Many small steps would cost more than their arithmetic.
Each computes in float32 and keeps the model's precision in memory. Shapes as in ``decoder``: b rows, n query heads,
m key/value heads, d head size, S positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_CHUNK = 4096


def add_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``ops.add_norm``."""
    return _AddNorm.apply(x, added, weight, eps)


def rotate(qkv: Tensor, kv_heads: int, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``ops.rotate``."""
    return _Rotate.apply(qkv, kv_heads, cos, sin, positions)


def swiglu(gate_up: Tensor) -> Tensor:
    """``ops.swiglu``."""
    return _Swiglu.apply(gate_up)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, added, weight, eps):
        width = x.shape[-1]
        total, normed = torch.empty_like(x, dtype=torch.float32), torch.empty_like(x, dtype=weight.dtype)
        given = x if added is None else added
        _add_norm[(x.numel() // width,)](
            x, given, weight, total, normed, width, eps, added is not None, triton.next_power_of_2(width)
        )
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.added = eps, added is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(ctx, *grads):
        total, weight = ctx.saved_tensors
        to_total, to_normed = (None if grad is None else grad.contiguous() for grad in grads)
        width = total.shape[-1]
        to_x, to_added = torch.empty_like(total), torch.empty_like(total, dtype=weight.dtype)
        missing = total if to_total is None else to_total
        _add_norm_back[(total.numel() // width,)](
            total, weight, missing, to_normed, to_x, to_added, width, ctx.eps, to_total is not None,
            triton.next_power_of_2(width),
        )  # fmt: skip
        return to_x, to_added if ctx.added else None, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, kv_heads, cos, sin, positions):
        *outer, total, size = qkv.shape
        heads = total - 2 * kv_heads
        q, k, v = (qkv.new_empty(*outer, count, size) for count in (heads, kv_heads, kv_heads))
        positions = positions.contiguous()
        _rotate[(positions.numel(), total)](qkv.contiguous(), cos, sin, positions, q, k, v, heads, kv_heads, size, False)
        ctx.save_for_backward(cos, sin, positions)
        return q, k, v

    @staticmethod
    def backward(ctx, *grads):
        cos, sin, positions = ctx.saved_tensors
        q, k, v = (grad.contiguous() for grad in grads)
        heads, kv_heads, size = q.shape[-2], k.shape[-2], q.shape[-1]
        back = q.new_empty(*q.shape[:-2], heads + 2 * kv_heads, size)
        _rotate[(positions.numel(), heads + 2 * kv_heads)](back, cos, sin, positions, q, k, v, heads, kv_heads, size, True)
        return back, None, None, None, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up):
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        _swiglu[(out.numel() // width, triton.cdiv(width, 1024))](gate_up, out, width, 1024)
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    def backward(ctx, *grads):
        (gate_up,) = ctx.saved_tensors
        grad = grads[0].contiguous()
        width = grad.shape[-1]
        back = torch.empty_like(gate_up)
        _swiglu_back[(grad.numel() // width, triton.cdiv(width, 1024))](gate_up, grad, back, width, 1024)
        return back


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
        keys.stride(0), keys.stride(1), heads, kv_heads, size, norms is not None,
    )  # fmt: skip
    return q


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    *,
    block: int = 64,
    warps: int = 4,
    stages: int = 2,
    splits: int | None = None,
) -> Tensor:
    """Attention of one query a row to positions 0 … at of its own row: (b, n, d) → (b, n·d).

    Each row reads only what it holds. With few rows, positions are split among several programs and put together after.
    """
    rows, heads, size = q.shape
    kv_heads, positions = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    splits = splits or max(1, min(8, 128 // (rows * kv_heads), positions // 128))
    out = q.new_empty(rows, heads, size)
    part = q.new_empty(rows, heads, splits, size, dtype=torch.float32) if splits > 1 else out
    lse = q.new_empty(rows, heads, splits, dtype=torch.float32)
    _attend[(rows, kv_heads, splits)](
        q, keys, values, at, part, lse, size**-0.5,
        keys.stride(0), keys.stride(1), heads, group, splits, size, triton.next_power_of_2(max(group, 16)), block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _merge[(rows, heads)](part, lse, out, splits, size, triton.next_power_of_2(splits))
    return out.view(rows, heads * size)


def attend_prompt(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Attention of new tokens to all before them in their row: (b, t, n, d) → (b, t, n·d).

    Token t of prompt b is at position ``starts[b] + t`` of row ``rows[b]``, whose keys and values are already stored.
    """
    b, t, heads, size = q.shape
    out = torch.empty_like(q)
    group = heads // keys.shape[1]
    _attend_prompt[(triton.cdiv(t, 128), heads, b)](
        q, keys, values, rows, starts, out, t, keys.shape[2], size**-0.5,
        keys.stride(0), keys.stride(1), heads, group, size, 128, 64,
        num_warps=8, num_stages=3,
    )  # fmt: skip
    return out.view(b, t, heads * size)


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """A token per row by its uniform number, and its log-probability: ``state.draw``, reading the scores once."""
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, VOCABULARY_CHUNK)
    peak, mass = (logits.new_empty(rows, chunks, dtype=torch.float32) for _ in range(2))
    best = logits.new_empty(rows, chunks, dtype=torch.int64)
    _weigh[(rows, chunks)](logits, temperatures, peak, mass, best, vocabulary, chunks, VOCABULARY_CHUNK)
    ids = logits.new_empty(rows, dtype=torch.int64)
    logprobs = logits.new_empty(rows, dtype=torch.float32)
    _pick[(rows,)](
        logits, temperatures, uniforms, peak, mass, best, ids, logprobs,
        vocabulary, chunks, VOCABULARY_CHUNK, triton.next_power_of_2(chunks),
    )  # fmt: skip
    return ids, logprobs


def logprobs(scores: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """``ops.logprobs``, reading the scores once."""
    rows, vocabulary = scores.shape
    found, levels = (scores.new_empty(rows) for _ in range(2))
    _logprobs[(rows,)](scores, targets, temperatures, found, levels, vocabulary, VOCABULARY_CHUNK, num_warps=8)
    return found, levels


def slopes(
    scores: Tensor, levels: Tensor, targets: Tensor, temperatures: Tensor, to_logprobs: Tensor, dtype: torch.dtype
) -> Tensor:
    """``ops.slopes``, reading the scores once and leaving them as they are."""
    rows, vocabulary = scores.shape
    out = torch.empty_like(scores, dtype=dtype)
    _slopes[(rows, triton.cdiv(vocabulary, VOCABULARY_CHUNK))](
        scores, levels, targets, temperatures, to_logprobs, out, vocabulary, VOCABULARY_CHUNK, num_warps=8
    )
    return out


@triton.jit
def _add_norm(x, added, weight, total, normed, width, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, inside, 0.0).to(tl.float32)
    if HAS_ADDED:
        value += tl.load(added + row * width + column, inside, 0.0).to(tl.float32)
    tl.store(total + row * width + column, value, inside)
    scale = tl.rsqrt(tl.sum(value * value) / width + eps)
    y = value * scale * tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(normed + row * width + column, y.to(normed.dtype.element_ty), inside)


@triton.jit
def _add_norm_back(
    total, weight, to_total, to_normed, to_x, to_added, width, eps, HAS_TOTAL: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(total + row * width + column, inside, 0.0)
    scale = tl.rsqrt(tl.sum(value * value) / width + eps)
    unit = value * scale
    slope = tl.load(to_normed + row * width + column, inside, 0.0).to(tl.float32)
    slope *= tl.load(weight + column, inside, 0.0).to(tl.float32)
    back = scale * (slope - unit * (tl.sum(slope * unit) / width))
    if HAS_TOTAL:
        back += tl.load(to_total + row * width + column, inside, 0.0)
    tl.store(to_x + row * width + column, back, inside)
    tl.store(to_added + row * width + column, back.to(to_added.dtype.element_ty), inside)


@triton.jit
def _rotate(
    qkv, cos, sin, positions, q, k, v,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = SIZE // 2
    column = tl.arange(0, SIZE // 2)
    whole = qkv + (token * (HEADS + 2 * KV) + head) * SIZE
    if head < HEADS:
        part = q + (token * HEADS + head) * SIZE
    elif head < HEADS + KV:
        part = k + (token * KV + head - HEADS) * SIZE
    else:
        part = v + (token * KV + head - HEADS - KV) * SIZE
    if BACK:
        source, target = part, whole
    else:
        source, target = whole, part
    low = tl.load(source + column).to(tl.float32)
    high = tl.load(source + half + column).to(tl.float32)
    if head < HEADS + KV:
        position = tl.load(positions + token)
        c = tl.load(cos + position * SIZE + column).to(tl.float32)
        s = tl.load(sin + position * SIZE + column).to(tl.float32)
        if BACK:  # the gradient turns the other way
            s = -s
        low, high = low * c - high * s, high * c + low * s
    tl.store(target + column, low.to(q.dtype.element_ty))
    tl.store(target + half + column, high.to(q.dtype.element_ty))


@triton.jit
def _swiglu_back(gate_up, grad, back, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, inside, 0.0).to(tl.float32)
    slope = tl.load(grad + row * width + column, inside, 0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    to_gate = slope * up * open_ * (1 + gate * (1 - open_))
    tl.store(back + row * 2 * width + column, to_gate.to(back.dtype.element_ty), inside)
    tl.store(back + row * 2 * width + width + column, (slope * gate * open_).to(back.dtype.element_ty), inside)


@triton.jit
def _swiglu(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)


@triton.jit
def _rotate_and_store(
    qkv, cos, sin, at, keys, values, q, query_norm, key_norm, eps,
    row_stride, head_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = SIZE // 2
    column = tl.arange(0, SIZE // 2)
    source = qkv + (row * (HEADS + 2 * KV) + head) * SIZE
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
def _attend_prompt(
    q, keys, values, rows, starts, out, tokens, positions, scale,
    row_stride, head_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    prompt = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, SIZE)
    real = token < tokens
    place = ((prompt * tokens + token[:, None]) * HEADS + head) * SIZE + column[None, :]
    query = tl.load(q + place, real[:, None], 0.0)
    position = tl.load(starts + prompt).to(tl.int32) + token
    base = tl.load(rows + prompt).to(tl.int64) * row_stride + (head // GROUP) * head_stride
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    sum_ = tl.zeros((QUERIES, SIZE), tl.float32)
    end = tl.minimum(tl.max(tl.where(real, position, 0)) + 1, positions)  # padding may point beyond the row
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


@triton.jit
def _weigh(logits, temperatures, peak, mass, best, vocabulary, chunks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    scale = 1.0 / tl.maximum(tl.load(temperatures + row), 1e-6)
    score = tl.load(logits + row * vocabulary + column, column < vocabulary, -float("inf")).to(tl.float32) * scale
    top = tl.max(score)
    tl.store(peak + row * chunks + chunk, top)
    tl.store(mass + row * chunks + chunk, tl.sum(tl.exp(score - top)))
    tl.store(best + row * chunks + chunk, chunk * BLOCK + tl.argmax(score, 0))


@triton.jit
def _pick(
    logits, temperatures, uniforms, peak, mass, best, ids, logprobs, vocabulary, chunks,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    inside = chunk < chunks
    temperature = tl.load(temperatures + row)
    scale = 1.0 / tl.maximum(temperature, 1e-6)
    peaks = tl.load(peak + row * chunks + chunk, inside, -float("inf"))
    top = tl.max(peaks)
    masses = tl.load(mass + row * chunks + chunk, inside, 0.0) * tl.exp(peaks - top)
    total = tl.sum(masses)
    wanted = tl.load(uniforms + row) * total
    before = tl.cumsum(masses, 0) - masses
    # The last chunk that begins at or before what is wanted and is not empty.
    chosen = tl.max(tl.where((before <= wanted) & (masses > 0), chunk, 0))
    start = tl.sum(tl.where(chunk == chosen, before, 0.0))
    column = chosen * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * vocabulary + column, column < vocabulary, -float("inf")).to(tl.float32) * scale
    p = tl.exp(score - top)
    reached = start + tl.cumsum(p, 0) > wanted
    # The first token that reaches it; where rounding lets none, the last one that has any mass.
    first = tl.min(tl.where(reached, column, vocabulary))
    last = tl.max(tl.where(p > 0, column, 0))
    id = tl.where(first < vocabulary, first, last)
    greedy = tl.load(best + row * chunks + tl.argmax(peaks, 0))
    id = tl.where(temperature > 0, id, greedy)
    score = tl.load(logits + row * vocabulary + id).to(tl.float32) * scale
    tl.store(ids + row, id)
    tl.store(logprobs + row, score - top - tl.log(total))


@triton.jit
def _logprobs(scores, targets, temperatures, found, levels, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    scale = 1.0 / tl.load(temperatures + row)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(scores + row * vocabulary + column, column < vocabulary, -float("inf")) * scale
        new_top = tl.maximum(top, score)
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)
        mass = mass * tl.exp(top - safe) + tl.exp(score - safe)
        top = new_top
    highest = tl.max(top)
    level = highest + tl.log(tl.sum(mass * tl.exp(top - highest)))
    target = tl.load(scores + row * vocabulary + tl.load(targets + row)) * scale
    tl.store(levels + row, level)
    tl.store(found + row, target - level)


@triton.jit
def _slopes(scores, levels, targets, temperatures, to_logprobs, out, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocabulary
    scale = 1.0 / tl.load(temperatures + row)
    score = tl.load(scores + row * vocabulary + column, inside, -float("inf")) * scale
    p = tl.exp(score - tl.load(levels + row))
    slope = tl.load(to_logprobs + row) * scale * (tl.where(column == tl.load(targets + row), 1.0, 0.0) - p)
    tl.store(out + row * vocabulary + column, slope.to(out.dtype.element_ty), inside)

"""Triton kernels for a GPU with the same functions as ``ops``.

Each computes in float32 and keeps the model's precision in memory. What comes out of a matrix product may have rows that are
further apart than they are long. Logits are the largest tensor there is, so each is read once per kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_CHUNK = 4096


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, added, weight, eps):
        width = x.shape[-1]
        total, normed = torch.empty_like(x, dtype=torch.float32), torch.empty_like(x, dtype=weight.dtype)
        other = x if added is None else added
        _add_norm[(x.numel() // width,)](
            x, other, weight, total, normed, width, other.stride(-2), eps, added is not None, triton.next_power_of_2(width)
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
        block = triton.next_power_of_2(total)
        _rotate[(positions.numel(),)](qkv.contiguous(), cos, sin, positions, q, k, v, heads, kv_heads, size, block, False)
        ctx.save_for_backward(cos, sin, positions)
        return q, k, v

    @staticmethod
    def backward(ctx, *grads):
        cos, sin, positions = ctx.saved_tensors
        q, k, v = (grad.contiguous() for grad in grads)
        heads, kv_heads, size = q.shape[-2], k.shape[-2], q.shape[-1]
        total = heads + 2 * kv_heads
        back, block = q.new_empty(*q.shape[:-2], total, size), triton.next_power_of_2(total)
        _rotate[(positions.numel(),)](back, cos, sin, positions, q, k, v, heads, kv_heads, size, block, True)
        return back, None, None, None, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up):
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        _swiglu[(out.numel() // width, triton.cdiv(width, 1024))](gate_up, out, width, gate_up.stride(-2), 1024)
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


add_norm, rotate, swiglu = _AddNorm.apply, _Rotate.apply, _Swiglu.apply


@triton.jit
def _add_norm(x, added, weight, total, normed, width, stride, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, inside, 0.0).to(tl.float32)
    if HAS_ADDED:
        value += tl.load(added + row * stride + column, inside, 0.0).to(tl.float32)
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
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, HEADS_BLOCK: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """From ``qkv`` to ``q``, ``k`` and ``v``, or BACK; all heads of a token at once."""
    token = tl.program_id(0).to(tl.int64)
    half = SIZE // 2
    column = tl.arange(0, SIZE // 2)[None, :]
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    real = head < HEADS + 2 * KV
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV)
    is_v = (head >= HEADS + KV) & real
    whole = qkv + (token * (HEADS + 2 * KV) + head) * SIZE + column
    part_q = q + (token * HEADS + head) * SIZE + column
    part_k = k + (token * KV + head - HEADS) * SIZE + column
    part_v = v + (token * KV + head - HEADS - KV) * SIZE + column
    if BACK:
        low = tl.load(part_q, is_q, 0.0) + tl.load(part_k, is_k, 0.0) + tl.load(part_v, is_v, 0.0)
        high = tl.load(part_q + half, is_q, 0.0) + tl.load(part_k + half, is_k, 0.0) + tl.load(part_v + half, is_v, 0.0)
    else:
        low = tl.load(whole, real, 0.0)
        high = tl.load(whole + half, real, 0.0)
    low = low.to(tl.float32)
    high = high.to(tl.float32)
    position = tl.load(positions + token)
    c = tl.load(cos + position * SIZE + column).to(tl.float32)
    s = tl.load(sin + position * SIZE + column).to(tl.float32)
    if BACK:  # the gradient turns the other way
        s = -s
    c = tl.where(is_v, 1.0, c)
    s = tl.where(is_v, 0.0, s)
    first = (low * c - high * s).to(q.dtype.element_ty)
    second = (high * c + low * s).to(q.dtype.element_ty)
    if BACK:
        tl.store(whole, first, real)
        tl.store(whole + half, second, real)
    else:
        tl.store(part_q, first, is_q)
        tl.store(part_q + half, second, is_q)
        tl.store(part_k, first, is_k)
        tl.store(part_k + half, second, is_k)
        tl.store(part_v, first, is_v)
        tl.store(part_v + half, second, is_v)


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
def _swiglu(gate_up, out, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * stride + column, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """``ops.draw``, reading the logits once."""
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
    out, lse = (scores.new_empty(rows) for _ in range(2))
    _logprobs[(rows,)](scores, targets, temperatures, out, lse, vocabulary, VOCABULARY_CHUNK, num_warps=8)
    return out, lse


def logit_gradients(
    scores: Tensor, lse: Tensor, targets: Tensor, temperatures: Tensor, to_logprobs: Tensor, dtype: torch.dtype
) -> Tensor:
    """``ops.logit_gradients``, reading the scores once and leaving them as they are."""
    rows, vocabulary = scores.shape
    out = torch.empty_like(scores, dtype=dtype)
    _logit_gradients[(rows, triton.cdiv(vocabulary, VOCABULARY_CHUNK))](
        scores, lse, targets, temperatures, to_logprobs, out, vocabulary, VOCABULARY_CHUNK, num_warps=8
    )
    return out


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
    # The last chunk that begins at or before the wanted mass and is not empty.
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
def _logprobs(scores, targets, temperatures, out, lse, vocabulary, BLOCK: tl.constexpr):
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
    tl.store(lse + row, level)
    tl.store(out + row, target - level)


@triton.jit
def _logit_gradients(scores, lse, targets, temperatures, to_logprobs, out, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocabulary
    scale = 1.0 / tl.load(temperatures + row)
    score = tl.load(scores + row * vocabulary + column, inside, -float("inf")) * scale
    p = tl.exp(score - tl.load(lse + row))
    slope = tl.load(to_logprobs + row) * scale * (tl.where(column == tl.load(targets + row), 1.0, 0.0) - p)
    tl.store(out + row * vocabulary + column, slope.to(out.dtype.element_ty), inside)

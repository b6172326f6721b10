"""Triton kernels for a GPU: what lies between matrix products.

Many small steps would cost more than their arithmetic.
Each computes in float32 and keeps the model's precision in memory. Rows may lie further apart than they are long where
something is read that comes out of a matrix product. Shapes as in ``decoder``: b rows, n query heads, m key/value heads,
d head size, S positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
            x, given, weight, total, normed, width, given.stride(-2), eps, added is not None, triton.next_power_of_2(width)
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

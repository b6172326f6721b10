"""Triton kernels that work on logits: drawing a token, and log-probabilities with their gradient.

Logits are the largest tensor there is, so each is read once a pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_CHUNK = 4096


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """``state.draw``, reading the logits once."""
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

"""What a layer does besides its matrix products, in plain PyTorch. ``kernels`` has the same functions for a GPU.

x is what the layers have added up so far, in float32: rounding it after every layer is most of what sampler and trainer
would otherwise disagree about in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# For so many tokens at a time the whole vocabulary is looked at: their scores are the largest tensor there is.
SCORED_AT_ONCE = 2048


def add_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, and its RMS norm in the precision of the weight."""
    x = x if added is None else x + added
    return x, F.rms_norm(x, x.shape[-1:], weight.float(), eps).to(weight.dtype)


def rotate(qkv: Tensor, kv_heads: int, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from all heads (…, n + 2m, d), queries and keys rotated to their positions."""
    heads = qkv.shape[-2] - 2 * kv_heads
    qk, v = qkv.split((heads + kv_heads, kv_heads), -2)
    low, high = qk.chunk(2, -1)
    qk = qk * cos[positions].unsqueeze(-2) + torch.cat((-high, low), -1) * sin[positions].unsqueeze(-2)
    q, k = qk.split((heads, kv_heads), -2)
    return q, k, v


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def logprobs(scores: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each row's target at its temperature, and the logarithm of what all were divided by."""
    scores = scores / temperatures[:, None]
    levels = scores.logsumexp(-1)
    return scores.gather(1, targets[:, None])[:, 0] - levels, levels


def slopes(
    scores: Tensor, levels: Tensor, targets: Tensor, temperatures: Tensor, to_logprobs: Tensor, dtype: torch.dtype
) -> Tensor:
    """Slopes of the scores, given those of ``logprobs``: one at the target less the probabilities. Writes over scores."""
    scores.div_(temperatures[:, None]).sub_(levels[:, None]).exp_().neg_()
    scores.scatter_add_(1, targets[:, None], torch.ones_like(scores[:, :1]))
    return scores.mul_((to_logprobs / temperatures)[:, None]).to(dtype)

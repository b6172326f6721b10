"""The operations of a layer besides its matrix products, in plain PyTorch. ``kernels`` has the same functions for a GPU.

x is the residual stream, in float32: rounding it after every layer would be most of the difference between sampler and
trainer in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Logits are computed for this many tokens at a time: they are the largest tensor there is.
LOGITS_CHUNK = 2048


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
    """The log-probability of each row's target at its temperature, and each row's log-sum-exp."""
    scores = scores / temperatures[:, None]
    lse = scores.logsumexp(-1)
    return scores.gather(1, targets[:, None])[:, 0] - lse, lse


def logit_gradients(
    scores: Tensor, lse: Tensor, targets: Tensor, temperatures: Tensor, to_logprobs: Tensor, dtype: torch.dtype
) -> Tensor:
    """The gradient of the logits, given that of ``logprobs``: one at the target less the probabilities. Overwrites them."""
    scores.div_(temperatures[:, None]).sub_(lse[:, None]).exp_().neg_()
    scores.scatter_add_(1, targets[:, None], torch.ones_like(scores[:, :1]))
    return scores.mul_((to_logprobs / temperatures)[:, None]).to(dtype)

"""The operations of a forward pass in plain PyTorch. ``kernels`` has the same functions for a GPU.

x is the residual stream, in float32: rounding it after every layer would be most of the difference between sampler and
trainer in bfloat16.

Matrix products on a CPU are done by oneDNN, with weights packed beforehand into the layout that its kernels read
(``Packed``). For the few rows of a decoding step this is twice as fast as PyTorch's default, which packs them in every
call; for long prompts and in training it is 1.3 to 1.6 times as fast (``benchmarks/cpu_products.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# Logits are computed for this many tokens at a time, as they are the largest tensor there is; on a CPU fewer are as quick.
LOGITS_CHUNK, CPU_LOGITS_CHUNK = 2048, 256

# The layout of packed weights is optimized for about this many rows, and good for one row and for a thousand.
_PACKED_ROWS = 64

# A packed copy takes additional memory, so only small models are packed.
_MAX_PACKED_BYTES = 2**31


def for_device(device: torch.device) -> Any:
    """The module with these operations for a device."""
    if device.type != "cuda":
        return sys.modules[__name__]
    from peergrad.engines.local.model import kernels

    return kernels


def add_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, and its RMS norm in the precision of the weight."""
    x = x.float() if added is None else x + added
    return x, F.rms_norm(x, x.shape[-1:], weight.float(), eps).to(weight.dtype)


def rotate(qkv: Tensor, kv_heads: int, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from all heads (t, n + 2m, d), queries and keys rotated to their positions."""
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


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token per row by its uniform number; temperature 0 takes the best. Returns ids and log-probabilities.

    By the inverse of the cumulative distribution: one random number a token, whatever the size of the vocabulary.
    """
    logprobs = torch.log_softmax(logits / temperatures.clamp(min=1e-6)[:, None], -1)
    mass = logprobs.exp().cumsum(-1)
    ids = torch.searchsorted(mass, uniforms[:, None] * mass[:, -1:], right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    ids = torch.where(temperatures > 0, ids, logits.argmax(-1))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


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


def cached_attention(
    rows: slice | Tensor, positions: Tensor, seen: int, lengths: Sequence[int], windows: Sequence[int | None]
) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """Attention of new tokens to keys and values of rows (see ``KVCache.attend``), with all padded to the longest row."""
    b, longest = len(lengths), max(lengths)
    places = None
    if len(positions) < b * longest:
        packed = np.concatenate([row * longest + np.arange(length) for row, length in enumerate(lengths)])
        places = torch.from_numpy(packed).to(positions.device)

    def padded(x: Tensor) -> Tensor:
        if places is not None:
            x = x.new_zeros(b * longest, *x.shape[1:]).index_copy_(0, places, x)
        return x.view(b, longest, *x.shape[1:])

    age = padded(positions)[:, None, :, None] - torch.arange(seen, device=positions.device)  # (b, 1, longest, seen)
    masks = {w: age >= 0 if w is None else (age >= 0) & (age < w) for w in set(windows)}

    def read(layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        (_, n, d), m = q.shape, keys.shape[1]
        # The n/m query heads that share a key head are folded into the query length, so keys are not repeated.
        q = padded(q).view(b, longest, m, n // m, d).permute(0, 2, 3, 1, 4).reshape(b, m, n // m * longest, d)
        folded = masks[windows[layer]].repeat(1, 1, n // m, 1)
        y = F.scaled_dot_product_attention(q, keys[rows, :, :seen], values[rows, :, :seen], attn_mask=folded)
        y = y.view(b, m, n // m, longest, d).permute(0, 3, 1, 2, 4).reshape(b * longest, n * d)
        return y if places is None else y[places]

    return read


def can_pack(weights: list[Tensor]) -> bool:
    """Whether oneDNN can pack these weights, and they are small enough."""
    # The operators belong to PyTorch's compiler and are not public, so they may be missing.
    available = torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    supported = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    return available and supported and sum(weight.nbytes for weight in weights) <= _MAX_PACKED_BYTES


class Packed:
    """A frozen matrix in oneDNN's layout, from which it can be had back exactly: nobody need keep it otherwise.

    Its product is differentiable with respect to the other factor.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = _pack(weight)
        self._transposed: Tensor | None = None

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x · weightᵀ + bias."""
        return _PackedProduct.apply(x, bias, self)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    def backward(self, grad: Tensor) -> Tensor:
        if self._transposed is None:  # only training needs it
            self._transposed = _pack(self._packed.to_dense().T.contiguous())
        return torch.ops.mkldnn._linear_pointwise(grad, self._transposed, None, "none", [], "")

    def with_added(self, down: Tensor, up: Tensor) -> Packed:
        """The matrix with an adapter's product added, for sampling: one multiplication instead of three."""
        return Packed(self._packed.to_dense().addmm_(up, down))


class _PackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, matrix: Packed) -> Tensor:
        ctx.matrix = matrix
        return matrix.forward(x, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.matrix.backward(grads[0].contiguous()), None, None


def _pack(weight: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)

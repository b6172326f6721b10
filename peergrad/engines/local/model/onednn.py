"""Matrix products on a CPU by oneDNN, with weights packed beforehand the way its kernels read them.

For the few rows of a token drawn for every debate this is twice as fast as PyTorch's default, which arranges the weights
anew in every call; for long prompts and in training still 1.3 to 1.6 times (``benchmarks/cpu_products.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# The layout is chosen for about this many rows; what is best for it is good for one row and for a thousand.
_ROWS = 64

# A packed copy is memory on top: it is for models that are small enough not to notice.
_MOST_BYTES = 2**31


def worth_packing(weights: list[Tensor]) -> bool:
    """Whether these weights can be packed and should be."""
    right_kind = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    there = torch.backends.mkldnn.is_available() and _has_operators()
    return right_kind and there and sum(weight.nbytes for weight in weights) <= _MOST_BYTES


class Packed:
    """A frozen matrix, packed; differentiable with respect to what it is multiplied with."""

    def __init__(self, weight: Tensor, *, trained: bool = True) -> None:
        self._weight = weight if trained else None
        self._there = _pack(weight)
        self._back: Tensor | None = None

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x · weightᵀ + bias."""
        return _Product.apply(x, bias, self)

    def there(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return _multiply(x, self._there, bias)

    def back(self, grad: Tensor) -> Tensor:
        if self._back is None:  # only training goes this way
            assert self._weight is not None
            self._back = _pack(self._weight.T.contiguous())
        return _multiply(grad, self._back, None)

    def with_added(self, down: Tensor, up: Tensor) -> Packed:
        """The matrix with an adapter's product added, for sampling: one multiplication instead of three."""
        assert self._weight is not None
        return Packed(torch.addmm(self._weight, up, down), trained=False)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, matrix: Packed) -> Tensor:
        ctx.matrix = matrix
        return matrix.there(x, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.matrix.back(grads[0].contiguous()), None, None


def _has_operators() -> bool:
    # They belong to PyTorch's compiler, which promises them to nobody; without them the default is used.
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))


def _pack(weight: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.ops.mkldnn._linear_pointwise(x.reshape(-1, x.shape[-1]), packed, bias, "none", [], "")
    return y if x.dim() == 2 else y.view(*x.shape[:-1], -1)  # no view in training: the adapter is added in place

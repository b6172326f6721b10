"""An adapter below the matrices it adds to, while tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.forward import Adapter


@dataclass(frozen=True, eq=False)
class Stacked:
    """A matrix with an adapter's below it, so that one product is both: x · weightᵀ, and behind it x · downᵀ.

    With few rows a product takes as long as starting it. The base model's own matrix becomes a part of this one.
    """

    both: Tensor  # (outputs + inner, inputs)
    bias: Tensor | None  # with zeros for the adapter's part
    up: Tensor  # (outputs, inner)

    @staticmethod
    def on(weights: dict[str, Tensor], name: str, bias: Tensor | None, down: Tensor, up: Tensor) -> Stacked:
        both = torch.cat((weights[name], down))
        # ``data``: writing the adapter's part is no change of the weights, which a gradient under way would refuse.
        weights[name] = both.data[: len(up)]
        return Stacked(both, bias if bias is None else F.pad(bias, (0, len(down))), up.clone())

    def fits(self, down: Tensor, up: Tensor) -> bool:
        return up.shape == self.up.shape and len(self.both) == len(up) + len(down)

    def take(self, down: Tensor, up: Tensor) -> None:
        self.both[len(up) :] = down
        self.up.copy_(up)

    def __call__(self, x: Tensor) -> Tensor:
        y, inner = F.linear(x, self.both, self.bias).split((len(self.up), len(self.both) - len(self.up)), -1)
        return y.addmm_(inner, self.up.T)


Added = list[dict[str, Stacked]]
"""For each layer, by name."""


def stacked(decoder: Decoder, adapter: Adapter) -> Added:
    """Room for adapters of this one's shape below the matrices they add to."""
    return [
        {name: Stacked.on(layer.weights, name, layer.bias if name == "qkv" else None, *pair) for name, pair in added.items()}
        for layer, added in zip(decoder.layers, adapter, strict=True)
    ]


def fits(added: Added, adapter: Adapter) -> bool:
    """Whether an adapter has the shape there is room for."""
    return [*map(set, added)] == [*map(set, adapter)] and all(
        buffers[name].fits(*pair) for buffers, layer in zip(added, adapter, strict=True) for name, pair in layer.items()
    )

"""The interface of a model to sampling and training.

Shapes: b rows, t new tokens a row, h hidden, n query heads, m key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# For each layer, by group of matrices: the matrices (down, up) of LoRA. A group that is not trained is missing.
Adapter = list[dict[str, tuple[Tensor, Tensor]]]

# (layer, query (…, n, d), key (…, m, d), value (…, m, d)) → (…, n·d)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    windows: tuple[int | None, ...]
    """Per layer, how many of the newest tokens, itself included, a token attends to; None: all."""


@dataclass(frozen=True)
class Matrix:
    """A matrix that LoRA can add to, by its Hugging Face name. Example: ``Matrix("model.layers.0.mlp.up_proj", 96, 64)``."""

    name: str
    outputs: int
    inputs: int

    @property
    def kind(self) -> str:
        """The last part of its name, the same in all layers."""
        return self.name.rpartition(".")[2]


# The matrices of a layer in groups: those of a group have the same input and are multiplied as one.
Groups = dict[str, tuple[Matrix, ...]]


class Forward(Protocol):
    """The forward pass of a frozen model. Sampling and training may call it at the same time, from different threads."""

    shape: Shape
    device: torch.device
    dtype: torch.dtype
    unembedding: Tensor  # (V, h): its product with a hidden state is, but for a constant, the logits
    matrices: Sequence[Groups]  # one for each layer
    other_modules: frozenset[str]  # last parts of the names of modules that are not among the matrices

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: Adapter | None) -> Tensor:
        """The last hidden state of each token: (…, h) for ids and positions of shape (…). See ``grow_rotations``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary (b, V), in float32; not differentiable."""
        ...

    def grow_rotations(self, positions: int) -> None:
        """Prepare for this many positions. Call it before they are used: a check would stall a GPU."""
        ...

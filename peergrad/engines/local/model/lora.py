"""LoRA weights: low-rank additions to the base model's matrices, in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest, read_json
from peergrad.engines.local.model.decoder import Adapter, Decoder, Forward, Groups, Layer, Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRules:
    """Settings of LoRA."""

    rank: int = 32
    """Rank of the additions."""
    alpha: float = 32.0
    """Their scale is alpha / rank."""
    targets: tuple[str, ...] = ()
    """The trained matrices by their Hugging Face names (q_proj, …); empty: all linear ones of the layers."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"rank: {self.rank} is not possible; give a whole number of at least 1")


class Lora:
    """A pair (down, up) of matrices for each target of each layer, by PEFT's names."""

    def __init__(self, decoder: Forward, rules: LoraRules, seed: int) -> None:
        self.rules = rules
        self._dtype, self._device = decoder.dtype, decoder.device
        self._kinds = kinds = _kinds(decoder, rules.targets)
        # The groups of each layer that have trained matrices.
        self._layers: list[Groups] = [
            {name: group for name, group in groups.items() if any(matrix.kind in kinds for matrix in group)}
            for groups in decoder.matrices
        ]
        trained = [matrix for matrix in _all_matrices(decoder) if matrix.kind in kinds]
        whole = bool(kinds & decoder.other_modules)  # other modules have such names, and PEFT must not add to them
        self._target_modules = sorted({matrix.name if whole else matrix.kind for matrix in trained})
        self.weights: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        for matrix in trained:
            bound = 1 / math.sqrt(matrix.inputs)
            down = torch.empty(rules.rank, matrix.inputs).uniform_(-bound, bound, generator=generator)
            for part, value in (("lora_A", down), ("lora_B", torch.zeros(matrix.outputs, rules.rank))):
                self.weights[_name(matrix, part)] = value.to(decoder.device).requires_grad_()

    @torch.no_grad()
    def snapshot(self) -> Adapter:
        """A copy of the additions in the form that the decoder takes: fused like its matrices, scaled, in its precision."""
        return [{name: self._fused(group) for name, group in groups.items()} for groups in self._layers]

    def trainable(self) -> Adapter:
        """A snapshot with gradients; ``unfused`` turns them into gradients of the weights."""
        return [{n: (down.requires_grad_(), up.requires_grad_()) for n, (down, up) in x.items()} for x in self.snapshot()]

    def _fused(self, group: tuple[Matrix, ...]) -> tuple[Tensor, Tensor]:
        """The matrices (down, up) of a group."""
        downs = [self.weights[_name(matrix, "lora_A")] for matrix in group if matrix.kind in self._kinds]
        ups = [
            self.weights[_name(matrix, "lora_B")] * (self.rules.alpha / self.rules.rank)
            if matrix.kind in self._kinds
            else torch.zeros(matrix.outputs, 0, device=self._device)
            for matrix in group
        ]
        return torch.cat(downs).to(self._dtype), torch.block_diag(*ups).to(self._dtype)

    def unfused(self, grads: Sequence[Tensor]) -> dict[str, Tensor]:
        """Gradients of the weights by name, from those of all matrices of ``trainable`` in their order."""
        scale, rank = self.rules.alpha / self.rules.rank, self.rules.rank
        by_name: dict[str, Tensor] = {}
        groups = [group for groups in self._layers for group in groups.values()]
        for group, down, up in zip(groups, grads[::2], grads[1::2], strict=True):
            row, column = 0, 0
            for matrix in group:
                if matrix.kind in self._kinds:
                    inner = slice(column, column + rank)
                    by_name[_name(matrix, "lora_A")] = down[inner]
                    by_name[_name(matrix, "lora_B")] = up[row : row + matrix.outputs, inner] * scale
                    column += rank
                row += matrix.outputs
        return {name: by_name[name] for name in self.weights}

    def name_of(self, index: int) -> str:
        """The names of the matrices that matrix ``index`` of ``trainable`` adds to."""
        groups = [group for groups in self._layers for group in groups.values()]
        names = [matrix.name for matrix in groups[index // 2] if matrix.kind in self._kinds]
        return ", ".join([names[0], *(name.rpartition(".")[2] for name in names[1:])])

    def config(self, base: str) -> str:
        """The file that tells PEFT what these weights are."""
        return json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base,
                "r": self.rules.rank,
                "lora_alpha": self.rules.alpha,
                "target_modules": self._target_modules,
                "lora_dropout": 0.0,
                "bias": "none",
                "inference_mode": True,
            },
            indent=2,
        )

    @staticmethod
    def from_folder(decoder: Forward, folder: Path) -> Lora:
        """The adapter of a PEFT folder, whatever its rank and targets."""
        loaded, config = _read(folder)
        kinds = {matrix.kind for matrix in _all_matrices(decoder) if _name(matrix, "lora_A") in loaded}
        if not kinds:
            raise UserError(f"{folder}: its adapter adds to no matrix of this model; was it trained on another one?")
        lora = Lora(decoder, LoraRules(rank=config["r"], alpha=config["lora_alpha"], targets=tuple(sorted(kinds))), seed=0)
        lora.load(folder)
        return lora

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load the weights of a saved adapter, which must have the same shape."""
        loaded, config = _read(folder)
        shape = ("alpha", config["lora_alpha"], self.rules.alpha), ("rank", config["r"], self.rules.rank)
        for name, theirs, ours in shape:
            if theirs != ours:
                raise UserError(f"{name}: the adapter in {folder} has {theirs:g}, not {ours:g}; give {name} {theirs:g}")
        if {name: value.shape for name, value in loaded.items()} != {n: w.shape for n, w in self.weights.items()}:
            raise UserError(f"{folder}: its adapter adds to other matrices than are trained here, or to another model's")
        for name, value in loaded.items():
            self.weights[name].copy_(value)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = read_json(folder / "adapter_config.json")
        loaded = load_file(str(folder / "adapter_model.safetensors"))
        config |= {"r": int(config["r"]), "lora_alpha": float(config["lora_alpha"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, SafetensorError) as error:
        raise UserError(f"{folder}: is no adapter that can be read ({error})") from None
    if config.get("use_rslora") or config.get("use_dora") or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise UserError(f"{folder}: its adapter is no plain LoRA with one rank for all; merge it into the model first")
    return loaded, config


def _kinds(decoder: Forward, targets: Sequence[str]) -> set[str]:
    """The kinds of matrices to train."""
    known = {matrix.kind: None for matrix in _all_matrices(decoder)}
    if not known:
        raise UserError("model: its layers have no linear matrices, so there is nothing for LoRA to add to")
    for target in targets:
        if target not in known:
            raise UserError(f"targets: no matrix of this model is called {target!r}; {nearest(target, tuple(known))}")
    return set(targets) or set(known)


def _all_matrices(decoder: Forward) -> list[Matrix]:
    return [matrix for groups in decoder.matrices for group in groups.values() for matrix in group]


def _name(matrix: Matrix, part: str) -> str:
    return f"base_model.model.{matrix.name}.{part}.weight"


@dataclass(frozen=True, eq=False)
class StackedLora:
    """A matrix with an adapter's down matrix stacked below it, so that one product computes both: for decoding on a GPU.

    With few rows a product takes as long as launching it. The base model's own matrix becomes a view of this one.
    """

    stacked: Tensor  # (outputs + inner, inputs)
    bias: Tensor | None  # with zeros for the adapter's part
    up: Tensor  # (outputs, inner)

    @staticmethod
    def on(layer: Layer, name: str, down: Tensor, up: Tensor) -> StackedLora:
        stacked = torch.cat((layer.weights[name], down))
        # ``data``: writing the adapter's part does not change the weights, which a backward pass in progress would refuse.
        layer.weights[name] = stacked.data[: len(up)]
        bias = layer.bias if name == "qkv" else None
        return StackedLora(stacked, bias if bias is None else F.pad(bias, (0, len(down))), up.clone())

    def set(self, down: Tensor, up: Tensor) -> None:
        self.stacked[len(up) :] = down
        self.up.copy_(up)

    def __call__(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        """The product, with the bias that it was made with."""
        y, inner = F.linear(x, self.stacked, self.bias).split((len(self.up), len(self.stacked) - len(self.up)), -1)
        return y.addmm_(inner, self.up.T)


def stack(decoder: Decoder, adapter: Adapter) -> list[dict[str, StackedLora]]:
    """Stack an adapter below the matrices it adds to."""
    return [
        {name: StackedLora.on(layer, name, *pair) for name, pair in lora.items()}
        for layer, lora in zip(decoder.layers, adapter, strict=True)
    ]


def stack_fits(stacked: list[dict[str, StackedLora]], adapter: Adapter) -> bool:
    """Whether an adapter has the same matrices as those that are stacked, of the same shapes."""
    shapes = [{name: (len(one.stacked), one.up.shape) for name, one in layer.items()} for layer in stacked]
    return shapes == [{name: (len(up) + len(down), up.shape) for name, (down, up) in layer.items()} for layer in adapter]

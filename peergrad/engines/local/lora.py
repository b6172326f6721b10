"""The weights that learn: low-rank additions to the base model's matrices, kept in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.engines.local.decoder import FUSED, Adapter, Decoder

_MODULES = {name.split(".")[-1]: name for names in FUSED.values() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRules:
    """What is trained."""

    rank: int = 32
    """Rank of the additions."""
    alpha: float = 32.0
    """Their scale is alpha / rank."""
    targets: tuple[str, ...] = tuple(_MODULES)
    """Which matrices get one, by their Hugging Face names."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"rank: {self.rank} is not possible; give a whole number of at least 1")
        if not self.targets:
            raise UserError(f"targets: nothing to train; give some of {', '.join(_MODULES)}")
        for target in self.targets:
            if target not in _MODULES:
                raise UserError(f"targets: no matrix is called {target!r}; {nearest(target, tuple(_MODULES))}")


class Lora:
    """A pair (down, up) of matrices for each target of each layer, by PEFT's names."""

    def __init__(self, decoder: Decoder, rules: LoraRules, seed: int) -> None:
        self.rules = rules
        generator = torch.Generator().manual_seed(seed)
        self._targets = {_MODULES[target] for target in rules.targets}
        self.weights: dict[str, Tensor] = {}
        self._dtype = decoder.dtype
        self._layers = decoder.shape.layers
        self._sizes = _sizes(decoder)
        for layer, module in self._pairs():
            outputs, inputs = self._sizes[module]
            bound = 1 / math.sqrt(inputs)
            down = torch.empty(rules.rank, inputs).uniform_(-bound, bound, generator=generator)
            for part, value in (("lora_A", down), ("lora_B", torch.zeros(outputs, rules.rank))):
                self.weights[_name(layer, module, part)] = value.to(decoder.device).requires_grad_()

    def adapter(self) -> Adapter:
        """The additions as the decoder takes them: fused like its matrices, scaled, in its precision; differentiable."""
        scale = self.rules.alpha / self.rules.rank
        adapter: Adapter = []
        for layer in range(self._layers):
            added: dict[str, tuple[Tensor, Tensor]] = {}
            for fused, modules in FUSED.items():
                if not self._targets & set(modules):
                    continue
                downs: list[Tensor] = []
                ups: list[Tensor] = []
                for module in modules:
                    if module in self._targets:
                        downs.append(self.weights[_name(layer, module, "lora_A")])
                        ups.append(self.weights[_name(layer, module, "lora_B")] * scale)
                    else:  # nothing is added to the outputs of a matrix that is not trained
                        ups.append(torch.zeros(self._sizes[module][0], 0, device=self._device))
                added[fused] = (torch.cat(downs).to(self._dtype), torch.block_diag(*ups).to(self._dtype))
            adapter.append(added)
        return adapter

    @torch.no_grad()
    def snapshot(self) -> Adapter:
        """The additions as they are now; what is learned later does not change them."""
        return [{name: (down.clone(), up.clone()) for name, (down, up) in layer.items()} for layer in self.adapter()]

    def config(self, base: str) -> str:
        """The file that tells PEFT what these weights are."""
        return json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base,
                "r": self.rules.rank,
                "lora_alpha": self.rules.alpha,
                "target_modules": sorted(self.rules.targets),
                "lora_dropout": 0.0,
                "bias": "none",
                "inference_mode": True,
            },
            indent=2,
        )

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take over the weights of a saved adapter, which must have the same shape."""
        from safetensors.torch import load_file

        loaded = load_file(str(folder / "adapter_model.safetensors"))
        alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
        if alpha != self.rules.alpha:
            raise UserError(f"{folder}: its adapter has alpha {alpha}, this run {self.rules.alpha}; use the same settings")
        if {name: value.shape for name, value in loaded.items()} != {n: w.shape for n, w in self.weights.items()}:
            raise UserError(f"{folder}: its adapter has another rank or other targets than this run; use the same settings")
        for name, value in loaded.items():
            self.weights[name].copy_(value)

    @property
    def _device(self) -> torch.device:
        return next(iter(self.weights.values())).device

    def _pairs(self) -> Iterator[tuple[int, str]]:
        for layer in range(self._layers):
            for modules in FUSED.values():
                yield from ((layer, module) for module in modules if module in self._targets)


def _sizes(decoder: Decoder) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each matrix."""
    shape, layer = decoder.shape, decoder.layers[0]
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    middle = layer.weights["down"].shape[1]
    outputs = {"qkv": (q, kv, kv), "o": (shape.hidden,), "gate_up": (middle, middle), "down": (shape.hidden,)}
    return {
        module: (size, layer.weights[fused].shape[1])
        for fused, modules in FUSED.items()
        for module, size in zip(modules, outputs[fused], strict=True)
    }


def _name(layer: int, module: str, part: str) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.{part}.weight"

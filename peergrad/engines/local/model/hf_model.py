"""The forward pass of any other architecture: transformers' own code with the engine's attention.

It is slower than ``Decoder`` but has the same interface. transformers calls attention by name, so a function of ours takes
its place, and LoRA is added by hooks on the linear modules. The arguments of a call (attention, adapter) are local to its
thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peergrad.debate.errors import UserError
from peergrad.engines.local.model.forward import Adapter, Attend, Groups, Shape
from peergrad.engines.local.model.memory import is_out_of_memory
from peergrad.engines.local.model.probe import probe, refuse

ATTENTION = "peergrad"


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments of one forward pass."""

    attend: Attend
    adapter: Adapter | None
    lead: torch.Size  # the shape of its ids


_current = threading.local()  # .call: _Call | None


class HFDecoder:
    """A frozen transformers model."""

    def __init__(self, model: Any) -> None:
        """Probe and self-check a model; one that can't be run exactly is refused."""
        from transformers import AttentionInterface

        from peergrad.engines.local.self_check import self_check

        AttentionInterface.register(ATTENTION, _attention)
        model.eval().requires_grad_(False)
        try:
            result = probe(model)
            self.shape: Shape = result.shape
            self.matrices: Sequence[Groups] = result.matrices
            self.other_modules: frozenset[str] = result.other_modules
            head = model.get_output_embeddings()
            self.unembedding: Tensor = head.weight.data
            self._bias: Tensor | None = head.bias
            self._core = model.get_decoder()
            self.scale = _logit_scale(model.config.get_text_config())
            self.device: torch.device = self.unembedding.device
            self.dtype: torch.dtype = self.unembedding.dtype
            for layer, groups in enumerate(self.matrices):
                for name, (matrix,) in groups.items():
                    model.get_submodule(matrix.name).register_forward_hook(_lora_hook(layer, name))
            model.set_attn_implementation(ATTENTION)
            self_check(self, model)
        except UserError:
            raise
        except Exception as error:  # the model's code may fail in any way
            if is_out_of_memory(error):
                raise
            refuse(model, f"a self-check failed ({type(error).__name__}: {str(error).strip().splitlines()[0][:200]})")

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: Adapter | None) -> Tensor:
        """The last hidden state of each token, scaled where the model scales its logits."""
        # Tokens beyond the context are never read, but tables of positions end there.
        positions = positions.clamp(max=self.shape.context - 1)
        _current.call = _Call(attend, adapter, ids.shape)
        try:
            out = self._core(input_ids=_rows(ids), position_ids=_rows(positions), use_cache=False)
        finally:
            _current.call = None
        hidden = out.last_hidden_state.view(*ids.shape, -1)
        return hidden if self.scale == 1.0 else hidden * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary (b, V), in float32; not differentiable."""
        if self.device.type == "cuda":
            scores = torch.mm(hidden, self.unembedding.T, out_dtype=torch.float32)
            return scores if self._bias is None else scores + self._bias
        return F.linear(hidden, self.unembedding, self._bias).float()

    def grow_rotations(self, positions: int) -> None:
        """Nothing to do: the model computes its own."""


def _rows(tokens: Tensor) -> Tensor:
    return tokens if tokens.dim() == 2 else tokens[None]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, scaling: float | None = None, **__: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, (b, heads, t, d) to (b, t, n, d), by the attention of the current call."""
    call: _Call = _current.call
    size = query.shape[-1]
    if scaling is not None and not math.isclose(scaling, size**-0.5):
        query = query * (scaling * size**0.5)
    q, k, v = (x.transpose(1, 2).reshape(*call.lead, x.shape[1], size) for x in (query, key, value))
    return call.attend(module.layer_idx, q, k, v).view(*query.transpose(1, 2).shape), None


def _lora_hook(layer: int, name: str) -> Callable[..., Tensor | None]:
    """A hook that adds the current call's adapter to a linear module's output."""

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        call: _Call | None = getattr(_current, "call", None)
        pair = call.adapter[layer].get(name) if call and call.adapter else None
        return output + F.linear(F.linear(inputs[0], pair[0]), pair[1]) if pair else None

    return hook


def _logit_scale(config: Any) -> float:
    """The factor of the logits, where a model has one; the self-check verifies it."""
    return float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))

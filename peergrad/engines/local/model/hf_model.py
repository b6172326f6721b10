"""The forward pass of any other architecture: transformers' own code, with attention handed to the engine.

Slower than ``Decoder``, which knows its models, but the same to everybody else: transformers calls attention by name, so
a function of ours takes its place, and LoRA is added by hooks on the linear modules. What a call works with (where
attention looks, which adapter) belongs to the thread that makes it.
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
from peergrad.engines.local.model.memory import ran_out
from peergrad.engines.local.model.probe import refuse, survey

ATTENTION = "peergrad"


@dataclass(frozen=True, eq=False)
class _Call:
    """What one forward pass works with."""

    attend: Attend
    adapter: Adapter | None
    lead: torch.Size  # the shape of its ids


_current = threading.local()  # .call: _Call | None


class ForeignDecoder:
    """A transformers model, frozen, kept as it is."""

    def __init__(self, model: Any) -> None:
        """Take over a model after looking at it closely; one that can't be run exactly is refused."""
        from transformers import AttentionInterface

        from peergrad.engines.local.self_check import trial

        AttentionInterface.register(ATTENTION, _attention)
        model.eval().requires_grad_(False)
        try:
            found = survey(model)
            self.shape: Shape = found.shape
            self.matrices: Sequence[Groups] = found.matrices
            self.elsewhere: frozenset[str] = found.elsewhere
            head = model.get_output_embeddings()
            self.unembedding: Tensor = head.weight.data
            self._bias: Tensor | None = head.bias
            self._core = model.get_decoder()
            self.scale = _logit_scale(model.config.get_text_config())
            self.device: torch.device = self.unembedding.device
            self.dtype: torch.dtype = self.unembedding.dtype
            for layer, groups in enumerate(self.matrices):
                for name, (matrix,) in groups.items():
                    model.get_submodule(matrix.name).register_forward_hook(_adding(layer, name))
            model.set_attn_implementation(ATTENTION)
            trial(self, model)
        except UserError:
            raise
        except Exception as error:  # code we have not seen, which may fail in any way
            if ran_out(error):
                raise
            refuse(model, f"a trial failed ({type(error).__name__}: {str(error).strip().splitlines()[0][:200]})")

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: Adapter | None) -> Tensor:
        """The last hidden state of each token, scaled where the model scales its logits."""
        # Beyond the context there are only tokens nobody reads, but tables of positions end there.
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
        """Nothing to be done: the model makes its own as it goes."""


def _rows(tokens: Tensor) -> Tensor:
    return tokens if tokens.dim() == 2 else tokens[None]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, scaling: float | None = None, **__: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, (b, heads, t, d) to (b, t, n, d), by whatever the current call attends with."""
    call: _Call = _current.call
    size = query.shape[-1]
    if scaling is not None and not math.isclose(scaling, size**-0.5):
        query = query * (scaling * size**0.5)
    q, k, v = (x.transpose(1, 2).reshape(*call.lead, x.shape[1], size) for x in (query, key, value))
    return call.attend(module.layer_idx, q, k, v).view(*query.transpose(1, 2).shape), None


def _adding(layer: int, name: str) -> Callable[..., Tensor | None]:
    """A hook that adds what the current call's adapter adds to a linear module's output."""

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        call: _Call | None = getattr(_current, "call", None)
        pair = call.adapter[layer].get(name) if call and call.adapter else None
        return output + F.linear(F.linear(inputs[0], pair[0]), pair[1]) if pair else None

    return hook


def _logit_scale(config: Any) -> float:
    """What logits are multiplied by, for the families that do it; whether it is right the trial shows."""
    return float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))

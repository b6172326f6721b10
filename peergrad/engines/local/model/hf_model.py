"""Models of transformers: loading them, and the forward pass of those that ``Decoder`` does not run.

``HFDecoder`` is slower than ``Decoder`` but has the same interface. transformers calls attention by name, so a function of
ours takes its place, and LoRA is added by hooks on the linear modules. The arguments of a call are local to its thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peergrad.debate.errors import UserError
from peergrad.engines.local.memory import is_out_of_memory
from peergrad.engines.local.model.decoder import Adapter, Attend, Decoder, Forward, Groups, Shape
from peergrad.engines.local.model.probe import ATTENTION, probe, refuse, self_check
from peergrad.engines.shared.chat import first_line


def load(folder: Path, device: str, dtype: torch.dtype) -> Forward:
    """Load a Hugging Face folder: into our own forward pass if it can run the architecture, else with transformers' code."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it loads in a second; what takes long is told by ``models``
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no causal model of this type, files missing or damaged, …: each raises in its own way
        raise UserError(
            f"model: transformers can't load {str(folder)!r} as a causal language model ({first_line(error)})"
        ) from None
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # no such device, or none of them here
        if is_out_of_memory(error):
            raise
        raise UserError(f"device: {device!r} can't be used ({first_line(error)}); give cpu, or leave it out") from None
    return forward(model)


def forward(model: Any) -> Forward:
    """The forward pass of a transformers model, which must not be used otherwise any more."""
    return Decoder(model) if Decoder.runs(model) else HFDecoder(model)


_current = threading.local()  # .attend and .adapter: the arguments of the forward pass that runs in this thread


class HFDecoder:
    """A frozen transformers model."""

    def __init__(self, model: Any) -> None:
        """Probe and self-check a model; one that can't be run exactly is refused."""
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, _attention)
        model.eval().requires_grad_(False)
        try:
            shape, matrices, other_modules = probe(model)
            self.shape: Shape = shape
            self.matrices: Sequence[Groups] = matrices
            self.other_modules: frozenset[str] = other_modules
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
        _current.attend, _current.adapter = attend, adapter
        try:
            out = self._core(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        finally:
            _current.attend = _current.adapter = None
        hidden = out.last_hidden_state[0]
        return hidden if self.scale == 1.0 else hidden * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        if self.device.type == "cuda":
            scores = torch.mm(hidden, self.unembedding.T, out_dtype=torch.float32)
            return scores if self._bias is None else scores + self._bias
        return F.linear(hidden, self.unembedding, self._bias).float()

    def grow_rotations(self, positions: int) -> None:
        """Nothing to do: the model computes its own."""


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, scaling: float | None = None, **__: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, (1, heads, t, d) to (1, t, n, d), by the attention of the current call."""
    size = query.shape[-1]
    if scaling is not None and not math.isclose(scaling, size**-0.5):
        query = query * (scaling * size**0.5)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return _current.attend(module.layer_idx, q, k, v).view(1, *q.shape), None


def _lora_hook(layer: int, name: str) -> Callable[..., Tensor | None]:
    """A hook that adds the current call's adapter to a linear module's output."""

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        adapter: Adapter | None = getattr(_current, "adapter", None)
        pair = adapter[layer].get(name) if adapter else None
        return output + F.linear(F.linear(inputs[0], pair[0]), pair[1]) if pair else None

    return hook


def _logit_scale(config: Any) -> float:
    """The factor of the logits, where a model has one; the self-check verifies it."""
    return float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))

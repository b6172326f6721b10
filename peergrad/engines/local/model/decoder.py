"""The forward pass of Llama-like models, written once for sampling and for training.

Shapes: b rows, t new tokens a row, h hidden, n query heads, m key/value heads, d head size, s cached positions.
Weights with the same input are fused (query, key and value; gate and up), so a layer is four matrix products.
The caller supplies attention: to a cache of keys and values when sampling, to packed sequences when training.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.debate.errors import UserError
from peergrad.engines.local.model import ops
from peergrad.engines.local.model.forward import Adapter, Attend, Groups, Matrix, Shape
from peergrad.engines.local.model.onednn import Packed, worth_packing

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# The matrices of a layer by the names Hugging Face and PEFT know them by, in the order they are fused.
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_UNBIASED = [name for fused, names in FUSED.items() if fused != "qkv" for name in names]

# Rotations that do not depend on the length of the text.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; biases and per-head norms only where the architecture has them."""

    weights: dict[str, Tensor]
    bias: Tensor | None
    before_attention: Tensor
    before_mlp: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    packed: Mapping[str, Packed]


class Decoder:
    """A model's weights, frozen, and its forward pass."""

    def __init__(self, model: Any) -> None:
        """Take the weights of a transformers model, and empty it layer by layer so that there is one copy of each."""
        if not Decoder.runs(model):
            raise UserError(f"model: {type(model).__name__} is not built like {', '.join(ARCHITECTURES)}; use HFDecoder")
        config = model.config
        heads = config.num_attention_heads
        self.shape = Shape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_size=_head_size(config),
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
            windows=(None,) * config.num_hidden_layers,
        )
        self.eps: float = config.rms_norm_eps
        core = model.model
        self.embedding: Tensor = core.embed_tokens.weight.data
        self.unembedding: Tensor = model.lm_head.weight.data
        self.last_norm: Tensor = core.norm.weight.data
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self._ops: Any = ops
        if self.device.type == "cuda":
            from peergrad.engines.local.model import kernels

            self._ops = kernels
        self._growing = threading.Lock()  # sampling and training run at the same time
        rotary = core.rotary_emb
        self._frequencies = rotary.inv_freq.float().to(self.device)
        self._rotary_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self.cos, self.sin = self._rotations(256)
        self.layers: list[Layer] = []
        for layer in core.layers:
            self.layers.append(_fused_layer(layer))
            layer.to("meta")
        weights = [weight for layer in self.layers for weight in layer.weights.values()]
        self._head: Packed | None = None
        if worth_packing([*weights, self.unembedding]):
            self._head = Packed(self.unembedding)
            packed = [{name: Packed(weight) for name, weight in layer.weights.items()} for layer in self.layers]
            self.layers = [replace(layer, packed=some) for layer, some in zip(self.layers, packed, strict=True)]
        self.matrices: Sequence[Groups] = [self._matrices(index) for index in range(self.shape.layers)]
        self.other_modules: frozenset[str] = frozenset()

    @staticmethod
    def runs(model: Any) -> bool:
        """Whether a transformers model is built as this forward pass expects."""
        config, name = model.config, type(model).__name__
        if name not in ARCHITECTURES or config.hidden_act != "silu" or model.lm_head.bias is not None:
            return False
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            return False
        rotary = model.model.rotary_emb
        if (config.rope_parameters or {}).get("rope_type", "default") not in _ROTATIONS:
            return False
        size = _head_size(config)
        if 2 * len(rotary.inv_freq) != size or (model.device.type == "cuda" and size & (size - 1)):
            return False  # the GPU's kernels want a power of two
        biased = [name for name in _UNBIASED if model.model.layers[0].get_submodule(name).bias is not None]
        return not biased

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: Adapter | None) -> Tensor:
        """The last hidden state of each token: (…, h) for ids and positions of shape (…). See ``grow_rotations``."""
        shape = self.shape
        x, added = F.embedding(ids, self.embedding).float(), None
        for index, layer in enumerate(self.layers):
            lora = adapter[index] if adapter else {}
            x, y = self._ops.add_norm(x, added, layer.before_attention, self.eps)
            qkv = _times(y, layer, "qkv", lora, layer.bias).unflatten(-1, (-1, shape.head_size))
            if layer.query_norm is not None and layer.key_norm is not None:
                q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), -2)
                q = F.rms_norm(q, (shape.head_size,), layer.query_norm, self.eps)
                k = F.rms_norm(k, (shape.head_size,), layer.key_norm, self.eps)
                qkv = torch.cat((q, k, v), -2)
            q, k, v = self._ops.rotate(qkv, shape.kv_heads, self.cos, self.sin, positions)
            added = _times(attend(index, q, k, v), layer, "o", lora)
            x, y = self._ops.add_norm(x, added, layer.before_mlp, self.eps)
            added = _times(self._ops.swiglu(_times(y, layer, "gate_up", lora)), layer, "down", lora)
        return self._ops.add_norm(x, added, self.last_norm, self.eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary (b, V), in float32; not differentiable."""
        if self.device.type == "cuda":  # sums are kept in float32 rather than rounded to bfloat16 and back
            return torch.mm(hidden, self.unembedding.T, out_dtype=torch.float32)
        return F.linear(hidden, self.unembedding) if self._head is None else self._head(hidden)

    def merged(self, adapter: Adapter) -> Any:
        """The adapter in the form to sample with: where weights are packed, packed copies with the adapter added."""
        if self._head is None:
            return adapter
        return [
            {name: layer.packed[name].with_added(*pair) for name, pair in some.items()}
            for layer, some in zip(self.layers, adapter, strict=True)
        ]

    def grow_rotations(self, positions: int) -> None:
        """Compute rotations for this many positions. Call it before they are used: a check would stall a GPU."""
        with self._growing:
            if positions > len(self.cos):
                self.cos, self.sin = self._rotations(max(positions, 2 * len(self.cos)))

    def _matrices(self, layer: int) -> Groups:
        shape, weights = self.shape, self.layers[layer].weights
        q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        middle = weights["down"].shape[1]
        outputs = {"qkv": (q, kv, kv), "o": (shape.hidden,), "gate_up": (middle, middle), "down": (shape.hidden,)}
        return {
            fused: tuple(
                Matrix(f"model.layers.{layer}.{name}", size, weights[fused].shape[1])
                for name, size in zip(names, outputs[fused], strict=True)
            )
            for fused, names in FUSED.items()
        }

    def _rotations(self, positions: int) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(positions, device=self.device).float(), self._frequencies)
        angles = torch.cat((angles, angles), -1)
        return tuple((f(angles) * self._rotary_scale).to(self.dtype) for f in (torch.cos, torch.sin))  # type: ignore[return-value]


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _fused_layer(layer: Any) -> Layer:
    modules = {name: layer.get_submodule(name) for names in FUSED.values() for name in names}
    weights = {
        fused: torch.cat([modules[name].weight.data for name in names]) if len(names) > 1 else modules[names[0]].weight.data
        for fused, names in FUSED.items()
    }
    biases = [modules[name].bias for name in FUSED["qkv"]]
    norms = [getattr(getattr(layer.self_attn, name, None), "weight", None) for name in ("q_norm", "k_norm")]
    return Layer(
        weights=weights,
        bias=None if biases[0] is None else torch.cat([bias.data for bias in biases]),
        before_attention=layer.input_layernorm.weight.data,
        before_mlp=layer.post_attention_layernorm.weight.data,
        query_norm=None if norms[0] is None else norms[0].data,
        key_norm=None if norms[1] is None else norms[1].data,
        packed={},
    )


def _times(x: Tensor, layer: Layer, name: str, lora: Mapping[str, Any], bias: Tensor | None = None) -> Tensor:
    packed, added = layer.packed.get(name), lora.get(name)
    if isinstance(added, Packed):
        return added(x, bias)
    if packed is not None:
        return _add(packed(x, bias), x, added)
    weight = layer.weights[name]
    return F.linear(x, weight, bias) if added is None else _Product.apply(x, weight, bias, *added)


class _Product(torch.autograd.Function):
    """A product with LoRA, added in place in both directions: one pass less over large tensors each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        inner = F.linear(x, down).flatten(0, -2)
        ctx.save_for_backward(x, weight, down, up, inner)
        y = F.linear(x, weight, bias)
        y.flatten(0, -2).addmm_(inner, up.T)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, down, up, inner = ctx.saved_tensors
        x, grad = x.flatten(0, -2), grads[0].flatten(0, -2)
        to_inner = grad @ up
        to_x = (grad @ weight).addmm_(to_inner, down).view(*grads[0].shape[:-1], -1) if ctx.needs_input_grad[0] else None
        return to_x, None, None, to_inner.T @ x, grad.T @ inner


def _add(y: Tensor, x: Tensor, added: tuple[Tensor, Tensor] | None) -> Tensor:
    if added is not None:
        down, up = added
        y.flatten(0, -2).addmm_(F.linear(x, down).flatten(0, -2), up.T)  # in place: one pass over y less
    return y

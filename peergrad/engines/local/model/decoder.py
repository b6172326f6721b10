"""The forward pass of a model: its interface, and our own for Llama-like models, the same for sampling and for training.

All tokens of a call are packed end to end. The caller supplies attention: to a cache of keys and values when sampling, to
packed sequences when training. Weights with the same input are fused (query, key and value; gate and up), so a layer is four
matrix products.

Shapes: t tokens, h hidden, n query heads, m key/value heads, d head size, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local.model import ops
from peergrad.engines.local.model.ops import Packed, can_pack

# For each layer, by group of matrices: the matrices (down, up) of LoRA. A group that is not trained is missing.
Adapter = list[dict[str, tuple[Tensor, Tensor]]]

# (layer, query (t, n, d), key (t, m, d), value (t, m, d)) → (t, n·d)
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
        """The last hidden state (t, h) of tokens at positions (t). See ``grow_rotations``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary (t, V), in float32; not differentiable."""
        ...

    def grow_rotations(self, positions: int) -> None:
        """Prepare for this many positions. Call it before they are used: a check would stall a GPU."""
        ...


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
    packed: dict[str, Packed] = field(default_factory=dict[str, Packed])


# (layer, its weights, queries, keys and values (t, n + 2m, d)) → (t, n·d)
Mix = Callable[[int, Layer, Tensor], Tensor]


class Decoder:
    """A model's weights, frozen, and its forward pass."""

    def __init__(self, model: Any) -> None:
        """Take the weights of a transformers model, and empty it layer by layer so that there is one copy of each."""
        config = model.config
        self.shape = Shape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
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
        self.last_norm: Tensor = core.norm.weight.data.clone()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self._ops = ops.for_device(self.device)
        self._growing = threading.Lock()  # sampling and training run at the same time
        rotary = core.rotary_emb
        self._frequencies = rotary.inv_freq.float().to(self.device)
        self._rotary_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self.cos, self.sin = self._rotations(256)
        fused = [_fuse(layer, index) for index, layer in enumerate(core.layers)]
        self.layers = [layer for layer, _ in fused]
        self.matrices: Sequence[Groups] = [matrices for _, matrices in fused]
        weights = [weight for layer in self.layers for weight in layer.weights.values()]
        self._head: Packed | None = None
        if can_pack([*weights, self.unembedding]):
            self._head = Packed(self.unembedding)
            # Copies: all weights may be parts of one mapped file, which is in memory as long as any of them is in use.
            tied = self.unembedding.data_ptr() == self.embedding.data_ptr()
            self.embedding = self.embedding.clone()
            self.unembedding = self.embedding if tied else self.unembedding.clone()
            for layer in self.layers:
                layer.packed.update({name: Packed(layer.weights.pop(name)) for name in tuple(layer.weights)})
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
        return all(model.model.layers[0].get_submodule(name).bias is None for name in _UNBIASED)

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: Adapter | None) -> Tensor:
        shape = self.shape

        def mix(index: int, layer: Layer, qkv: Tensor) -> Tensor:
            if layer.query_norm is not None and layer.key_norm is not None:
                q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), -2)
                q = F.rms_norm(q, (shape.head_size,), layer.query_norm, self.eps)
                k = F.rms_norm(k, (shape.head_size,), layer.key_norm, self.eps)
                qkv = torch.cat((q, k, v), -2)
            return attend(index, *self._ops.rotate(qkv, shape.kv_heads, self.cos, self.sin, positions))

        return self.run(ids, mix, adapter)

    def run(self, ids: Tensor, mix: Mix, adapter: Sequence[Mapping[str, Any]] | None) -> Tensor:
        """``hidden``, with a function that does all between the first and the second matrix product of a layer."""
        x, added = F.embedding(ids, self.embedding), None
        for index, layer in enumerate(self.layers):
            lora = adapter[index] if adapter else {}
            x, y = self._ops.add_norm(x, added, layer.before_attention, self.eps)
            qkv = _times(y, layer, "qkv", lora).unflatten(-1, (-1, self.shape.head_size))
            added = _times(mix(index, layer, qkv), layer, "o", lora)
            x, y = self._ops.add_norm(x, added, layer.before_mlp, self.eps)
            added = _times(self._ops.swiglu(_times(y, layer, "gate_up", lora)), layer, "down", lora)
        return self._ops.add_norm(x, added, self.last_norm, self.eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
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
        with self._growing:
            if positions > len(self.cos):
                self.cos, self.sin = self._rotations(max(positions, 2 * len(self.cos)))

    def _rotations(self, positions: int) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(positions, device=self.device).float(), self._frequencies)
        angles = torch.cat((angles, angles), -1)
        return tuple((f(angles) * self._rotary_scale).to(self.dtype) for f in (torch.cos, torch.sin))  # type: ignore[return-value]


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _fuse(layer: Any, index: int) -> tuple[Layer, Groups]:
    """The fused weights of a layer, and what they consist of. The layer is emptied."""
    weights: dict[str, Tensor] = {}
    matrices: Groups = {}
    for fused, names in FUSED.items():
        parts = [layer.get_submodule(name).weight.data for name in names]
        weights[fused] = torch.cat(parts) if len(parts) > 1 else parts[0]
        named = zip(names, parts, strict=True)
        matrices[fused] = tuple(Matrix(f"model.layers.{index}.{name}", *part.shape) for name, part in named)
    biases = [layer.get_submodule(name).bias for name in FUSED["qkv"]]
    norms = [getattr(getattr(layer.self_attn, name, None), "weight", None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (None if norm is None else norm.data.clone() for norm in norms)
    result = Layer(
        weights=weights,
        bias=None if biases[0] is None else torch.cat([bias.data for bias in biases]),
        before_attention=layer.input_layernorm.weight.data.clone(),
        before_mlp=layer.post_attention_layernorm.weight.data.clone(),
        query_norm=query_norm,
        key_norm=key_norm,
    )
    layer.to("meta")
    return result, matrices


def _times(x: Tensor, layer: Layer, name: str, lora: Mapping[str, Any]) -> Tensor:
    packed, added, bias = layer.packed.get(name), lora.get(name), layer.bias if name == "qkv" else None
    if added is not None and not isinstance(added, tuple):  # a product with both the matrix and what is added to it
        return added(x, bias)
    if packed is not None:
        y = packed(x, bias)
        return y if added is None else y.addmm_(F.linear(x, added[0]), added[1].T)  # in place: one pass over y less
    weight = layer.weights[name]
    return F.linear(x, weight, bias) if added is None else _LoraProduct.apply(x, weight, bias, *added)


class _LoraProduct(torch.autograd.Function):
    """A product with LoRA, added in place in both directions: one pass less over large tensors each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        inner = F.linear(x, down)
        ctx.save_for_backward(x, weight, down, up, inner)
        return F.linear(x, weight, bias).addmm_(inner, up.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (x, weight, down, up, inner) = grads, ctx.saved_tensors
        to_inner = grad @ up
        to_x = (grad @ weight).addmm_(to_inner, down) if ctx.needs_input_grad[0] else None
        return to_x, None, None, to_inner.T @ x, grad.T @ inner

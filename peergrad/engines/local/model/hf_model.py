"""The forward pass of transformers models that ``Decoder`` does not run: slower, with the same interface.

transformers calls attention by name, so a function of ours takes its place. LoRA is added by hooks on the linear modules.

No architecture is known here. ``_probe`` runs a model once, with a function in the place of attention that records how it is
called. ``_self_check`` compares its outputs with our attention and with its own. Models that the engine's caches and packed
sequences can't run exactly are refused.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peergrad.debate.errors import UserError
from peergrad.engines.base import first_line
from peergrad.engines.local.memory import is_out_of_memory
from peergrad.engines.local.model.decoder import Adapter, Attend, Groups, Matrix, Shape
from peergrad.engines.local.sample.cache import KVCache
from peergrad.engines.local.train.packing import Node, packed_attention

# The names of our attention functions in transformers.
_ATTENTION, _PROBE = "peergrad", "peergrad-probe"

# Arguments of attention functions that are not supported, and what they are.
_UNSUPPORTED = {"softcap": "softcapped scores", "s_aux": "sinks", "position_bias": "biases by position"}


# The self-check runs sequences of these lengths, and decodes the tokens at this position.
_LENGTHS, _START = (9, 6), 5

# The largest relative difference between two ways to compute the same.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}

# The arguments of the forward pass that runs in this thread: .attend and .adapter; and .calls and .context of a probe.
_current = threading.local()


class HFDecoder:
    """A frozen transformers model."""

    def __init__(self, model: Any) -> None:
        """Probe and self-check a model; one that can't be run exactly is refused."""
        from transformers import AttentionInterface

        AttentionInterface.register(_ATTENTION, _attention)
        model.eval().requires_grad_(False)
        try:
            shape, matrices, other_modules = _probe(model)
            self.shape: Shape = shape
            self.matrices: Sequence[Groups] = matrices
            self.other_modules: frozenset[str] = other_modules
            head = model.get_output_embeddings()
            self.unembedding: Tensor = head.weight.data
            self._bias: Tensor | None = head.bias
            self._core = model.get_decoder()
            config = model.config.get_text_config()
            # The factor of the logits, where a model has one; the self-check verifies it.
            self.scale = float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))
            self.device: torch.device = self.unembedding.device
            self.dtype: torch.dtype = self.unembedding.dtype
            for layer, groups in enumerate(self.matrices):
                for name, (matrix,) in groups.items():
                    model.get_submodule(matrix.name).register_forward_hook(_lora_hook(layer, name))
            model.set_attn_implementation(_ATTENTION)
            _self_check(self, model)
        except UserError:
            raise
        except Exception as error:  # the model's code may fail in any way
            if is_out_of_memory(error):
                raise
            _refuse(model, f"a self-check failed ({type(error).__name__}: {first_line(error)})")

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


@dataclass(frozen=True)
class _AttentionCall:
    """One call of attention."""

    module: nn.Module
    layer: int | None
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    window: int | None
    unsupported: str | None


def _refuse(model: Any, why: str) -> NoReturn:
    raise UserError(f"model: the local engine does not run {type(model).__name__}: {why}")


@torch.no_grad()
def _probe(model: Any) -> tuple[Shape, list[Groups], frozenset[str]]:
    """The shape, matrices and other modules of a model, as in ``Forward``."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_PROBE, _record_attention)
    AttentionMaskInterface.register(_PROBE, _record_mask)
    context = _context(model.config.get_text_config())
    model.set_attn_implementation(_PROBE)
    _current.calls, _current.context = [], context
    core = model.get_decoder()
    if core.config._attn_implementation == _PROBE:
        ids = torch.arange(4, device=model.device)[None]
        core(input_ids=ids, position_ids=ids, use_cache=False)
    calls: list[_AttentionCall] = _current.calls
    _check(model, calls)
    if not context:
        _refuse(model, "its config does not say max_position_embeddings")
    calls = sorted(calls, key=lambda call: call.layer or 0)
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        _refuse(model, f"its logits come from {type(head).__name__}, not from one matrix")
    first = calls[0]
    shape = Shape(
        layers=len(calls),
        hidden=head.in_features,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_size=first.head_size,
        vocabulary=head.out_features,
        context=context,
        windows=tuple(call.window for call in calls),
    )
    matrices = _matrices(model, [call.module for call in calls])
    names = {matrix.name for groups in matrices for group in groups.values() for matrix in group}
    other_modules = frozenset(name.rpartition(".")[2] for name, _ in model.named_modules() if name not in names)
    return shape, matrices, other_modules


def _check(model: Any, calls: list[_AttentionCall]) -> None:
    layers = model.config.get_text_config().num_hidden_layers
    if not calls:
        _refuse(model, "it has no attention, or attention that does not go through transformers' attention interface")
    if unsupported := next((call.unsupported for call in calls if call.unsupported), None):
        _refuse(model, f"its attention has {unsupported}")
    if lacking := set(range(layers)) - {call.layer for call in calls}:
        _refuse(model, f"{len(lacking)} of its {layers} layers are not attention but something else, such as recurrent")
    if len(calls) != layers:
        _refuse(model, f"its {layers} layers call attention {len(calls)} times")
    if other := next((call for call in calls if call.head_size != call.value_size), None):
        _refuse(model, f"its keys have size {other.head_size} and its values {other.value_size}")
    if len({(call.heads, call.kv_heads, call.head_size) for call in calls}) > 1:
        _refuse(model, "its layers have heads of different number or size")


def _record_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, None]:
    """An attention function that computes nothing and records how it was called."""
    unsupported = next((what for name, what in _UNSUPPORTED.items() if arguments.get(name) is not None), None)
    window: int | None = arguments.get("sliding_window")
    if attention_mask is not None:
        window = int(attention_mask.flatten()[0]) or None
        if attention_mask.shape != (1, 1, 1, 1) or (window or 0) < 0:
            unsupported = unsupported or "a mask that is neither causal nor a sliding window"
    layer = getattr(module, "layer_idx", None)
    kv_heads, head_size = key.shape[1], key.shape[3]
    _current.calls.append(
        _AttentionCall(module, layer, query.shape[1], kv_heads, head_size, value.shape[3], window, unsupported)
    )
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def _record_mask(*, mask_function: Callable[..., Any], device: Any = None, **_: Any) -> Tensor:
    """A mask of one number, the window: 0 for everything before a token, -1 for something else.

    The mask of a few tokens would not show a window of thousands, but the mask function can be called for any two positions.
    """
    context: int = _current.context
    positions = (context - 1, context // 2, context // 3)
    counts = [_visible(mask_function, position, context) for position in positions]
    window = counts[0]
    sliding = counts == [min(position + 1, window) for position in positions]
    number = -1 if not sliding else window if window < context else 0
    return torch.full((1, 1, 1, 1), number, device=device)


def _visible(mask_function: Callable[..., Any], position: int, context: int) -> int:
    """How many tokens are visible at a position, if they are the newest ones; else -1."""
    zero, to = torch.tensor(0), torch.arange(context)
    visible = torch.as_tensor(mask_function(zero, zero, torch.tensor(position), to)).expand(context)
    count = int(visible.sum())
    return count if bool(visible[position + 1 - count : position + 1].all()) and count else -1


def _context(config: Any) -> int:
    """The longest text for which rotations do not depend on its length; 0 if the config does not say."""
    context = getattr(config, "max_position_embeddings", None) or 0
    rotations = getattr(config, "rope_parameters", None) or {}
    for rotation in (rotations, *rotations.values()):  # one for all layers, or one for each kind of layer
        if isinstance(rotation, dict) and rotation.get("rope_type") == "longrope":
            context = min(context, rotation.get("original_max_position_embeddings") or context)
    return int(context)


def _matrices(model: Any, attentions: list[nn.Module]) -> list[Groups]:
    """All linear matrices of the layers that these attention modules belong to; with experts, of attention alone.

    Experts are stacked in one tensor, which LoRA does not support here, and PEFT confuses their names with other matrices'.
    """
    from transformers.pytorch_utils import Conv1D

    names = {module: name for name, module in model.named_modules()}
    experts = any(parameter.dim() == 3 for parameter in model.get_decoder().parameters())
    layers: list[Groups] = []
    for attention in attentions:
        parts = names[attention].split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            _refuse(model, f"its layers are not numbered (attention is called {names[attention]})")
        layer = ".".join(parts[: number + 1])
        groups: Groups = {}
        for name, module in model.get_submodule(layer).named_modules():
            if experts and not f"{layer}.{name}".startswith(names[attention]):
                continue
            if isinstance(module, nn.Linear):
                groups[name] = (Matrix(f"{layer}.{name}", module.out_features, module.in_features),)
            elif isinstance(module, Conv1D):  # a Linear that stores its weight the other way round
                groups[name] = (Matrix(f"{layer}.{name}", module.weight.shape[1], module.weight.shape[0]),)
        layers.append(groups)
    return layers


@torch.no_grad()
def _self_check(decoder: HFDecoder, model: Any) -> None:
    """Refuse a model whose outputs differ with our attention.

    It is run as in training, two sequences packed, and as in sampling, a prompt and then a token in two rows. That nothing
    but attention mixes tokens, such as a recurrence, is checked exactly: without attention a NaN stays at its token.
    """
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(decoder.shape.vocabulary, (n,), generator=generator).to(decoder.device) for n in _LENGTHS]
    if _mixes(decoder, model, texts[0]):
        _refuse(model, "something besides attention mixes its tokens, such as a recurrence")
    model.set_attn_implementation("eager")
    own = [model.get_decoder()(input_ids=text[None], use_cache=False).last_hidden_state[0] for text in texts]
    scores = [model(input_ids=text[None], use_cache=False).logits[0] for text in texts]
    model.set_attn_implementation(_ATTENTION)
    trees = [Node(index, 0, len(text)) for index, text in enumerate(texts)]
    positions = torch.cat([torch.arange(len(text), device=text.device) for text in texts])
    hidden = decoder.hidden(torch.cat(texts), positions, packed_attention(trees, decoder), None)
    if _differ(hidden, torch.cat(own) * decoder.scale, decoder.dtype):
        _refuse(model, "its attention does more than it says, or its positions are not those it is given")
    if _differ(decoder.logits(hidden), torch.cat(scores), decoder.dtype):
        _refuse(model, "its logits are not a product of its last hidden state with one matrix (capped, perhaps)")
    expected = torch.stack([hidden_T[_START] for hidden_T in own]) * decoder.scale
    if _differ(_as_in_sampling(decoder, texts), expected, decoder.dtype):
        _refuse(model, "it gives something else token by token than all at once")


def _mixes(decoder: HFDecoder, model: Any, text: Tensor) -> bool:
    """Whether a token changes others although attention returns zeros."""

    def taint(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        return embedded.index_fill(1, torch.tensor([_START], device=embedded.device), torch.nan)

    hook = model.get_input_embeddings().register_forward_hook(taint)
    try:
        positions = torch.arange(len(text), device=text.device)
        hidden = decoder.hidden(text, positions, lambda _, q, __, ___: torch.zeros_like(q).flatten(-2), None)
    finally:
        hook.remove()
    return hidden.isnan().any(-1).nonzero().flatten().tolist() != [_START]


def _as_in_sampling(decoder: HFDecoder, texts: list[Tensor]) -> Tensor:
    """The hidden states of the tokens at ``_START``, after what comes before them is in a cache."""
    cache, rows, device = KVCache(decoder, len(texts), 16), len(texts), decoder.device
    before, ids = torch.cat([text[:_START] for text in texts]), torch.stack([text[_START] for text in texts])
    positions = torch.arange(_START, device=device).repeat(rows)
    attend = cache.attend(torch.arange(rows, device=device), positions, _START, [_START] * rows)
    decoder.hidden(before, positions, attend, None)
    positions = torch.full((rows,), _START, device=device)
    return decoder.hidden(ids, positions, cache.attend(slice(rows), positions, _START + 1), None)


def _differ(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    difference = (actual.float() - expected.float()).norm() / expected.float().norm()
    return not difference <= _TOLERANCE[dtype]  # NaN differs

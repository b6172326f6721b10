"""What a transformers model is like inside, found by running it once on a few tokens instead of by knowing its kind.

Attention is watched as transformers calls it: which modules, how many heads, of what size, and what each may look at.
What the engine's caches and packed sequences could not do justice to is refused here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from peergrad.debate.errors import UserError
from peergrad.engines.local.model.forward import Groups, Matrix, Shape

SURVEY = "peergrad-survey"

# What attention functions are given for which there is no place here, and what to call it.
_BEYOND = {"softcap": "softcapped scores", "s_aux": "sinks", "position_bias": "biases by position"}


@dataclass(frozen=True)
class Survey:
    """The sizes of a model and the matrices of its layers, in the sense of ``Forward``."""

    shape: Shape
    matrices: list[Groups]
    elsewhere: frozenset[str]


@dataclass(frozen=True)
class _Seen:
    """One call of attention."""

    module: nn.Module
    layer: int | None
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    window: int | None
    beyond: str | None


_watched = threading.local()  # .calls: list[_Seen] and .context: int, while a survey runs in this thread


def refuse(model: Any, why: str) -> NoReturn:
    raise UserError(f"model: the local engine does not run {type(model).__name__}: {why}")


@torch.no_grad()
def survey(model: Any) -> Survey:
    """Look a model over, or refuse it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(SURVEY, _watch)
    AttentionMaskInterface.register(SURVEY, _watch_mask)
    context = _context(model.config.get_text_config())
    model.set_attn_implementation(SURVEY)
    _watched.calls, _watched.context = [], context
    core = model.get_decoder()
    if core.config._attn_implementation == SURVEY:
        ids = torch.arange(4, device=model.device)[None]
        core(input_ids=ids, position_ids=ids, use_cache=False)
    calls: list[_Seen] = _watched.calls
    _check(model, calls)
    if not context:
        refuse(model, "its config does not say max_position_embeddings")
    calls = sorted(calls, key=lambda call: call.layer or 0)
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        refuse(model, f"its logits come from {type(head).__name__}, not from one matrix")
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
    elsewhere = frozenset(name.rpartition(".")[2] for name, _ in model.named_modules() if name not in names)
    return Survey(shape, matrices, elsewhere)


def _check(model: Any, calls: list[_Seen]) -> None:
    layers = model.config.get_text_config().num_hidden_layers
    if not calls:
        refuse(model, "it has no attention, or attention that does not go through transformers' attention interface")
    if beyond := next((call.beyond for call in calls if call.beyond), None):
        refuse(model, f"its attention has {beyond}")
    if lacking := set(range(layers)) - {call.layer for call in calls}:
        refuse(model, f"{len(lacking)} of its {layers} layers are not attention but something else, such as recurrent")
    if len(calls) != layers:
        refuse(model, f"its {layers} layers call attention {len(calls)} times")
    if other := next((call for call in calls if call.head_size != call.value_size), None):
        refuse(model, f"its keys have size {other.head_size} and its values {other.value_size}")
    if len({(call.heads, call.kv_heads, call.head_size) for call in calls}) > 1:
        refuse(model, "its layers have heads of different number or size")


def _watch(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """An attention function that computes nothing and notes how it was called."""
    beyond = next((what for name, what in _BEYOND.items() if given.get(name) is not None), None)
    window: int | None = given.get("sliding_window")
    if attention_mask is not None:
        window = int(attention_mask.flatten()[0]) or None
        if attention_mask.shape != (1, 1, 1, 1) or (window or 0) < 0:
            beyond = beyond or "a mask that is neither causal nor a sliding window"
    layer = getattr(module, "layer_idx", None)
    kv_heads, head_size = key.shape[1], key.shape[3]
    _watched.calls.append(_Seen(module, layer, query.shape[1], kv_heads, head_size, value.shape[3], window, beyond))
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def _watch_mask(*, mask_function: Callable[..., Any], device: Any = None, **_: Any) -> Tensor:
    """A mask of one number, the window: 0 for everything before a token, -1 for something else.

    The true mask of a few tokens would not tell a window of thousands, but the function behind it can be asked about any two
    positions.
    """
    context: int = _watched.context
    places = (context - 1, context // 2, context // 3)
    counts = [_sees(mask_function, at, context) for at in places]
    window = counts[0]
    sliding = counts == [min(at + 1, window) for at in places]
    number = -1 if not sliding else window if window < context else 0
    return torch.full((1, 1, 1, 1), number, device=device)


def _sees(mask_function: Callable[..., Any], at: int, context: int) -> int:
    """How many tokens the one at this position sees, if they are it and those just before it; else -1."""
    zero, to = torch.tensor(0), torch.arange(context)
    sees = torch.as_tensor(mask_function(zero, zero, torch.tensor(at), to)).expand(context)
    count = int(sees.sum())
    return count if bool(sees[at + 1 - count : at + 1].all()) and count else -1


def _context(config: Any) -> int:
    """The longest text for which a token's rotation does not depend on what comes after it; 0 where it is not said."""
    context = getattr(config, "max_position_embeddings", None) or 0
    rotations = getattr(config, "rope_parameters", None) or {}
    for one in (rotations, *rotations.values()):  # one for all layers, or one for each kind of layer
        if isinstance(one, dict) and one.get("rope_type") == "longrope":
            context = min(context, one.get("original_max_position_embeddings") or context)
    return int(context)


def _matrices(model: Any, attentions: list[nn.Module]) -> list[Groups]:
    """All linear matrices of the layers that these attention modules belong to; with experts, of attention alone.

    Experts are stacked in one tensor, to which nothing is added here, and PEFT takes the names of other matrices for theirs.
    """
    from transformers.pytorch_utils import Conv1D

    names = {module: name for name, module in model.named_modules()}
    experts = any(parameter.dim() == 3 for parameter in model.get_decoder().parameters())
    found: list[Groups] = []
    for attention in attentions:
        parts = names[attention].split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            refuse(model, f"its layers are not numbered (attention is called {names[attention]})")
        layer = ".".join(parts[: number + 1])
        groups: Groups = {}
        for name, module in model.get_submodule(layer).named_modules():
            if experts and not f"{layer}.{name}".startswith(names[attention]):
                continue
            if isinstance(module, nn.Linear):
                groups[name] = (Matrix(f"{layer}.{name}", module.out_features, module.in_features),)
            elif isinstance(module, Conv1D):  # a Linear that stores its weight the other way round
                groups[name] = (Matrix(f"{layer}.{name}", module.weight.shape[1], module.weight.shape[0]),)
        found.append(groups)
    return found

"""Checks on a few tokens that a transformers model computes the same with our attention as with its own.

It is run as in training, two sequences packed, and as in sampling, a prompt and then a token in two rows. That nothing but
attention mixes tokens, such as a recurrence, is checked exactly: without attention a NaN stays at its token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from peergrad.engines.local.model.probe import refuse
from peergrad.engines.local.sample.batch_state import KVCache
from peergrad.engines.local.train.packing import Node, packed_attention

if TYPE_CHECKING:
    from peergrad.engines.local.model.hf_model import HFDecoder

_LENGTHS = (9, 6)
_START = 5

# The largest relative difference between two ways to compute the same.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


@torch.no_grad()
def self_check(decoder: HFDecoder, model: Any) -> None:
    """Refuse a model whose outputs differ with our attention."""
    from peergrad.engines.local.model.hf_model import ATTENTION

    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(decoder.shape.vocabulary, (n,), generator=generator).to(decoder.device) for n in _LENGTHS]
    if _mixes(decoder, model, texts[0]):
        refuse(model, "something besides attention mixes its tokens, such as a recurrence")
    model.set_attn_implementation("eager")
    own = [model.get_decoder()(input_ids=text[None], use_cache=False).last_hidden_state[0] for text in texts]
    scores = [model(input_ids=text[None], use_cache=False).logits[0] for text in texts]
    model.set_attn_implementation(ATTENTION)
    hidden = _as_in_training(decoder, texts)
    if _difference(hidden, torch.cat(own) * decoder.scale) > _TOLERANCE[decoder.dtype]:
        refuse(model, "its attention does more than it says, or its positions are not those it is given")
    if _difference(decoder.logits(hidden), torch.cat(scores)) > _TOLERANCE[decoder.dtype]:
        refuse(model, "its logits are not a product of its last hidden state with one matrix (capped, perhaps)")
    expected = torch.stack([hidden_T[_START] for hidden_T in own]) * decoder.scale
    if _difference(_as_in_sampling(decoder, texts), expected) > _TOLERANCE[decoder.dtype]:
        refuse(model, "it gives something else token by token than all at once")


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


def _as_in_training(decoder: HFDecoder, texts: list[Tensor]) -> Tensor:
    positions = torch.cat([torch.arange(len(text), device=text.device) for text in texts])
    trees = [Node(index, 0, len(text)) for index, text in enumerate(texts)]
    attend = packed_attention(trees, decoder)
    return decoder.hidden(torch.cat(texts), positions, attend, None)


def _as_in_sampling(decoder: HFDecoder, texts: list[Tensor]) -> Tensor:
    """The hidden states of the tokens at ``_START``, after what comes before them is in a cache."""
    cache, rows, device = KVCache(decoder, len(texts), 16), len(texts), decoder.device
    before, ids = torch.cat([text[:_START] for text in texts]), torch.stack([text[_START] for text in texts])
    positions = torch.arange(_START, device=device).repeat(rows)
    attend = cache.attend(torch.arange(rows, device=device), positions, _START, [_START] * rows)
    decoder.hidden(before, positions, attend, None)
    positions = torch.full((rows,), _START, device=device)
    return decoder.hidden(ids, positions, cache.attend(slice(rows), positions, _START + 1), None)


def _difference(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.float(), expected.float()
    difference = ((actual - expected).norm() / expected.norm()).item()
    return difference if difference == difference else float("inf")  # NaN

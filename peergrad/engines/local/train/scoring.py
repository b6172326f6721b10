"""How likely given tokens are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.model.forward import Adapter, Forward
from peergrad.engines.local.model.ops import LOGITS_CHUNK
from peergrad.engines.local.train.packed_attention import packed_attention
from peergrad.engines.local.train.prefix_tree import Node, micro_batches, prefix_trees
from peergrad.learn.datums import Datum


@torch.no_grad()
def logprobs(decoder: Forward, adapter: Adapter | None, ids_T: Ids) -> Floats:
    """The log-probability of each token but the first, given those before it, at temperature 1."""
    if len(ids_T) < 2:
        return np.zeros(0, np.float32)
    ids = torch.from_numpy(ids_T.astype(np.int64)).to(decoder.device)
    inputs, targets = ids[:-1], ids[1:]
    decoder.grow_rotations(len(inputs))
    attend = packed_attention([Node(0, 0, len(inputs))], decoder)
    positions = torch.arange(len(inputs), device=decoder.device)
    hidden = decoder.hidden(inputs, positions, attend, adapter)
    parts: list[torch.Tensor] = []
    for start in range(0, len(inputs), LOGITS_CHUNK):
        chunk = slice(start, start + LOGITS_CHUNK)
        scores = decoder.logits(hidden[chunk])
        parts.append(scores.gather(1, targets[chunk, None])[:, 0] - scores.logsumexp(-1))
    return torch.cat(parts).float().cpu().numpy()


@torch.no_grad()
def next_token_shares(
    decoder: Forward, adapter: Adapter | None, prompts: Sequence[Ids], tokens: Sequence[int], packed: int
) -> Floats:
    """How likely each of some tokens is after each prompt, against the others, at temperature 1: a row per prompt.

    Prompts that begin alike share what they begin with; at most ``packed`` tokens are computed at once, or one prompt.
    """
    shares = np.zeros((len(prompts), len(tokens)), np.float32)
    none = np.zeros(0, np.float32)
    data = [Datum("", 0, (), ids_T, ids_T, none, none, none, none) for ids_T in prompts]
    for trees in micro_batches(prefix_trees(data), packed):
        nodes = [node for tree in trees for node in tree.walk()]
        decoder.grow_rotations(max(node.end for node in nodes))
        ids = np.concatenate([prompts[node.sequence][node.start : node.end] for node in nodes]).astype(np.int64)
        positions = np.concatenate([np.arange(node.start, node.end) for node in nodes])
        ends = np.cumsum([node.end - node.start for node in nodes]) - 1
        leaves = [place for place, node in enumerate(nodes) if not node.children]
        ids_T, positions_T, last = (torch.from_numpy(array).to(decoder.device) for array in (ids, positions, ends[leaves]))
        hidden = decoder.hidden(ids_T, positions_T, packed_attention(trees, decoder), adapter)
        scores = decoder.logits(hidden[last])[:, list(tokens)].float().softmax(-1)
        shares[[nodes[place].sequence for place in leaves]] = scores.cpu().numpy()
    return shares

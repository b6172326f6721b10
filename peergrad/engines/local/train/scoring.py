"""Log-probabilities of given tokens."""

from __future__ import annotations

import numpy as np
import torch

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.model.forward import Adapter, Forward
from peergrad.engines.local.model.ops import LOGITS_CHUNK
from peergrad.engines.local.train.packed_attention import packed_attention
from peergrad.engines.local.train.prefix_tree import Node


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

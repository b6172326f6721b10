"""The losses in PyTorch, token by token. Their truth is ``peergrad.learn.losses``, which they are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from peergrad.learn.losses import RATIO_BOUNDS, Bounds, LossName


def token_losses(
    loss: LossName, logprobs: Tensor, sampled: Tensor, advantages: Tensor, bounds: Bounds | None = None
) -> Tensor:
    """The loss of each action token; ``cross_entropy`` takes the advantages as weights. ``bounds``: of the ratios."""
    if loss == "cross_entropy":
        return -advantages * logprobs
    ratios = torch.exp(logprobs - sampled)
    if loss == "importance_sampling":
        return -ratios * advantages
    clipped = ratios.clamp(*(bounds or RATIO_BOUNDS[loss]))
    if loss == "ppo":
        return -torch.minimum(ratios * advantages, clipped * advantages)
    return -clipped.detach() * advantages * logprobs

"""The losses in PyTorch, token by token. Their truth is ``peergrad.learn.losses``, which they are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from peergrad.learn.losses import LossName


def token_losses(loss: LossName, logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """The loss of each action token; ``cross_entropy`` takes the advantages as weights."""
    if loss == "cross_entropy":
        return -advantages * logprobs
    ratios = torch.exp(logprobs - sampled)
    if loss == "importance_sampling":
        return -ratios * advantages
    if loss == "ppo":
        return -torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    return -ratios.clamp(0.0, 4.0).detach() * advantages * logprobs

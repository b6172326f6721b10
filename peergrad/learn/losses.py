"""The losses, in NumPy: the truth that engines are tested against (SPEC 7.1, 7.2).

Each takes the policy's log-probabilities of the targets, at the temperature each token was sampled with, and returns the
loss and its gradient with respect to them. Sums, not means: scaling belongs to the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
LossName = Literal["importance_sampling", "ppo", "cispo", "cross_entropy"]

Bounds = tuple[float, float]
# Between which values a loss holds the ratio of policy to sampler, unless told otherwise.
RATIO_BOUNDS: dict[LossName, Bounds] = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A loss and d loss / d logprobs."""

    value: float
    grad_T: npt.NDArray[np.float64]


def importance_sampling(logprobs_T: Array, sampled_T: Array, advantages_T: Array, mask_T: Array) -> Loss:
    """``-Σ ρ A`` with ``ρ = exp(logprobs - sampled)``, over action tokens."""
    gain_T = _ratios(logprobs_T, sampled_T, mask_T) * advantages_T * mask_T
    return Loss(-float(gain_T.sum()), -gain_T)


def ppo(
    logprobs_T: Array, sampled_T: Array, advantages_T: Array, mask_T: Array, bounds: Bounds = RATIO_BOUNDS["ppo"]
) -> Loss:
    """``-Σ min(ρ A, clip(ρ, *bounds) A)``: no gain, and no gradient, from moving a ratio past its bound."""
    ratios_T = _ratios(logprobs_T, sampled_T, mask_T)
    free_T = ratios_T * advantages_T * mask_T
    clipped_T = np.clip(ratios_T, *bounds) * advantages_T * mask_T
    grad_T = np.where(free_T <= clipped_T, -free_T, 0.0)
    return Loss(-float(np.minimum(free_T, clipped_T).sum()), grad_T)


def cispo(
    logprobs_T: Array, sampled_T: Array, advantages_T: Array, mask_T: Array, bounds: Bounds = RATIO_BOUNDS["cispo"]
) -> Loss:
    """``-Σ clip(ρ, *bounds) A logprobs``, the clipped ratio held constant: all tokens keep a gradient, none a huge one."""
    weights_T = np.clip(_ratios(logprobs_T, sampled_T, mask_T), *bounds) * advantages_T * mask_T
    return Loss(-float((weights_T * _masked(logprobs_T, mask_T)).sum()), -weights_T)


def cross_entropy(logprobs_T: Array, weights_T: Array) -> Loss:
    """``-Σ w logprobs``, for learning from given text."""
    weights = np.asarray(weights_T, np.float64)
    return Loss(-float((weights * _masked(logprobs_T, weights)).sum()), -weights)


def _ratios(logprobs_T: Array, sampled_T: Array, mask_T: Array) -> npt.NDArray[np.float64]:
    """Policy over sampler, in float64; 1 on observation tokens, whose log-probabilities mean nothing."""
    return np.exp(_masked(np.asarray(logprobs_T, np.float64) - np.asarray(sampled_T, np.float64), mask_T))


def _masked(values_T: Array, mask_T: Array) -> npt.NDArray[np.float64]:
    """0 where nothing is trained, so that an infinity there can't become a NaN."""
    return np.where(np.asarray(mask_T) != 0, np.asarray(values_T, np.float64), 0.0)

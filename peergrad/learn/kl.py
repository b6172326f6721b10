"""How far the policy is from the base model, and from itself before an update (SPEC 5.5, 7.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Floats
from peergrad.learn.data import Datum
from peergrad.learn.trainer import Scorer, Trainer

Gaps = list[npt.NDArray[np.float64]]


async def token_scores(trainer: Trainer, data: Sequence[Datum], *, base: bool = False) -> list[Floats]:
    """The log-probabilities of each datum's tokens, by the policy or the base model, if the trainer can say them."""
    if not hasattr(trainer, "logprobs"):
        raise UserError(f"kl: {type(trainer).__name__} can't say how likely tokens are (Scorer in peergrad.learn.trainer)")
    scores = await cast("Scorer", trainer).logprobs(data, base=base)
    if [np.shape(one_T) for one_T in scores] != [(len(datum),) for datum in data]:
        raise EngineError("the engine did not say how likely each token of the training data is")
    return scores


def penalised(data: Sequence[Datum], base: Sequence[Floats], kl: float) -> tuple[tuple[Datum, ...], float]:
    """The data with the penalty in their advantages, and the mean of what is penalised.

    The mean is taken out of each token's penalty, so that the penalty favours and disfavours equally.
    """
    gaps = _gaps(data, base)
    if not all(np.isfinite(gap_T).all() for gap_T in gaps):
        raise EngineError("kl: the base model finds a token impossible that the policy said; kl can't be computed")
    mean = _mean(gaps, data)
    return tuple(
        replace(datum, advantages_T=(datum.advantages_T + kl * (mean - gap_T) * datum.mask_T).astype(np.float32))
        for datum, gap_T in zip(data, gaps, strict=True)
    ), mean


def update_distance(data: Sequence[Datum], after: Sequence[Floats]) -> dict[str, float]:
    """How far updates moved the policy from what sampled the data: half the mean square, and the largest factor."""
    gaps = _gaps(data, after)
    largest = max(float(np.abs(gap_T).max(initial=0.0)) for gap_T in gaps)
    half_square = 0.5 * _mean([gap_T**2 for gap_T in gaps], data)
    return {"optim/kl_update": half_square, "optim/ratio_update": float(np.exp(largest))}


def _gaps(data: Sequence[Datum], scores: Sequence[Floats]) -> Gaps:
    """Of each token that was sampled, its log-probability by the sampler less another; 0 at other tokens."""
    return [
        np.where(datum.mask_T > 0, datum.logprobs_T.astype(np.float64) - score_T, 0.0)
        for datum, score_T in zip(data, scores, strict=True)
    ]


def _mean(values: Gaps, data: Sequence[Datum]) -> float:
    """The mean over sampled tokens."""
    return float(sum(value_T.sum() for value_T in values) / max(1.0, sum(float(datum.mask_T.sum()) for datum in data)))

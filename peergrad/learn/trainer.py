"""Who learns: the seam between training data and an engine; and several updates of one batch (SPEC 7.4)."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Ask, Floats, Tokens
from peergrad.learn.data import Datum
from peergrad.learn.losses import Array, LossName

NOT_FINITE = "loss or gradient was not finite"
RETRIED = "optim/retried"
_MANY = 0.05  # a run that lost a larger share of its updates than this is not the run that was asked for

Logged = Mapping[str, Any]
"""A line of ``metrics.jsonl``. Anything in it may be missing, null or cut off."""


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """Why an update was skipped, and sequences that reproduce it, as far as the engine knows them."""

    why: str = NOT_FINITE
    data: tuple[Datum, ...] = ()


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one update did. ``skipped``: loss or gradient was not finite and the weights were left as they were.

    ``faults`` has one for each update that was skipped; an engine that knows nothing about it may leave it empty. Among the
    metrics may be ``optim/retried``: micro-batches that had to be computed again in another way.
    """

    loss: float
    grad_norm: float
    skipped: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    faults: tuple[Fault, ...] = ()


@typing.runtime_checkable
class Trainer(typing.Protocol):
    """Owns weights and updates them. What it is asked for is done in the order of asking, awaited or not."""

    async def step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        """One update on all of ``data``."""
        ...

    async def sampler(self) -> Sampler:
        """A sampler of the weights as they are now; later steps do not change it."""
        ...

    @property
    def context(self) -> int:
        """The longest sequence it takes, prompt and reply, in tokens."""
        ...

    def tokens(self, ask: Ask, text: str) -> Tokens:
        """Somebody else's words as the tokens of a reply, with log-probability 0: what a lesson is made of. The end of
        the turn is among them where no stop text ends it.
        """
        ...

    async def save(self, path: Path) -> None:
        """Write everything needed to go on exactly from here."""
        ...

    async def load(self, path: Path, *, optimizer: bool = True) -> None:
        """Go on from what ``save`` wrote; without ``optimizer``, begin with its weights, or those of another adapter."""
        ...

    async def close(self, *, failed: bool = False) -> None:
        """Nothing more will be asked for; ``failed``: because something went wrong."""
        ...

    def forget(self, path: Path) -> None:
        """What ``save`` wrote there will be removed: let go of what is kept of it elsewhere. Not waited for."""
        ...


@typing.runtime_checkable
class Scorer(typing.Protocol):
    """A trainer that also says how likely tokens are: ``kl`` and an adaptive learning rate need it."""

    async def logprobs(self, data: Sequence[Datum], *, base: bool = False) -> list[Floats]:
        """Of each datum the log-probabilities of its sampled targets, at their temperatures; 0 at the others.

        By the weights as they are now, or by those of the base model, without an adapter.
        """
        ...


def optim_metrics(logprobs_T: Array, sampled_T: Array, mask_T: Array) -> dict[str, float]:
    """How far the trainer's policy is from the sampler's over action tokens, before any clipping (SPEC 7.5, 8.1).

    ``v1`` is the mean of the difference of log-probabilities, ``v2`` half the mean of its square; entropy is the sampler's.
    """
    chosen = np.asarray(mask_T) > 0
    if not chosen.any():
        return {}
    sampled = np.asarray(sampled_T, np.float64)[chosen]
    difference = sampled - np.asarray(logprobs_T, np.float64)[chosen]
    ratios = np.exp(-difference)
    return {
        "optim/kl_sample_train_v1": float(difference.mean()),
        "optim/kl_sample_train_v2": float(0.5 * (difference**2).mean()),
        "optim/entropy": -float(sampled.mean()),
        "optim/ratio/mean": float(ratios.mean()),
        "optim/ratio/min": float(ratios.min()),
        "optim/ratio/max": float(ratios.max()),
        "optim/ratio/p99": float(np.quantile(ratios, 0.99)),
    }


def parts(data: Sequence[Datum], updates: int) -> list[Sequence[Datum]]:
    """The data of a batch, dealt out in order to so many updates, or to fewer if there is not enough for all."""
    count = min(updates, len(data))
    return [data[len(data) * i // count : len(data) * (i + 1) // count] for i in range(count)]


def joined(stats: Sequence[StepStats], more: Mapping[str, float] | None = None) -> StepStats | None:
    """What the updates of a step did together: losses add up, of norms and ratios the extreme one is told, else the mean.

    Those that were skipped count as a share of all (``optim/skipped`` of ``optim/updates``), with a fault each, and for
    nothing else unless all were; what was computed again is counted over all. ``more`` are metrics of all of them.
    """
    if not stats:
        return None
    made = [one for one in stats if not one.skipped]
    told = made or list(stats)
    names = dict.fromkeys(name for one in told for name in one.metrics)
    metrics = {name: _over(name)([one.metrics[name] for one in told if name in one.metrics]) for name in names}
    metrics |= {"optim/updates": float(len(stats)), "optim/skipped": 1 - len(made) / len(stats)}
    if any(RETRIED in one.metrics for one in stats):
        metrics[RETRIED] = sum(one.metrics.get(RETRIED, 0.0) for one in stats)
    metrics |= more or {}
    return StepStats(
        loss=sum(one.loss for one in told),
        grad_norm=max(one.grad_norm for one in told),
        skipped=not made,
        metrics=metrics,
        faults=tuple(fault for one in stats if one.skipped for fault in one.faults or (Fault(),)),
    )


@dataclass(frozen=True, slots=True)
class Updates:
    """How many updates there were and were skipped (SPEC 7.5), and how many micro-batches had to be computed again."""

    total: int = 0
    skipped: int = 0
    retried: int = 0

    @staticmethod
    def of(lines: Iterable[Logged]) -> Updates:
        """From lines of ``metrics.jsonl``; what is no number there counts for nothing."""
        return sum(map(_updates, lines), Updates())

    def __add__(self, other: Updates) -> Updates:
        return Updates(self.total + other.total, self.skipped + other.skipped, self.retried + other.retried)

    @property
    def too_many(self) -> bool:
        """Whether more than 5 % were skipped."""
        return self.skipped > _MANY * self.total

    def __str__(self) -> str:
        skipped = f"{self.skipped:,} of them skipped" if self.skipped else "none of them skipped"
        again = f"; {retried(self.retried)}" if self.retried else ""
        return f"{self.total:,} update{'s' * (self.total != 1)}, {skipped}{again}"

    def warning(self, folder: str | None) -> str:
        """What to tell a person when it was too many. ``folder``: where what reproduces them is."""
        where = f"what reproduces them is in {folder}" if folder else "optim/skipped in metrics.jsonl says when"
        share = self.skipped / max(1, self.total)
        return (
            f"{self.skipped:,} of {self.total:,} updates ({share:.0%}) were skipped because {NOT_FINITE}: "
            f"nothing was learned from them; {where}"
        )


def retried(count: int) -> str:
    """Micro-batches that were computed again, in words."""
    return f"{count:,} micro-batch{'es were' if count != 1 else ' was'} computed again in another way"


def _updates(line: Logged) -> Updates:
    def count(name: str) -> float:
        value: Any = line.get(name)
        return value if type(value) in (int, float) and 0 < value <= 1e9 else 0.0

    if line.get("phase") == "warm":
        return Updates(1, int(count("warm/skipped") > 0), int(count("warm/retried")))
    if line.get("phase") != "train" or "optim/skipped" not in line:  # nothing to learn from, so no update
        return Updates()
    total = max(1, round(count("optim/updates")))  # runs of before did not say
    return Updates(total, math.ceil(min(1.0, count("optim/skipped")) * total - 1e-6), int(count(RETRIED)))


def _over(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(("/max", "/p99")):
        return max
    return min if name.endswith("/min") else _mean


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

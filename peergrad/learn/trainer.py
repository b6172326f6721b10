"""Who learns: the seam between training data and an engine; and several updates of one batch (SPEC 7.4)."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Ask, Floats, Tokens
from peergrad.learn.data import Datum
from peergrad.learn.losses import LossName

NOT_FINITE = "loss or gradient was not finite"
RETRIED = "optim/retried"


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


def _over(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(("/max", "/p99")):
        return max
    return min if name.endswith("/min") else _mean


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

"""Who learns: the seam between training data and an engine."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Ask, Tokens
from peergrad.learn.datums import Datum
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
        """Somebody else's words as the tokens of a reply, with log-probability 0: what a lesson is made of."""
        ...

    async def save(self, path: Path) -> None:
        """Write everything needed to go on exactly from here."""
        ...

    async def load(self, path: Path) -> None:
        """Go on from what ``save`` wrote."""
        ...

    async def close(self, *, failed: bool = False) -> None:
        """Nothing more will be asked for; ``failed``: because something went wrong."""
        ...

    def forget(self, path: Path) -> None:
        """What ``save`` wrote there will be removed: let go of what is kept of it elsewhere. Not waited for."""
        ...

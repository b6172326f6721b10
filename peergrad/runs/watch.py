"""Watching work under way: a training run, an evaluation, a check, debates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peergrad.debate.types import Ask, Debate, Reply
from peergrad.engines.base import Spent
from peergrad.learn.trainer import Updates
from peergrad.measure.alarms import Alarm
from peergrad.runs.folder import Progress


class Watcher:
    """Told of everything as it happens; what it does with it never changes the work. This one does nothing."""

    listens = False
    """Whether ``heard`` is to be called."""

    def say(self, sentence: str) -> None:
        """Something a person should know."""

    def warn(self, sentence: str) -> None:
        """Something a person should be warned of."""

    def begin(self, phase: str, debates: int, at: Progress | None = None) -> None:
        """A phase begins (of training: ``sampling``, ``training``, ``saving`` …), in which so many debates are played, or of
        ``warm start`` updates made.
        """

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:
        """A debate ended, after so many seconds; ``None`` was dropped."""

    # Training

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None:
        """A line of metrics was saved."""

    def updates(self, so_far: Updates) -> None:
        """Updates were made, or a run is resumed after these."""

    def alarm(self, alarm: Alarm) -> None:
        """An alarm sounds."""

    # Debates without training

    def resumed(self, debates: Sequence[Debate]) -> None:
        """These debates were played before."""

    def cost(self, so_far: Spent) -> None:
        """What was spent so far; told before each reply and each debate that ended."""

    def replied(self, ask: Ask, reply: Reply) -> None:
        """An agent has replied."""

    def heard(self, ask: Ask, piece: str | None) -> None:
        """The next piece of a reply that is under way; ``None``: it starts again."""

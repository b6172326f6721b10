"""Who is told how a run goes: a terminal, a log, nobody."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from peergrad.debate.types import Debate
from peergrad.measure.alarms import Alarm
from peergrad.measure.lost import Updates
from peergrad.runs.folder import Progress


class Watcher(typing.Protocol):
    """Told of everything as it happens; what it does with it never changes the run."""

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def begin(self, phase: str, at: Progress, debates: int) -> None:
        """A phase begins: ``evaluating``, ``warm start``, ``sampling`` (so many debates), ``training``, ``saving``."""
        ...

    def debate(self, debate: Debate | None) -> None:
        """A debate ended; ``None`` was dropped."""
        ...

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None:
        """A line of metrics was kept."""
        ...

    def updates(self, so_far: Updates) -> None:
        """Updates were made, or the run goes on after these."""
        ...

    def alarm(self, alarm: Alarm) -> None: ...


class Nobody:
    """A watcher who looks away."""

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def begin(self, phase: str, at: Progress, debates: int) -> None: ...

    def debate(self, debate: Debate | None) -> None: ...

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None: ...

    def updates(self, so_far: Updates) -> None: ...

    def alarm(self, alarm: Alarm) -> None: ...

"""What the views on a terminal share: sentences, giving the terminal back, amounts in words."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.runs.watch import Watcher


class View(Watcher):
    """A view of work under way. All text is made harmless before it is shown."""

    phase = "starting"

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def grace_s(self) -> float:
        """How long work under way may still take to finish once a signal has come."""
        return 0.0

    def close(self) -> None:
        """Give the terminal back."""

    def say(self, sentence: str, style: str = "") -> None:
        """Print one sentence."""
        self._console.print(Text(visible(sentence), style=style), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        """Print a warning."""
        self.say(f"warning: {sentence}", "yellow")


def clock(seconds: float) -> str:
    """A length of time, short."""
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def money(usd: float, digits: int = 4) -> str:
    """What was paid, to be added to a sentence; nothing if it was nothing."""
    return f", ${usd:,.{digits}f}" if usd else ""

"""Views of work under way: what all have in common, and a bar."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peergrad.debate.types import Debate
from peergrad.runs.watch import Watcher
from peergrad.terminal.tables import print_line


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
        print_line(self._console, sentence, style)

    def warn(self, sentence: str) -> None:
        """Print a warning."""
        self.say(f"warning: {sentence}", "yellow")


class ProgressView(View):
    """A bar that shows how many debates of a part are done: of an evaluation, a check, many debates."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # With the bar on stderr, stdout is for results: they must not become part of the bar's picture.
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=not console.stderr
        )
        self._bar = self._progress.add_task("", visible=False, total=None)
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def begin(self, phase: str, debates: int, at: object = None) -> None:  # noqa: ARG002
        self.phase = f"playing {phase}"
        self._progress.reset(self._bar, description=phase, total=debates, visible=True)
        if not self._console.is_terminal:
            self.say(f"{phase}: {debates} {'updates' if phase == 'warm start' else 'to play'}")

    def note(self, words: str) -> None:
        """Show a text beside the bar."""
        self._progress.update(self._bar, description=words)

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)


def clock(seconds: float) -> str:
    """A length of time, short."""
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def money(usd: float, digits: int = 4) -> str:
    """What was paid, to be added to a sentence; nothing if it was nothing."""
    return f", ${usd:,.{digits}f}" if usd else ""

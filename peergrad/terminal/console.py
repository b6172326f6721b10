"""What all that is shown has in common: the console, safe lines and tables, and views of work under way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.runs.watch import Watcher


class Output(Console):
    """A console that prints text as it is. A reader that leaves, as ``| head`` does, ends no work: all is on disk."""

    def __init__(self, *, stderr: bool = False, **more: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr, **more)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nobody_reads(self.file)


def nobody_reads(stream: IO[str]) -> None:
    """Print to nowhere from now on what goes to a stream, so that nothing complains that it is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1, gap: int = 2) -> Table:
    """A table of text, safe to print: columns aligned left, so many, then columns of numbers."""
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for column, heading in enumerate(headings):
        words = 0 < column < left  # they may be folded
        table.add_column(Text(visible(heading)), justify="left" if column < left else "right", no_wrap=not words)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row))
    return table


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line, safe and in one piece."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


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

"""How far something has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Debate


class Bars:
    """A watcher for people of an evaluation, a check or many debates."""

    patience_s = 0.0

    def __init__(self, console: Console) -> None:
        self.phase = "starting"
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        terminal = console.is_terminal
        # With the bar on stderr, stdout is for results: they must not become part of the bar's picture.
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not terminal, redirect_stdout=not console.stderr
        )
        self._bar = self._progress.add_task("", visible=False, total=None)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        self._console.print(Text(visible(sentence)), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self._console.print(Text(f"warning: {visible(sentence)}", style="yellow"), soft_wrap=True)

    def begin(self, part: str, debates: int) -> None:
        self.phase = f"playing {part}"
        self._progress.reset(self._bar, description=part, total=debates, visible=True)
        if not self._console.is_terminal:
            self.say(f"{part}: {debates} to play")

    def note(self, words: str) -> None:
        """Say something beside the bar while it is there."""
        self._progress.update(self._bar, description=words)

    def debate(self, debate: Debate | None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)

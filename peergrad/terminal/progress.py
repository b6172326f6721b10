"""The progress of an evaluation, a check or many debates: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peergrad.debate.types import Debate
from peergrad.terminal.view import View


class ProgressView(View):
    """A watcher that shows how many debates of a part are done."""

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
            self.say(f"{phase}: {debates} to play")

    def note(self, words: str) -> None:
        """Show a text beside the bar."""
        self._progress.update(self._bar, description=words)

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)

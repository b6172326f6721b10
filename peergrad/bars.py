"""How far something has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Debate


class Bars:
    """A watcher for people of an evaluation or a check."""

    patience_s = 0.0

    def __init__(self, console: Console) -> None:
        self.phase = "starting"
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
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

    def debate(self, debate: Debate | None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)

"""Views of work under way: a bar, or a live panel of a training run; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.learn.trainer import Updates, retried
from peergrad.measure.alarms import Alarm
from peergrad.measure.history import RunHistory, live_values, rows_before_and_after
from peergrad.runs import folder
from peergrad.runs.watch import Watcher
from peergrad.terminal.tables import print_line, table

_GRACE_S = 20.0


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
            self.say(f"{phase}: {debates} to play")

    def note(self, words: str) -> None:
        """Show a text beside the bar."""
        self._progress.update(self._bar, description=words)

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)


class RunView(View):
    """A live panel of a training run."""

    def __init__(self, console: Console, steps: int) -> None:
        super().__init__(console)
        self._steps, self._warm_steps = steps, 0
        self._at, self._debates, self._done = folder.Progress(), 0, 0
        self._line: Mapping[str, Any] = {}
        self._alarms: dict[str, Alarm] = {}
        self._updates = Updates()
        self._times = [time.monotonic()]  # of the start, and of each line
        self._live = Live(get_renderable=self._panel, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def close(self) -> None:
        self._live.stop()

    @property
    def grace_s(self) -> float:
        """A step under way is worth waiting for, but not for longer than this: it will be repeated."""
        return _GRACE_S if self.phase in ("training", "saving", "warm start") else 0.0

    def begin(self, phase: str, debates: int, at: folder.Progress | None = None) -> None:
        if phase == "warm start":  # its updates are known when it begins
            self._warm_steps, debates = debates, 0
        self.phase, self._at, self._debates, self._done = phase, at or folder.Progress(), debates, 0
        if not self._console.is_terminal and phase == "evaluating":
            self.say(f"{phase} {self._at.name}")

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002
        self._done += debate is not None

    def line(self, phase: str, at: folder.Progress, metrics: Mapping[str, Any]) -> None:
        self._times.append(time.monotonic())
        if phase == "train":
            self._line = metrics
        if phase == "eval" or not self._console.is_terminal:
            self.say(self._sentence(phase, at, metrics))

    def updates(self, so_far: Updates) -> None:
        self._updates = so_far

    def alarm(self, alarm: Alarm) -> None:
        if alarm.name not in self._alarms:
            self.say(f"alarm: {alarm}", "bold red")
        self._alarms[alarm.name] = alarm

    def _sentence(self, phase: str, at: folder.Progress, metrics: Mapping[str, Any]) -> str:
        if phase == "warm":
            numbers = f"loss {metrics['warm/loss']:.3f}, {metrics['time/train_s']:.0f} s"
            return f"warm start {at.warm}/{self._warm_steps}: {numbers}"
        if phase == "eval":
            shares = {name: value for name, value in metrics.items() if name.endswith(("/correct", "/readable"))}
            facts = ", ".join(f"{name.removeprefix('eval/')} {value:.0%}" for name, value in shares.items())
            return f"evaluated at {f'warm start {at.warm}' if at.warm else f'step {at.step}'}: {facts}"
        facts = ", ".join(f"{heading} {value}" for heading, value in live_values(metrics))
        return f"step {at.step}/{self._steps}: {facts}{self._left()}"

    def _left(self) -> str:
        """How long it will still take, going by the last few steps."""
        recent, left = self._times[-6:], self._steps - self._at.step
        if len(recent) < 2 or left <= 0 or not self._at.step:
            return ""
        return f", {clock(left * (recent[-1] - recent[0]) / (len(recent) - 1))} left"

    def _panel(self) -> Group:
        debates = f", {self._done} of {self._debates} debates" if self._debates else ""
        warm, step = f"warm start {self._at.warm}/{self._warm_steps}", f"step {self._at.step}/{self._steps}"
        head = f"{step if self._at.step or not self._warm_steps else warm}  {self.phase}{debates}{self._left()}"
        values = live_values(self._line) if self._line else []
        numbers = table([heading for heading, _ in values], [[value for _, value in values]], left=len(values))
        lines = [Text(head, style="bold"), numbers]
        if self._updates.skipped:
            style = "bold red" if self._updates.too_many else "yellow"
            lines.append(Text(f"{self._updates.skipped:,} of {self._updates.total:,} updates skipped", style=style))
        if self._updates.retried:
            lines.append(Text(retried(self._updates.retried)))
        return Group(*lines, *(Text(f"alarm: {visible(name)}", style="bold red") for name in self._alarms))


def before_and_after(console: Console, metrics: Sequence[Mapping[str, Any]]) -> None:
    """The first and the last fifth of a run's self-play side by side, evaluations before and after, and how many updates."""
    rows = rows_before_and_after(RunHistory.of(metrics))
    numbers = [["–" if value is None else row.form.format(value) for value in (row.before, row.after)] for row in rows]
    console.print(table(["", "before", "after"], [[row.label, *two] for row, two in zip(rows, numbers, strict=True)]))
    if (updates := Updates.of(metrics)).total:
        print_line(console, str(updates))


def too_many_lost(console: Console, run: folder.Run) -> None:
    """Say so if the run lost so many updates that it is not the run that was asked for."""
    updates = Updates.of(run.metrics())
    if updates.too_many:
        where = str(run.path / "skipped") if run.skipped_updates() else None
        print_line(console, updates.warning(where), "bold red")


def clock(seconds: float) -> str:
    """A length of time, short."""
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def money(usd: float, digits: int = 4) -> str:
    """What was paid, to be added to a sentence; nothing if it was nothing."""
    return f", ${usd:,.{digits}f}" if usd else ""

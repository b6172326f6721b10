"""The view of a training run: a live panel on a terminal, plain lines elsewhere; and the table at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.measure.alarms import Alarm
from peergrad.measure.history import RunHistory, Updates, live_values, retried, rows_before_and_after
from peergrad.runs.folder import Progress, Run
from peergrad.runs.skipped import Skipped
from peergrad.terminal.view import View, clock

_GRACE_S = 20.0


class RunView(View):
    """A watcher of a training run."""

    def __init__(self, console: Console, steps: int, warm_steps: int) -> None:
        super().__init__(console)
        self._steps, self._warm_steps = steps, warm_steps
        self._at, self._debates, self._done = Progress(), 0, 0
        self._line: Mapping[str, Any] = {}
        self._alarms: list[Alarm] = []
        self._updates = Updates()
        self._took: list[float] = []
        self._since = time.monotonic()
        self._live = Live(get_renderable=self._panel, console=console, refresh_per_second=4, transient=True)
        self._terminal = console.is_terminal

    def __enter__(self) -> Self:
        if self._terminal:
            self._live.start()
        return self

    def close(self) -> None:
        if self._terminal:
            self._live.stop()

    @property
    def grace_s(self) -> float:
        """A step under way is worth waiting for, but not for longer than this: it will be repeated."""
        return _GRACE_S if self.phase in ("training", "saving", "warm start") else 0.0

    def begin(self, phase: str, debates: int, at: Progress | None = None) -> None:
        self.phase, self._at, self._debates, self._done = phase, at or Progress(), debates, 0
        if not self._terminal and phase == "evaluating":
            self.say(f"{phase} {self._at.name}")

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002
        self._done += debate is not None

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None:
        now = time.monotonic()
        self._took.append(now - self._since)
        self._since = now
        if phase == "train":
            self._line = metrics
        if self._terminal and phase != "eval":
            return
        self.say(self._sentence(phase, at, metrics))

    def updates(self, so_far: Updates) -> None:
        self._updates = so_far

    def alarm(self, alarm: Alarm) -> None:
        if alarm.name not in [known.name for known in self._alarms]:
            self.say(f"alarm: {alarm}", "bold red")
        self._alarms = [known for known in self._alarms if known.name != alarm.name] + [alarm]

    def _sentence(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> str:
        if phase == "warm":
            return (
                f"warm start {at.warm}/{self._warm_steps}: loss {metrics['warm/loss']:.3f}, {metrics['time/train_s']:.0f} s"
            )
        if phase == "eval":
            shown = {name: value for name, value in metrics.items() if name.endswith(("/correct", "/readable"))}
            facts = ", ".join(f"{name.removeprefix('eval/')} {value:.0%}" for name, value in shown.items())
            return f"evaluated at step {at.step}: {facts}"
        facts = ", ".join(f"{heading} {value}" for heading, value in live_values(metrics))
        return f"step {at.step}/{self._steps}: {facts}{self._left()}"

    def _left(self) -> str:
        """How long it will still take, going by the last few steps."""
        left = self._steps - self._at.step
        recent = self._took[-5:]
        if not recent or left <= 0 or not self._at.step:
            return ""
        return f", {clock(left * sum(recent) / len(recent))} left"

    def _panel(self) -> Group:
        head = f"{self.phase}" + (f", {self._done} of {self._debates} debates" if self._debates else "")
        step = (
            f"warm start {self._at.warm}/{self._warm_steps}" if not self._at.step else f"step {self._at.step}/{self._steps}"
        )
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
        for heading, _ in (values := live_values(self._line)):
            table.add_column(Text(visible(heading)))
        if values:
            table.add_row(*(value for _, value in values))
        alarms = [Text(f"alarm: {visible(alarm.name)}", style="bold red") for alarm in self._alarms]
        return Group(Text(f"{step}  {head}{self._left()}", style="bold"), table, *self._lost(), *alarms)

    def _lost(self) -> list[Text]:
        updates, lost = self._updates, list[Text]()
        if updates.skipped:
            style = "bold red" if updates.too_many else "yellow"
            lost.append(Text(f"{updates.skipped:,} of {updates.total:,} updates skipped", style=style))
        if updates.retried:
            lost.append(Text(retried(updates.retried)))
        return lost


def before_and_after(console: Console, metrics: Sequence[Mapping[str, Any]]) -> None:
    """The first and the last fifth of a run's self-play side by side, evaluations before and after, and how many updates."""
    updates = Updates.of(metrics)
    table = Table("", "before", "after", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for row in rows_before_and_after(RunHistory.of(metrics)):
        values = ("–" if value is None else row.form.format(value) for value in (row.before, row.after))
        table.add_row(Text(visible(row.label)), *values)
    console.print(table)
    if updates.total:
        console.print(Text(str(updates)), soft_wrap=True)


def too_many_lost(console: Console, run: Run) -> None:
    """Say so if the run lost so many updates that it is not the run that was asked for."""
    updates, skipped = Updates.of(run.metrics()), Skipped(run.path)
    if updates.too_many:
        where = str(skipped.path) if skipped.files() else None
        console.print(Text(visible(updates.warning(where)), style="bold red"), soft_wrap=True)

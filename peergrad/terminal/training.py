"""A training run on a terminal: a live panel, a line for every step, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.debate.types import Ask, Debate, Reply
from peergrad.learn.trainer import retried
from peergrad.measure.alarms import Alarm
from peergrad.measure.changes import Row, rows_before_and_after
from peergrad.measure.ending import ending
from peergrad.measure.history import RunHistory, Updates, live_values, number
from peergrad.runs import folder
from peergrad.runs.watch import step_sentence
from peergrad.terminal.console import View, clock, print_line, table
from peergrad.terminal.debate import one_line

_GRACE_S = 20.0
_BARS = "▁▂▃▄▅▆▇█"
_LEARNED = {"replies/readable": "readable", "votes/due_turns_with_vote": "due turns with a vote"}
_FEW = 30
_WAITS = {"sampling": "waiting for replies", "evaluating": "waiting for replies to held-out questions"}


class RunView(View):
    """A live panel of a training run. ``turns`` are the replies of a debate, if it is known how many there are."""

    phase = "loading the model"

    def __init__(self, console: Console, steps: int, turns: int = 0) -> None:
        super().__init__(console)
        self._steps, self._turns, self._warm_steps = steps, turns, 0
        self._at, self._debates, self._done, self._replies, self._tokens = folder.Progress(), 0, 0, 0, 0
        self._lines: list[Mapping[str, Any]] = []
        self._alarms: dict[str, Alarm] = {}
        self._updates, self._last = Updates(), list[Text]()
        self._times = [time.monotonic()]  # of the start, and of each line
        self._since = time.monotonic()  # of the phase
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
        if phase == "evaluating":  # where most replies are of no debate
            debates = 0
        self.phase, self._at, self._debates, self._done = phase, at or folder.Progress(), debates, 0
        self._replies, self._tokens, self._since = 0, 0, time.monotonic()
        if not self._console.is_terminal and phase == "evaluating":
            self.say(f"{phase} {self._at.name}")

    def replied(self, ask: Ask, reply: Reply) -> None:  # noqa: ARG002
        self._replies += 1
        self._tokens += len(reply.tokens.ids_T) if reply.tokens else 0

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002
        self._done += debate is not None
        if debate and self._console.is_terminal:
            finals = ending(debate).finals
            answers = (f"Agent {one.agent}: {one.answer or one.solution or 'unreadable'}" for one in finals)
            lines = (debate.question.text, "; ".join(answers), one_line(ending(debate)).partition(": ")[2])
            self._last = [Text("  " + visible(line), no_wrap=True, overflow="ellipsis", style="dim") for line in lines]

    def line(self, phase: str, at: folder.Progress, metrics: Mapping[str, Any]) -> None:
        self._times.append(time.monotonic())
        if phase == "train":
            self._lines.append(metrics)
        sentence = step_sentence(phase, at, metrics, self._steps, self._warm_steps)
        self.say(sentence + (self._left() if phase == "train" else ""))

    def updates(self, so_far: Updates) -> None:
        self._updates = so_far

    def alarm(self, alarm: Alarm) -> None:
        if alarm.name not in self._alarms:
            self.say(f"alarm: {alarm}", "bold red")
        self._alarms[alarm.name] = alarm

    def _left(self) -> str:
        """How long it will still take, going by the last few steps."""
        recent, left = self._times[-6:], self._steps - self._at.step
        if len(recent) < 2 or left <= 0 or not self._at.step:
            return ""
        return f", {clock(left * (recent[-1] - recent[0]) / (len(recent) - 1))} left"

    def _panel(self) -> Group:
        warm, step = f"warm start {self._at.warm}/{self._warm_steps}", f"step {self._at.step}/{self._steps}"
        name = step if self._at.step or not self._warm_steps else warm
        left = self._left() or ("" if self._lines else ", time left: known after the first step")
        waits = _WAITS.get(self.phase, self.phase)
        head = f"{name}  {waits} for {clock(time.monotonic() - self._since)}{left}"
        lines: list[Any] = [Text(head, style="bold"), *self._progress()]
        if self._lines:
            values = live_values(self._lines[-1])
            lines.append(table([heading for heading, _ in values], [[value for _, value in values]], left=len(values)))
            curves = ((what, sparkline([number(line.get(name)) for line in self._lines])) for name, what in _LEARNED.items())
            lines.append(Text("   ".join(f"{what} {curve}" for what, curve in curves if curve)))  # direct: no vote is due
        if self._last:
            lines += [Text("last debate:", style="dim"), *self._last]
        if self._updates.skipped:
            style = "bold red" if self._updates.too_many else "yellow"
            lines.append(Text(f"{self._updates.skipped:,} of {self._updates.total:,} updates skipped", style=style))
        if self._updates.retried:
            lines.append(Text(retried(self._updates.retried)))
        return Group(*lines, *(Text(f"alarm: {visible(name)}", style="bold red") for name in self._alarms))

    def _progress(self) -> list[Table]:
        """How far the phase is, by replies where their number is known; a bar that moves where nothing is counted."""
        expected = self._debates * self._turns
        done, of = (max(self._replies, self._done * self._turns), expected) if expected else (self._done, self._debates)
        bar, row = ProgressBar(of or None, done, width=30, pulse=not of), Table.grid(padding=(0, 2))
        debates = f"{self._done} of {self._debates} debates, " if self._debates else ""
        row.add_row(bar, f"{debates}{self._replies} replies, {self._tokens:,} tokens" if debates or self._replies else "")
        return [row]


def sparkline(values: Sequence[float | None]) -> str:
    """Shares from 0 to 1 as a line of bars, the latest last."""
    shown = [value for value in values if value is not None][-30:]
    return "".join(_BARS[min(7, max(0, int(value * 8)))] for value in shown)


def before_and_after(console: Console, metrics: Sequence[Mapping[str, Any]]) -> None:
    """What got better and what got worse; then the first and the last fifth of a run's self-play side by side, evaluations
    before and after, and how many updates.
    """
    rows = rows_before_and_after(RunHistory.of(metrics))
    if rows:
        print_line(console, verdict(rows), "bold")
    console.print(table(["", "before", "of", "after", "of"], map(_cells, rows)))
    if (updates := Updates.of(metrics)).total:
        print_line(console, str(updates))


def _cells(row: Row) -> list[str]:
    cells = [row.label]
    for value, cases in zip((row.before, row.after), row.cases, strict=True):
        cells += ["–" if value is None else row.form.format(value), f"{cases:,}" if cases and value is not None else ""]
    return cells


def verdict(rows: Sequence[Row]) -> str:
    """A sentence about what changed, the worse as plainly as the better."""
    parts = []
    for change, word in ((1, "Better"), (-1, "Worse")):
        named = [f"{row.label[0].lower()}{row.label[1:]}" for row in rows if row.change == change]
        parts.append(f"{word}: {'; '.join(named) or 'nothing'}.")
    if any(row.change and min(row.cases[0] or 0, row.cases[1] or 0) < _FEW for row in rows):
        parts.append(f"Where there are fewer than {_FEW} cases, chance may be all of it.")
    return " ".join(parts)


def too_many_lost(console: Console, run: folder.Run) -> None:
    """Say so if the run lost so many updates that it is not the run that was asked for."""
    updates = Updates.of(run.metrics())
    if updates.too_many:
        where = str(run.path / "skipped") if run.skipped_updates() else None
        print_line(console, updates.warning(where), "bold red")

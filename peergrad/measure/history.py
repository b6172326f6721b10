"""What a run logged, as lines to draw and numbers to compare. Any of it may be missing, null or cut off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peergrad.learn.trainer import NOT_FINITE, RETRIED

Logged = Mapping[str, Any]
Points = tuple[tuple[float, float | None], ...]

BINS = 200
_LARGEST = 1e100  # what is beyond it is no measurement, and would leave no room for the rest of the axis
_MANY = 0.05  # a run that lost a larger share of its updates than this is not the run that was asked for


@dataclass(frozen=True, slots=True)
class Updates:
    """How many updates were asked for and skipped (SPEC 7.5), and how many micro-batches had to be computed again."""

    asked: int = 0
    skipped: int = 0
    retried: int = 0

    @staticmethod
    def of(lines: Iterable[Logged]) -> Updates:
        """From lines of ``metrics.jsonl``; what is no number there counts for nothing."""
        return sum(map(_updates, lines), Updates())

    def __add__(self, other: Updates) -> Updates:
        return Updates(self.asked + other.asked, self.skipped + other.skipped, self.retried + other.retried)

    @property
    def too_many(self) -> bool:
        """Whether more than 5 % were skipped."""
        return self.skipped > _MANY * self.asked

    def __str__(self) -> str:
        skipped = f"{self.skipped:,} of them skipped" if self.skipped else "none of them skipped"
        again = f"; {retried(self.retried)}" if self.retried else ""
        return f"{self.asked:,} update{'s' * (self.asked != 1)}, {skipped}{again}"

    def warning(self, folder: str | None) -> str:
        """What to tell a person when it was too many. ``folder``: where what reproduces them is."""
        where = f"what reproduces them is in {folder}" if folder else "optim/skipped in metrics.jsonl says when"
        share = self.skipped / max(1, self.asked)
        return (
            f"{self.skipped:,} of {self.asked:,} updates ({share:.0%}) were skipped because {NOT_FINITE}: "
            f"nothing was learned from them; {where}"
        )


def retried(count: int) -> str:
    """Micro-batches that were computed again, in words."""
    return f"{count:,} micro-batch{'es were' if count != 1 else ' was'} computed again in another way"


def _updates(line: Logged) -> Updates:
    def count(name: str) -> float:
        value = number(line.get(name))
        return value if value and 0 <= value <= 1e9 else 0.0

    if line.get("phase") == "warm":
        return Updates(1, int(count("warm/skipped") > 0), int(count("warm/retried")))
    if line.get("phase") != "train" or "optim/skipped" not in line:  # nothing to learn from, so no update
        return Updates()
    asked = max(1, round(count("optim/updates")))  # runs of before did not say
    return Updates(asked, math.ceil(min(1.0, count("optim/skipped")) * asked - 1e-6), int(count(RETRIED)))


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The lines of ``metrics.jsonl`` by phase, in order, each step once: one that was done again counts as it was last."""

    train: tuple[Logged, ...] = ()
    evals: tuple[Logged, ...] = ()
    warm: tuple[Logged, ...] = ()

    @staticmethod
    def of(lines: Sequence[Logged]) -> RunHistory:
        """From what ``Run.metrics`` gives."""
        phases: dict[str, dict[tuple[Any, Any], Logged]] = {"train": {}, "eval": {}, "warm": {}}
        for line in lines:
            phase, at = line.get("phase"), (line.get("step"), line.get("warm"))
            if isinstance(phase, str) and phase in phases and all(type(n) is int and 0 <= n < 10**9 for n in at):
                phases[phase][at] = line
        return RunHistory(*(tuple(by_step[at] for at in sorted(by_step)) for by_step in phases.values()))

    @property
    def phases(self) -> dict[str, tuple[Logged, ...]]:
        return {"train": self.train, "eval": self.evals, "warm": self.warm}

    @property
    def names(self) -> dict[str, set[str]]:
        """By phase, everything that was logged."""
        return {phase: {name for line in lines for name in line} for phase, lines in self.phases.items()}

    @property
    def steps(self) -> int:
        """Updates of the self-play that were logged last."""
        return self.train[-1]["step"] if self.train else 0

    @property
    def updates(self) -> Updates:
        """The updates of warm start and self-play, and how many of them were lost."""
        return Updates.of((*self.warm, *self.train))

    @property
    def span(self) -> tuple[float, float]:
        """The step axis that all curves share."""
        steps = [line["step"] for line in (*self.train, *self.evals)] or [0]
        return float(min(steps)), float(max(*steps, min(steps) + 1))


@dataclass(frozen=True, slots=True)
class Alarmed:
    """An alarm that sounded after each step from ``first`` to ``last``."""

    name: str
    first: int
    last: int


def number(value: object) -> float | None:
    """A logged value, if it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None  # false for nan too


def points(history: RunHistory, phase: str, name: str) -> Points:
    """A metric over steps; ``None`` where it was not measured. Thousands of steps are binned: a point is a bin's mean."""
    at = "warm" if phase == "warm" else "step"
    every = [(float(line[at]), number(line.get(name))) for line in history.phases[phase]]
    if len(every) <= BINS:
        return tuple(every)
    low, high = every[0][0], every[-1][0]
    bins: list[list[tuple[float, float | None]]] = [[] for _ in range(BINS)]
    for x, y in every:
        bins[min(BINS - 1, int((x - low) / (high - low) * BINS))].append((x, y))
    return tuple((sum(x for x, _ in inside) / len(inside), _mean([y for _, y in inside])) for inside in bins if inside)


def mean(lines: Sequence[Logged], name: str, weight: str | None = None) -> float | None:
    """The mean of a metric over the lines that have it, weighted by another one if ``weight`` names it."""
    pairs = [(number(line.get(name)), 1.0 if weight is None else number(line.get(weight))) for line in lines]
    known = [(value, by) for value, by in pairs if value is not None and by]
    total = sum(by for _, by in known)
    return sum(value * by for value, by in known) / total if total else None


def total(lines: Sequence[Logged], *names: str) -> float:
    """The sum of metrics over all lines."""
    return math.fsum(number(line.get(name)) or 0.0 for line in lines for name in names)


def fifths(lines: Sequence[Logged]) -> tuple[Sequence[Logged], Sequence[Logged]]:
    """The first and the last fifth, at least one line each; twice the same one if there is only one."""
    size = max(1, len(lines) // 5)
    return lines[:size], lines[-size:]


def alarmed(train: Sequence[Logged]) -> list[Alarmed]:
    """Which alarms sounded, steps in a row taken together."""
    open_: dict[str, Alarmed] = {}
    done: list[Alarmed] = []
    for line in train:
        logged = line.get("alarms")
        sounding = {name[:80] for name in logged if isinstance(name, str)} if isinstance(logged, list) else set[str]()
        done += [open_.pop(name) for name in sorted(set(open_) - sounding)]
        for name in sorted(sounding):
            open_[name] = Alarmed(name, open_[name].first if name in open_ else line["step"], line["step"])
    return sorted([*done, *open_.values()], key=lambda alarm: (alarm.first, alarm.name))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None

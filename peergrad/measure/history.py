"""What a run logged, as lines to draw and numbers to compare. Any of it may be missing, null or cut off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peergrad.measure.lost import Updates

Logged = Mapping[str, Any]
Points = tuple[tuple[float, float | None], ...]

BINS = 200
_LARGEST = 1e100  # what is beyond it is no measurement, and would leave no room for the rest of the axis


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The lines of ``metrics.jsonl`` by phase, in order, each step once: one that was done again counts as it was last."""

    train: tuple[Logged, ...] = ()
    evals: tuple[Logged, ...] = ()
    warm: tuple[Logged, ...] = ()

    @staticmethod
    def of(lines: Sequence[Logged]) -> RunHistory:
        """From what ``Run.metrics`` gives."""
        phases: dict[str, dict[tuple[int, int], Logged]] = {"train": {}, "eval": {}, "warm": {}}
        for line in lines:
            phase, step, warm = line.get("phase"), line["step"], line["warm"]
            if (
                isinstance(phase, str)
                and phase in phases
                and all(type(at) is int and 0 <= at < 10**9 for at in (step, warm))
            ):
                phases[phase][step, warm] = line
        return RunHistory(
            *(tuple(line for _, line in sorted(found.items(), key=lambda item: item[0])) for found in phases.values())
        )

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
        steps = [line["step"] for line in (*self.train, *self.evals)]
        low = min(steps, default=0)
        return float(low), float(max(steps, default=0) if len(set(steps)) > 1 else low + 1)


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
    return tuple(
        (sum(x for x, _ in inside) / len(inside), _mean([y for _, y in inside if y is not None]))
        for inside in bins
        if inside
    )


def mean(lines: Sequence[Logged], name: str, weight: str | None = None) -> float | None:
    """The mean of a metric where it was measured, weighted by another one if told."""
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
        sounding = line.get("alarms")
        heard = {name[:80] for name in sounding if isinstance(name, str)} if isinstance(sounding, list) else set[str]()
        done += [open_.pop(name) for name in sorted(set(open_) - heard)]
        for name in sorted(heard):
            open_[name] = Alarmed(name, open_[name].first if name in open_ else line["step"], line["step"])
    return sorted([*done, *open_.values()], key=lambda alarm: (alarm.first, alarm.name))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None

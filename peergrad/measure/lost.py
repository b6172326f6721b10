"""Updates that were asked for and taught nothing: how many there were, and whether that is too many (SPEC 7.5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peergrad.learn.trainer import NOT_FINITE, RETRIED

MANY = 0.05  # a run that lost a larger share of its updates than this is not the run that was asked for


@dataclass(frozen=True, slots=True)
class Updates:
    """How many updates were asked for and skipped, and how many micro-batches had to be computed again."""

    asked: int = 0
    skipped: int = 0
    retried: int = 0

    @staticmethod
    def of(lines: Iterable[Mapping[str, Any]]) -> Updates:
        """From lines of ``metrics.jsonl``; what is no number there counts for nothing."""
        return sum((_line(line) for line in lines), Updates())

    def __add__(self, other: Updates) -> Updates:
        return Updates(self.asked + other.asked, self.skipped + other.skipped, self.retried + other.retried)

    @property
    def too_many(self) -> bool:
        """Whether more than 5 % were skipped."""
        return self.skipped > MANY * self.asked

    def __str__(self) -> str:
        skipped = f"{self.skipped:,} of them skipped" if self.skipped else "none of them skipped"
        again = f"; {retried(self.retried)}" if self.retried else ""
        return f"{self.asked:,} update{'s' * (self.asked != 1)}, {skipped}{again}"

    def warning(self, kept: str | None) -> str:
        """What to tell a person when it was too many. ``kept``: where what reproduces them is."""
        where = f"what reproduces them is in {kept}" if kept else "optim/skipped in metrics.jsonl says when"
        share = self.skipped / max(1, self.asked)
        return (
            f"{self.skipped:,} of {self.asked:,} updates ({share:.0%}) were skipped because {NOT_FINITE}: "
            f"nothing was learned from them; {where}"
        )


def retried(count: int) -> str:
    """Micro-batches that were computed again, in words."""
    return f"{count:,} micro-batch{'es were' if count != 1 else ' was'} computed again in another way"


def _line(line: Mapping[str, Any]) -> Updates:
    if line.get("phase") == "warm":
        return Updates(1, int(_number(line.get("warm/skipped")) > 0), int(_number(line.get("warm/retried"))))
    if line.get("phase") != "train" or "optim/skipped" not in line:  # nothing to learn from, so no update
        return Updates()
    asked = max(1, round(_number(line.get("optim/updates"))))  # runs of before did not say
    share = min(1.0, _number(line["optim/skipped"]))
    return Updates(asked, math.ceil(share * asked - 1e-6), int(_number(line.get(RETRIED))))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value <= 1e9 else 0.0  # false for nan too

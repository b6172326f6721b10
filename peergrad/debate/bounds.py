"""Markers beside the type of a setting: which numbers it may be, ``Annotated[int, Range(1)]``, and whether it may change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A whole number of at least ``least`` and, where more would only do harm, at most ``most``."""

    least: int
    most: int | None = None

    def allows(self, value: float) -> bool:
        return value >= self.least and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"a whole number {f'of at least {self.least}' if self.most is None else f'from {self.least} to {self.most}'}"


@dataclass(frozen=True, slots=True)
class Above:
    """A number above ``limit``."""

    limit: float

    def allows(self, value: float) -> bool:
        return value > self.limit

    def __str__(self) -> str:
        return f"a number above {self.limit:g}"


class Resumable:
    """The setting may change when work is resumed: it decides how long, how fast or what is kept, not what comes out."""


RESUMABLE = Resumable()

"""A number that may change over the steps of a run (SPEC 4.15)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from peergrad.debate.errors import UserError


@dataclass(frozen=True, slots=True)
class Schedule:
    """From ``start`` to ``end`` within ``over`` steps, those of the run if it is ``None``: linearly, or along half a cosine.

    Example: ``Schedule.of("1.0 -> 0.0 over 100 cosine", "truth_weight").at(50, 200) == 0.5``
    """

    start: float
    end: float
    over: int | None = None
    cosine: bool = False

    @staticmethod
    def of(setting: float | str, name: str) -> Schedule:
        """A setting, called ``name`` in messages: a number, or text such as ``"1.0 -> 0.0"``."""
        start, arrow, rest = str(setting).partition("->")
        try:
            end, *words = rest.split() if arrow else [start]
            cosine = words[-1:] == ["cosine"]
            words = words[:-1] if cosine else words
            if words and not (words[0] == "over" and len(words) == 2 and re.fullmatch("[1-9][0-9]{0,8}", words[1])):
                raise ValueError
            schedule = Schedule(float(start), float(end), int(words[1]) if words else None, cosine)
            if not math.isfinite(schedule.start + schedule.end):
                raise ValueError
        except ValueError:
            forms = "'1.0 -> 0.0', '1.0 -> 0.0 over 100' or '1.0 -> 0.0 over 100 cosine'"
            raise UserError(f"{name}: {str(setting)[:80]!r} is not possible; give a number, or {forms}") from None
        return schedule

    @property
    def follows_run(self) -> bool:
        """Whether its values depend on how many steps the run has."""
        return self.over is None and self.start != self.end

    def at(self, step: int, steps: int) -> float:
        """The value in a step, counted from 0, of a run of so many steps."""
        if self.start == self.end:
            return self.start
        done = min(1.0, step / max(1, self.over or steps))
        left = 0.5 * (1 + math.cos(math.pi * done)) if self.cosine else 1 - done
        return self.start * left + self.end * (1 - left)

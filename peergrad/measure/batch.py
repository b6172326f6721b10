"""What metrics are measured of: debates with their rewards and grades."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from peergrad.learn.train import Step
from peergrad.measure.grades import known_grades
from peergrad.reward.rewards import Scored
from peergrad.tasks.base import Grade, Task

Metrics = dict[str, float]

Counts = Mapping[str, tuple[float, float]]
"""Shares by name, each as what was counted and of how many: sums over debates divide to the share of a batch."""


@dataclass(frozen=True, slots=True)
class DebateBatch:
    """Debates of a training step or of an evaluation, scored and, where the answer is known, graded.

    ``grades[d]`` has the grade of every turn of debate d, or is ``None``. ``answers``, such as ``train_gsm8k``, begins the
    names of metrics of answers. ``step`` is everything else that happened in the step; ``None`` in an evaluation.
    """

    scored: Sequence[Scored]
    grades: Sequence[Sequence[Grade] | None] = ()
    answers: str = ""
    step: Step | None = None

    @staticmethod
    def of(scored: Sequence[Scored], task: Task, answers: str, step: Step | None = None) -> DebateBatch:
        """Grade all turns. Comparing answers may take long."""
        grades = known_grades([one.debate for one in scored], task.grade) if task.known else ()
        return DebateBatch(scored, grades, answers, step)

    @property
    def graded(self) -> list[tuple[Scored, Sequence[Grade]]]:
        """The debates whose answer is known, with the grade of every turn."""
        return [(scored, grades) for scored, grades in zip(self.scored, self.grades, strict=False) if grades is not None]


def total(counts: Iterable[Counts]) -> Counts:
    """The counts of several debates, added up."""
    sums: dict[str, tuple[float, float]] = {}
    for one in counts:
        for name, (part, whole) in one.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + part, before[1] + whole
    return sums


def shares(counts: Counts) -> Metrics:
    """The share each count is; without any it has no value and is left out."""
    return {name: part / whole for name, (part, whole) in sorted(counts.items()) if whole}

"""Questions and how answers to them are graded."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from peergrad.debate.question import Question
from peergrad.debate.types import Debate, Turn
from peergrad.reward.rewards import Truth, nobody_knows

TASKS = ("arithmetic", "sums")
_AT_ONCE = 4  # as many as there are processes that compare expressions


@dataclass(frozen=True, slots=True)
class Grade:
    """What a solution is worth. ``answer`` is normalised so that equal answers are equal strings; ``None``: none found.

    ``timed_out``: comparing took too long, so nobody knows. It is not a wrong answer, and must be counted apart. ``asked``:
    false of a turn that was not to answer the question, but to judge others.
    """

    correct: bool
    answer: str | None
    timed_out: bool = False
    asked: bool = True

    @property
    def format(self) -> bool:
        """Whether an answer could be found at all."""
        return self.answer is not None

    @property
    def right(self) -> bool | None:
        """Whether the answer is right; ``None`` where nobody knows."""
        return self.correct if self.asked and not self.timed_out else None


UNANSWERED = Grade(correct=False, answer=None)
NOT_ASKED = Grade(correct=False, answer=None, asked=False)
TIMED_OUT = Grade(correct=False, answer=None, timed_out=True)


class Task(typing.Protocol):
    """Questions, and the truth about them where there is one (``known``). Somebody's own need have no more than this."""

    @property
    def name(self) -> str: ...

    @property
    def known(self) -> bool: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Question: ...

    def grade(self, question: Question, solution: str, /) -> Grade: ...


Grader = Callable[[Question, str], Grade]


@dataclass(frozen=True, slots=True)
class Questions:
    """A list of questions and who grades them. ``skipped`` says of each row of a file that was left out why."""

    name: str
    questions: Sequence[Question]
    grade: Grader
    skipped: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return any(question.known for question in self.questions)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int, /) -> Question:
        return self.questions[index]


def grade_turn(turn: Turn, grade: Callable[[str], Grade]) -> Grade:
    """The grade of a turn's solution; an unreadable one answers nothing."""
    solution = turn.solution
    return grade(solution) if solution is not None else UNANSWERED if turn.asked_to_answer else NOT_ASKED


def truth_of(grade: Grader, known: Callable[[Question], bool] = attrgetter("known")) -> Callable[[Debate], Truth]:
    """For a reward that asks: whether the solution of a turn of a debate is right, graded when it is asked for."""

    def of(debate: Debate) -> Truth:
        @cache
        def right(index: int) -> bool | None:
            return grade_turn(debate.turns[index], lambda solution: grade(debate.question, solution)).right

        return right if known(debate.question) else nobody_knows

    return of


def grade_all(grade: Grader, pairs: Sequence[tuple[Question, str]]) -> list[Grade]:
    """A grade for each solution: equal ones are graded once, and slow ones at the same time."""
    distinct = list(dict.fromkeys(pairs))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        grades = dict(zip(distinct, threads.map(lambda pair: grade(*pair), distinct), strict=True))
    return [grades[pair] for pair in pairs]

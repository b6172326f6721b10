"""Which answers are right: every solution of some debates, graded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from peergrad.debate.protocols import solution
from peergrad.debate.types import Debate
from peergrad.reward import rewards
from peergrad.tasks.base import UNANSWERED, Grade, Grader, Task, grade_all

Truth = tuple[bool | None, ...]


def truth_of(task: Task) -> Callable[[Debate], rewards.Truth]:
    """For a reward that asks: whether the solution of a turn of a debate is right, graded when it is asked for."""

    def of(debate: Debate) -> rewards.Truth:
        @cache
        def right(turn: int) -> bool | None:
            text = solution(debate, debate.turns[turn])
            grade = UNANSWERED if text is None else task.grade(debate.question, text)
            return None if grade.timed_out else grade.correct

        return right if debate.question.known else rewards.nobody_knows

    return of


def turn_grades(debates: Sequence[Debate], grade: Grader) -> list[tuple[Grade, ...]]:
    """The grade of every turn of every debate; an unreadable one answers nothing."""
    solutions = [(debate, solution(debate, turn)) for debate in debates for turn in debate.turns]
    graded = iter(grade_all(grade, [(debate.question, text) for debate, text in solutions if text is not None]))
    every = iter([UNANSWERED if text is None else next(graded) for _, text in solutions])
    return [tuple(next(every) for _ in debate.turns) for debate in debates]


def known_grades(debates: Sequence[Debate], grade: Grader) -> list[tuple[Grade, ...] | None]:
    """The grades of each debate whose answer is known; ``None`` for the others."""
    known = iter(turn_grades([debate for debate in debates if debate.question.known], grade))
    return [next(known) if debate.question.known else None for debate in debates]


def final_grades(debate: Debate, grades: Sequence[Grade], rounds: int | None = None) -> list[Grade]:
    """Each agent's last answer, or its last within so many rounds; one who did not speak has none."""
    spoken = list(zip(debate.turns, grades, strict=True))
    last = {turn.agent: grade for turn, grade in spoken[: None if rounds is None else rounds * debate.agents]}
    return [last.get(agent, UNANSWERED) for agent in range(debate.agents)]


def truth(grades: Sequence[Grade]) -> Truth:
    """Per turn, whether it is right; ``None`` where the grader ran out of time, so that nobody knows."""
    return tuple(None if grade.timed_out else grade.correct for grade in grades)

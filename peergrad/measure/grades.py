"""Which answers are right: every solution of some debates, graded once; and how right k answers to a question are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter

from peergrad.debate.types import Debate, Question, Turn
from peergrad.reward import rewards
from peergrad.tasks.base import NOT_ASKED, UNANSWERED, Grade, Grader, Task, grade_all

Truth = tuple[bool | None, ...]


def truth_of(task: Task) -> Callable[[Debate], rewards.Truth]:
    """For a reward that asks: whether the solution of a turn of a debate is right, graded when it is asked for."""

    def of(debate: Debate) -> rewards.Truth:
        @cache
        def right(index: int) -> bool | None:
            turn = debate.turns[index]
            if not turn.asked_to_answer:
                return None
            grade = UNANSWERED if turn.solution is None else task.grade(debate.question, turn.solution)
            return None if grade.timed_out else grade.correct

        return right if debate.question.known else rewards.nobody_knows

    return of


def turn_grades(debates: Sequence[Debate], grade: Grader) -> list[tuple[Grade, ...]]:
    """The grades of every turn of every debate; an unreadable one answers nothing."""
    turns = [(debate.question, turn) for debate in debates for turn in debate.turns]
    grades = iter(grade_all(grade, [(question, text) for question, turn in turns if (text := turn.solution) is not None]))

    def of(turn: Turn) -> Grade:
        return next(grades) if turn.solution is not None else UNANSWERED if turn.asked_to_answer else NOT_ASKED

    return [tuple(of(turn) for turn in debate.turns) for debate in debates]


def known_grades(
    debates: Sequence[Debate], grade: Grader, known: Callable[[Question], bool] = attrgetter("known")
) -> list[tuple[Grade, ...] | None]:
    """The grades of each debate about a question that is known; ``None`` for the others."""
    grades = iter(turn_grades([debate for debate in debates if known(debate.question)], grade))
    return [next(grades) if known(debate.question) else None for debate in debates]


def final_grades(debate: Debate, grades: Sequence[Grade], rounds: int | None = None) -> list[Grade]:
    """Each agent's last answer, or its last within so many rounds; one who did not speak has none."""
    last = {
        turn.agent: grade
        for turn, grade in zip(debate.turns, grades, strict=True)
        if turn.asked_to_answer and (rounds is None or turn.round < rounds)
    }
    return [last.get(agent, UNANSWERED) for agent in range(debate.agents)]


def truth(grades: Sequence[Grade]) -> Truth:
    """Per turn, whether it is right; ``None`` where nobody knows: the grader ran out of time, or no answer was asked for."""
    return tuple(grade.correct if grade.asked and not grade.timed_out else None for grade in grades)


def share_right(answers: Sequence[Grade]) -> float | None:
    """The share of right answers among those that could be graded in time; ``None`` if there are none."""
    graded = [answer.correct for answer in answers if not answer.timed_out]
    return sum(graded) / len(graded) if graded else None


def vote_is_right(answers: Sequence[Grade]) -> float:
    """Whether the most frequent answer is right; between equally frequent ones, the chance that a fair draw is."""
    times = Counter(answer.answer for answer in answers if answer.answer is not None)
    right = {answer.answer for answer in answers if answer.correct}
    top = [answer in right for answer, count in times.items() if count == max(times.values())]
    return sum(top) / len(top) if top else 0.0

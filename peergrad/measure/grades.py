"""Which answers are right: every solution of some debates, graded once; and how right k answers to a question are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter

from peergrad.debate.types import Debate, Question, Turn
from peergrad.reward.rewards import Truth, nobody_knows
from peergrad.tasks.base import NOT_ASKED, UNANSWERED, Grade, Grader, Task, grade_all


def truth_of(task: Task) -> Callable[[Debate], Truth]:
    """For a reward that asks: whether the solution of a turn of a debate is right, graded when it is asked for."""

    def of(debate: Debate) -> Truth:
        @cache
        def right(index: int) -> bool | None:
            return _grade(debate.turns[index], lambda solution: task.grade(debate.question, solution)).right

        return right if debate.question.known else nobody_knows

    return of


def turn_grades(debates: Sequence[Debate], grade: Grader) -> list[tuple[Grade, ...]]:
    """The grades of every turn of every debate; an unreadable one answers nothing."""
    turns = [(debate.question, turn) for debate in debates for turn in debate.turns]
    grades = iter(grade_all(grade, [(question, text) for question, turn in turns if (text := turn.solution) is not None]))
    return [tuple(_grade(turn, lambda _: next(grades)) for turn in debate.turns) for debate in debates]


def _grade(turn: Turn, grade: Callable[[str], Grade]) -> Grade:
    solution = turn.solution
    return grade(solution) if solution is not None else UNANSWERED if turn.asked_to_answer else NOT_ASKED


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


def share_right(answers: Sequence[Grade]) -> float | None:
    """The share of right answers among those that could be graded in time; ``None`` if there are none."""
    graded = [answer.right for answer in answers if answer.right is not None]
    return sum(graded) / len(graded) if graded else None


def vote_is_right(answers: Sequence[Grade]) -> float:
    """Whether the most frequent answer is right; between equally frequent ones, the chance that a fair draw is."""
    times = Counter(answer.answer for answer in answers if answer.answer is not None)
    right = {answer.answer for answer in answers if answer.correct}
    top = [answer in right for answer, count in times.items() if count == max(times.values())]
    return sum(top) / len(top) if top else 0.0

"""Sums to practise on: made, not downloaded, and graded exactly. Five levels, from single digits to two operations.

Also a teacher, who debates about them the way the contract asks, so that a weak model can be shown the form first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from peergrad.debate.contract import FULL
from peergrad.debate.errors import UserError
from peergrad.debate.question import BOXED, NUMBER, Question, last_boxed, last_whole_number
from peergrad.debate.types import Ask, Debate
from peergrad.tasks.base import UNANSWERED, Grade, Questions
from peergrad.tasks.numbers import as_number

LEVELS = 5


def arithmetic(
    level: int = 1,
    count: int = 1000,
    seed: int = 0,
    split: Literal["train", "eval"] = "train",
    name: Literal["arithmetic", "sums"] = "arithmetic",
) -> Questions:
    """``count`` sums of one level, answered in a box, or as ``sums`` by a plain number. The two splits never share a sum,
    nor has one what the other has the other way round.
    """
    if not 1 <= level <= LEVELS:
        raise UserError(f"level: {level} is not possible; give a whole number from 1 to {LEVELS}")
    questions: list[Question] = []
    style = BOXED if name == "arithmetic" else NUMBER
    for index in range(count):
        rng = random.Random(f"{seed} {level} {split} {index}")
        text, answer = _sum(rng, level)
        while _held_out(text) != (split == "eval"):
            text, answer = _sum(rng, level)
        questions.append(Question(f"{split}-{index}", f"What is {text}?", str(answer), style, name))
    return Questions(name, questions, grade_sum)


def _held_out(text: str) -> bool:
    """A fifth of all sums, the same ones whatever the seed, is kept for evaluation; 3 + 4 where 4 + 3 is."""
    return random.Random("".join(sorted(text))).random() < 0.2


def grade_sum(question: Question, solution: str) -> Grade:
    """By what is boxed; without a box, by the last whole number that is no part of a sum."""
    answer = last_boxed(solution)
    number = as_number(answer if answer is not None else last_whole_number(solution) or "")
    return UNANSWERED if number is None else Grade(correct=str(number) == question.answer, answer=str(number))


def teacher(seed: int) -> Callable[[Debate, Ask], str]:
    """What a patient debater would say next, always the same: mostly right, sometimes wrong, honest about the others."""

    def say(debate: Debate, ask: Ask) -> str:
        agent, question = ask.agent, debate.question
        rng = random.Random(f"{seed} {debate.id} {agent} {len(debate.turns)}")
        answer = int(question.answer or 0)
        boxed = answer if rng.random() < 0.65 else answer + rng.choice((-2, -1, 1, 2, 10))
        sum_ = question.text.removeprefix("What is ").removesuffix("?")
        others = {turn.agent: turn for turn in debate.turns if turn.agent != agent}  # the last turn of each
        right = {
            other: as_number(question.style.answer(turn.section("solution")) or "") == answer
            for other, turn in sorted(others.items())
        }
        said = boxed if not others else answer
        solution = f"{sum_} = {said}" if question.style == NUMBER else f"{sum_} = \\boxed{{{said}}}"
        if ask.contract is None:
            return solution
        evaluation = " ".join(f"Agent {a} is {'right' if ok else 'wrong'}." for a, ok in right.items()) or "N/A"
        best, *rest = sorted(right, key=lambda a: (not right[a], a)) or [0]
        comparison = "\n".join(f"Agent {best} {'>' if right[best] > right[a] else '='} Agent {a}" for a in rest) or "N/A"
        reply = (
            f"<solution>{solution}</solution>\n<evaluation>{evaluation}</evaluation>\n<comparison>{comparison}</comparison>"
        )
        if ask.contract != FULL:
            return reply
        agreed = len(right) == debate.agents - 1 and all(right.values())
        reason = "We all agree." if agreed else "Not all of us agree yet."
        return f"{reply}\n<consensus>{'YES' if agreed else 'NO'}</consensus>\n<consensus_reason>{reason}</consensus_reason>"

    return say


def _sum(rng: random.Random, level: int) -> tuple[str, int]:
    if level == 1:
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        return f"{a} + {b}", a + b
    if level == 2:
        a, b = rng.randint(2, 20), rng.randint(1, 20)
        return (f"{a} + {b}", a + b) if rng.random() < 0.5 or b > a else (f"{a} - {b}", a - b)
    if level == 3:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        return (f"{a} + {b}", a + b) if rng.random() < 0.5 else (f"{a} - {b}", a - b)
    if level == 4:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        return f"{a} * {b}", a * b
    a, b, c = rng.randint(2, 12), rng.randint(2, 12), rng.randint(1, 99)
    return (f"{a} * {b} + {c}", a * b + c) if rng.random() < 0.5 else (f"{a} * {b} - {c}", a * b - c)

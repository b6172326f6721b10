"""Ways to ask a model for a ballot on answers, and to read its reply. ``judging.py`` measures them.

No form shows a filled-in ballot, which small models copy: placeholders stand where the verdicts go, and no
reader takes them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from peergrad.debate import prompts
from peergrad.debate.quote import MARK, harmless
from peergrad.debate.types import Message, Question

LETTERS, SHOWN = "ABCDEFGH", 4
Points = tuple[float, ...]


@dataclass(frozen=True)
class Answer:
    text: str
    right: bool
    value: str | None
    logprob: float
    truncated: bool


# Readers: a reply to points by place, or None. The last word on an answer counts.


def read_lines(text: str, count: int, worth: dict[str, float]) -> Points | None:
    """Lines such as ``B: wrong``. Example: ``read_lines("A: right\\nB: wrong", 2, VERDICTS) == (1.0, 0.0)``."""
    words = "|".join(worth)
    lines = re.findall(rf"^[^\w\n]*(?:answer )?([A-H])\b[^\w\n]*[:=–-][^\w\n]*({words})\b", text, re.I | re.M)
    points = {letter.upper(): worth[word.lower()] for letter, word in lines}
    return tuple(points[letter] for letter in LETTERS[:count]) if points.keys() >= set(LETTERS[:count]) else None


def read_ranking(text: str, count: int) -> Points | None:
    """A line such as ``Ranking: B > A = C``. Example: ``read_ranking("Ranking: B > A", 2) == (-1.0, 0.0)``."""
    lines = re.findall(r"^[^\w\n]*ranking[^\w\n]*:([^\n]*)", text, re.I | re.M)
    groups = [re.findall(r"\b[A-H]\b", group.upper()) for group in lines[-1].split(">")] if lines else []
    places = {letter: -float(place) for place, group in enumerate(groups) for letter in group}
    whole = sorted(letter for group in groups for letter in group) == list(LETTERS[:count]) and "<" not in lines[-1]
    return tuple(places[letter] for letter in LETTERS[:count]) if whole else None


def read_choice(text: str, count: int, start: str = r"^[^\w\n]*better[^\w\n]*:") -> Points | None:
    """One letter. Example: ``read_choice("Better: B", 2) == (0.0, 1.0)``."""
    letters = re.findall(rf"{start}[^\w\n]*(?:answer )?([A-H])\b", text, re.I | re.M)
    place = LETTERS[:count].find(letters[-1].upper()) if letters else -1
    return None if place < 0 else tuple(float(place == other) for other in range(count))


VERDICTS = {"right": 1.0, "wrong": 0.0, "correct": 1.0, "incorrect": 0.0}
GRADES = {str(grade): float(grade) for grade in range(1, 6)}


def read_verdicts(text: str, count: int) -> Points | None:
    return read_lines(text, count, VERDICTS)


def read_grades(text: str, count: int) -> Points | None:
    return read_lines(text, count, GRADES)


def read_letter(text: str, count: int) -> Points | None:
    return read_choice(text, count, r"\A\W*")


@dataclass(frozen=True)
class Form:
    """A way to ask for a ballot. In ``task``, ``{lines:x}`` is a line for each letter, ``{values}`` the final values."""

    task: str
    read: Callable[[str, int], Points | None] | None = None
    """None: soft."""
    asks: Literal["all", "two pairs", "pairs", "each"] = "all"
    """About all answers at once, about pairs in both orders, or about one answer at a time."""
    options: tuple[str, ...] = ()
    """What a soft vote chooses from; of an answer by itself, for and against."""
    work: bool = True
    """Whether answers are shown, or only final values."""
    tokens: int = 8


_VERDICTS = "{lines:verdict}\nEach <verdict> is the word right or the word wrong."
_GRADES = "{lines:grade}\nEach <grade> is a whole number from 1 (certainly wrong) to 5 (certainly right)."
_RANKING = (
    "Ranking: <letters>\nwith the letters of all answers in place of <letters>, the best first: a > between two letters "
    "if the first is better, a = if they are equally good."
)
_CHECK = "Check every answer: compute its steps again, and look for the first mistake."
_SOLVE = (
    "First solve the question yourself, step by step, without trusting any of the answers, and write down your own final "
    "value. Then compare the final value of each answer with yours."
)
_END = "Then end your reply with one line for each answer, in this form:\n"
_ONLY = "Reply with one line for each answer, in this form, and nothing else:\n"
_LETTER = "Reply with its letter and nothing else."

FORMS: dict[str, Form] = {
    "soft-verdict": Form(
        "Is answer A right or wrong? Reply with the one word right or wrong.", asks="each", options=("right", "wrong")
    ),
    "soft": Form(f"Which of the two answers is right, or better? {_LETTER}", asks="pairs", options=("A", "B")),
    "soft-choice": Form(f"Which of the answers is right? {_LETTER}", options=tuple(LETTERS[:SHOWN])),
    "soft-verdict-yes": Form(
        "Check the steps of answer A. Is its final value, {values}, the correct answer to the question? "
        "Reply with Yes or No.",
        asks="each",
        options=("Yes", "No"),
    ),
    "soft-value": Form(
        f"The final values are {{values}}. Which final value is correct? {_LETTER}", asks="pairs", options=("A", "B")
    ),
    "soft-verdict-value": Form(
        "Somebody says that the final value is {values}. Is {values} the correct answer to the question? "
        "Reply with Yes or No.",
        asks="each",
        options=("Yes", "No"),
        work=False,
    ),
    "soft-verdict-doubt": Form(
        "Answer A may be right where you are wrong, or wrong where you are right. Go through its steps and look for a "
        "mistake. Is {values} the correct final value? Reply with Yes or No.",
        asks="each",
        options=("Yes", "No"),
    ),
    "verdicts-why": Form(
        "Go through the answers one by one. For each, write its letter as a heading, then do all of its calculations again "
        "in your own words and say where it goes wrong, if it does. Give no verdict before all of them are checked. "
        f"Only {_END[0].lower()}{_END[1:]}{_VERDICTS}",
        read_verdicts,
        tokens=1024,
    ),
    "values-why": Form(
        "Somebody gave the final values {values}. At most one value is correct. Write a new solution of the question: one "
        f"numbered step a line, every calculation written out, up to your own final value. {_END}{_VERDICTS}",
        read_verdicts,
        work=False,
        tokens=640,
    ),
    "verdicts": Form(f"{_CHECK} {_END}{_VERDICTS}", read_verdicts, tokens=768),
    "verdicts-solve": Form(f"{_SOLVE} {_END}{_VERDICTS}", read_verdicts, tokens=768),
    "verdicts-short": Form(f"{_ONLY}{_VERDICTS}", read_verdicts, tokens=48),
    "values": Form(
        f"The final values of the answers are {{values}}. {_SOLVE} {_END}{_VERDICTS}", read_verdicts, work=False, tokens=512
    ),
    "grades": Form(f"{_CHECK} {_END}{_GRADES}", read_grades, tokens=768),
    "grades-short": Form(f"{_ONLY}{_GRADES}", read_grades, tokens=48),
    "pairs-short": Form(f"Which of the two answers is right, or better? {_LETTER}", read_letter, "two pairs", tokens=8),
    "ranking-short": Form(
        f"Rank the answers. Reply with one line, in this form, and nothing else:\n{_RANKING}", read_ranking, tokens=32
    ),
    "pairs": Form(
        f"{_CHECK} Then end your reply with one line, in this form:\n"
        "Better: <letter>\nwith the letter of the better answer.",
        read_choice,
        "two pairs",
        tokens=512,
    ),
    "ranking": Form(f"{_CHECK} Then end your reply with one line, in this form:\n{_RANKING}", read_ranking, tokens=768),
}


def rotated(agents: int, shown: int, seed: str) -> list[tuple[int, ...]]:
    """For each voter the answers it is shown, in order: never its own, and every answer at every place equally often."""
    steps = random.Random(seed).sample(range(1, agents), min(shown, agents - 1))
    return [tuple((voter + step) % agents for step in steps) for voter in range(agents)]


def asked_about(form: Form, shown: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The answers of each ask that a voter's ballot takes."""
    if form.asks == "all":
        return [shown]
    if form.asks == "each":
        return [(answer,) for answer in shown]
    pairs = list(combinations(shown, 2)) if form.asks == "pairs" else list(zip(shown[::2], shown[1::2], strict=False))
    return [order for a, b in pairs for order in ((a, b), (b, a))]


def messages(
    form: Form, question: Question, answers: Sequence[Answer], shown: tuple[int, ...], own: Answer | None
) -> tuple[Message, ...]:
    """What a voter is shown; its own answer, if it is, as what it said before in the same dialogue."""
    letters = LETTERS[: len(shown)]
    values = ", ".join(
        f"{harmless(answers[i].value or 'none')} ({letter})" for letter, i in zip(letters, shown, strict=True)
    )
    task = re.sub(r"\{lines:(\w+)\}", lambda match: "\n".join(f"{letter}: <{match[1]}>" for letter in letters), form.task)
    task = task.replace("{values}", values if len(shown) > 1 else values.removesuffix(" (A)"))
    parts = [
        f"Answer {letter}:\n{MARK}" + harmless(answers[i].text.strip()).replace("\n", f"\n{MARK}")
        for letter, i in zip(letters, shown, strict=True)
        if form.work
    ]
    opening = "Here is what others answered to the same question." if own else "Here is what was answered to this question."
    ballot = "\n\n".join([opening, *parts, task] if parts else [task])
    if own is None:
        return (Message("user", f"{prompts.judged_question(question)}\n\n{ballot}"),)
    return Message("user", prompts.question(question)), Message("assistant", own.text), Message("user", ballot)

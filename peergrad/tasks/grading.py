"""Whether the boxed answer of a solution is the right one: as a number, as words, or as mathematics."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re

from peergrad.debate.question import Question, last_boxed
from peergrad.tasks.base import TIMED_OUT, UNANSWERED, Grade
from peergrad.tasks.numbers import as_amount, flat
from peergrad.tasks.pool import Pool

# The longest answer that is looked at as mathematics; longer ones are compared as text.
_LONGEST = 1000
_AROUND = " .,;:'’\"“”!?()"
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[ .,;:'’\"“”!?&()-])*")
_WORD = re.compile(r"[^\W\d_]{3}|\b[^\W\d_]\b|\b[A-Z]|\bno\b")
_FUNCTIONS = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|lim|max|min|arcsin|arccos|arctan|infinity)\b", re.I)
# Two numbers side by side are two answers, or one with a blank in it, and no product or sum, as a parser would have it.
_SIDE_BY_SIDE = re.compile(r"[^\\]*?\d\s+\d[^\\]*")
# Dates and times are no subtractions and no ratios.
_MOMENT = re.compile(r"\d+-\d+-\d+|\d+/\d+/\d+|\d+:\d\d(?::\d\d)?\s*(?:[ap]\.?m\.?)?", re.I)
_BASE = re.compile(r"\d\s*_\s*\{?\s*\d")

POOL = Pool("peergrad.tasks.mathematics:compare")


def installed() -> bool:
    """Whether math-verify is there."""
    return importlib.util.find_spec("math_verify") is not None


def grade(question: Question, solution: str) -> Grade:
    """What is in the last ``\\boxed{}``, compared with the question's answer."""
    boxed = last_boxed(solution)
    if not boxed or question.answer is None:
        return UNANSWERED
    if len(boxed) > _LONGEST or len(question.answer) > _LONGEST:
        answer, right = flat(boxed), flat(question.answer)
        return Grade(answer == right, _short(answer))
    return _compared(question.answer, boxed)


def answer_name(question: Question, solution: str) -> str | None:
    """The answer that the question's style finds, normalised so that equal numbers and equal words have one name, where
    nobody knows the right answer to compare with; ``None`` if it finds none.

    Example: ``answer_name(question, "\\boxed{1,000.0}") == answer_name(question, "\\boxed{1000}")``
    """
    answer = question.style.answer(solution)
    if not answer:
        return None
    amount = as_amount(answer, named=True) if len(answer) <= _LONGEST else None
    return str(amount.value) if amount else _text(answer)


def needs_math(gold: str) -> bool:
    """Whether answers can be compared with this one only as mathematics."""
    return as_amount(gold) is None and not _is_words(gold)


@functools.lru_cache(maxsize=20_000)
def _compared(gold: str, boxed: str) -> Grade:
    """Right answers all get the name of the right one, so that votes for it add up however it is spelled."""
    answer, right = as_amount(boxed, named=True), as_amount(gold)
    if answer and right:
        same = answer.same(right)
        return Grade(same, str((right if same else answer).value))
    name = str(right.value) if right else _text(gold)
    if _text(boxed) == name or flat(boxed) == flat(gold):
        return Grade(True, name)
    other = str(answer.value) if answer else ""
    if _is_words(gold) or not _mathematics(flat(gold), flat(boxed)) or not installed():
        return Grade(False, other if other and _is_words(gold) else _text(boxed))
    compared = POOL.call(gold, boxed)
    if compared is None:
        return TIMED_OUT
    return Grade(True, name) if compared["equal"] else Grade(False, other or _short(compared["name"]) or _text(boxed))


def _mathematics(gold: str, answer: str) -> bool:
    """Whether a parser of mathematics would make of both what a person means."""
    moment = _MOMENT.fullmatch(gold) or _MOMENT.fullmatch(answer)
    other_base = _BASE.search(answer) and not _BASE.search(gold)  # than ten
    return not (moment or other_base or _SIDE_BY_SIDE.fullmatch(answer))


def _is_words(text: str) -> bool:
    """Whether an answer is words and not unknowns: quoted as text, or letters that are no product."""
    words = flat(text).strip(_AROUND)
    if not _WORDS.fullmatch(words) or _FUNCTIONS.search(words):
        return False
    return "\\" in text or _WORD.search(words) is not None


def _text(text: str) -> str:
    """An answer as text; words in small letters, without what is around them."""
    plain = flat(text)
    words = plain.strip(_AROUND).casefold()
    return _short(words if _WORDS.fullmatch(words) else plain)


def _short(text: str) -> str:
    """A name for a text of any length, which no other text has."""
    return text if len(text) <= 100 else f"{text[:60]}… {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"

"""What is debated: a question, how it wants to be answered, and the data it carries for its grader."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, cast

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.settings import where_it_failed

_LONGEST = 100  # digits, and zeros around them, up to which numbers are compared as such
_EXACT = Context(prec=2 * _LONGEST)
_BRACE = re.compile(r"\\boxed\s*+\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """What the last closed ``\\boxed{…}`` holds, braces nested; linear in the length of the text.

    Example: ``last_boxed(r"\\boxed{1}, no: \\boxed{\\frac{1}{2}}") == r"\\frac{1}{2}"``
    """
    opened: list[int | None] = []
    best: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        if brace[0].endswith("{") and brace[0] != r"\{":
            opened.append(brace.end() if len(brace[0]) > 1 else None)
        elif brace[0] == "}" and opened:
            start = opened.pop()
            if start is not None and (best is None or start > best[0]):
                best = (start, brace.start())
    return None if best is None else text[best[0] : best[1]].strip()


_WHOLE = re.compile(r"(?<![\w.])-?\d++(?!\.?\d)", re.ASCII)
_EXPRESSION = re.compile(r"(?<![\d.])-?\d++(?:[ \t]*+[-−+*/×÷][ \t]*+-?\d++)++(?!\.?\d)", re.ASCII)
_UNIT = re.compile(r"\\text\s*+\{[^{}]*+\}|\\[$%,;! ]|[$%]|(?<=\d),(?=\d{3}(?!\d))")  # signs and units around a number


def last_whole_number(text: str) -> str | None:
    """The last whole number in a text that is no part of a sum: who repeats the question has not answered it.

    Example: ``last_whole_number("7 + 9 = 16.") == "16"`` and ``last_whole_number("7 + 9") is None``
    """
    return (_WHOLE.findall(_EXPRESSION.sub(" ", text)) or [None])[-1]


@dataclass(frozen=True, slots=True, repr=False)
class Style:
    """A style of answering. Transcripts record its name alone, so styles of one name are equal.

    Example: ``Style("code", "Give one Python function in solution.")``
    """

    name: str
    instruction: str = field(default="", compare=False)
    """Follows the question in the prompt."""
    brief: str | None = field(default=None, compare=False)
    """The same in few words, for ``wording="brief"``; ``None``: the instruction itself."""
    find: Callable[[str], str | None] | None = field(default=None, compare=False)
    """The answer within a solution, if there is one; ``None``: answers of this style can't be compared."""
    required: bool = field(default=False, compare=False)
    """Whether a solution in which no answer is found lacks what was asked for (SPEC 4.6)."""

    def __repr__(self) -> str:
        return f"Style({self.name!r})"

    def answer(self, solution: str) -> str | None:
        """The answer that a solution gives; ``None`` without one, or where answers can't be compared."""
        try:
            return self.find(solution) if self.find else None
        except Exception as error:  # somebody's own code
            raise UserError(f"style {self.name!r}: find failed ({where_it_failed(error)})") from error

    def value(self, solution: str) -> str | None:
        """The answer that a solution gives, under a name that plainly equal answers share.

        Example: ``BOXED.value(r"\\boxed{\\$1,200.00}") == BOXED.value(r"\\boxed{1200}")``
        """
        answer = (self.answer(solution) or "").strip()
        try:
            number = Decimal(_UNIT.sub("", answer).strip().rstrip("."))
        except ArithmeticError:
            return answer.casefold() or None
        if not number.is_finite() or len(answer) > _LONGEST or abs(number.adjusted()) > _LONGEST:
            return answer.casefold()  # no number that anybody compares, or one that can't be written exactly
        return str(number.normalize(_EXACT))


OPEN = Style("open", "Give your full answer in solution.", brief="", find=last_boxed)
BOXED = Style(
    "boxed",
    "End your solution with the final answer as \\boxed{answer}.",
    brief="Give the final answer as \\boxed{answer}.",
    find=last_boxed,
    required=True,
)
NUMBER = Style("number", "Give the final answer as a number.", find=last_whole_number, required=True)
STYLES = {style.name: style for style in (OPEN, BOXED, NUMBER)}

own_styles: dict[str, Style] = {}
"""Styles of tasks that a person has named, for the debates of theirs that are loaded again."""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to debate.

    ``style`` says how to answer; a built-in one may be given by its name: ``style="boxed"`` asks for the final answer in
    ``\\boxed{}``. ``payload`` is for the grader alone (the tests of a program, a rubric): JSON-like data, which no agent is
    shown. Lists in it become tuples. ``solution`` is a worked solution to learn from in a warm start, which no debate shows.
    """

    id: str
    text: str
    answer: str | None = None
    style: Style = OPEN
    dataset: str = ""
    payload: Any = None
    solution: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.style, str):
            if self.style not in STYLES:
                raise UserError(f"style: {self.style!r} is not known; {nearest(self.style, tuple(STYLES))}")
            object.__setattr__(self, "style", STYLES[self.style])
        if self.payload is not None:
            object.__setattr__(self, "payload", frozen(self.payload))

    @property
    def known(self) -> bool:
        """Whether there is something to grade by."""
        return self.answer is not None or self.payload is not None


_DEEPEST = 100


class FrozenDict(Mapping[str, Any]):
    """A dict that can't be changed. ``json.dumps(…, default=dict)`` writes it."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(value: Any, depth: int = 0) -> Any:
    """JSON-like data that can't be changed: lists become tuples, dicts ``FrozenDict``. Anything else is refused."""
    if depth > _DEEPEST:
        raise UserError(f"payload: is nested more than {_DEEPEST} deep")
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        if not all(isinstance(name, str) for name in items):
            raise UserError("payload: a name is not text; give what JSON can hold")
        return FrozenDict({name: frozen(item, depth + 1) for name, item in items.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(item, depth + 1) for item in cast("list[Any]", value))
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise UserError(f"payload: {str(value)[:60]!r} ({type(value).__name__}) is nothing that JSON can hold")

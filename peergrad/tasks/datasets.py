"""Datasets that are known by name: where the hub has them, and what their rows look like."""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import Field
from peergrad.debate.question import BOXED, OPEN, Style, last_boxed
from peergrad.debate.quote import only_text
from peergrad.debate.settings import install_hint

Row = tuple[int, Field | UserError]
"""A row's number, from 1, and what is in it, or why it can't be read."""
Read = Callable[[Field], tuple[str, str | None]]
"""From a row to the question and the answer."""
LONGEST_SOLUTION = 100_000  # characters
_CALCULATOR = re.compile(r"<<[^<>=]*=[^<>]*>>")  # GSM8K marks what a calculator is to do: 48/2 = <<48/2=24>>24


@dataclass(frozen=True, slots=True)
class Dataset:
    """One of them. ``fields``: any of these shows that a row has the published shape; else it is question and answer."""

    name: str
    hub: str
    config: str | None
    train: str
    test: str | None
    style: Style
    fields: tuple[str, ...]
    published: Read

    def read(self, row: Field) -> tuple[str, str | None]:
        """The question and the answer of a row of the published shape, or of the plain one."""
        if any(name in row for name in self.fields):
            question, answer = self.published(row)
        elif "question" in row:
            question, answer = plain()(row)
        else:
            known = " or ".join(map(repr, dict.fromkeys((*self.fields, "question"))))
            row.wrong(f"has no field {known}, so it is no row of {self.name}; {_fields(row)}")
        if self.style == BOXED and answer is None:
            row.wrong(f"has no answer; every row of {self.name} needs one")
        return question, answer if self.style == BOXED else None


SUBJECTS = (
    "algebra",
    "counting-probability",
    "geometry",
    "intermediate-algebra",
    "number-theory",
    "prealgebra",
    "precalculus",
)
"""Those of math."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A dataset with the file it is in, if it is not the hub's, and which rows: those of any of the subjects, at any of the
    levels. Example: ``math:train.jsonl:algebra:level1-3``.
    """

    dataset: str
    path: str
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(name: str) -> Selection | None:
        """The dataset that a name begins with; ``None``: it is no dataset's."""
        dataset, _, path = name.partition(":")
        if dataset not in DATASETS:
            return None
        parts: list[str] = []
        while dataset == "math" and (path.rpartition(":")[2] in SUBJECTS or _LEVELS.fullmatch(path.rpartition(":")[2])):
            path, _, part = path.rpartition(":")
            if (levels := _LEVELS.fullmatch(part)) and levels[2] and levels[1] > levels[2]:
                raise UserError(f"task: {part} has no levels in it; give the lower one first, as in level1-3")
            parts.insert(0, part)
        return Selection(dataset, path, tuple(parts))

    @property
    def name(self) -> str:
        return "-".join((self.dataset, *self.parts))

    def rows(self, numbered: Iterable[Row]) -> Iterator[Row]:
        """The rows that are chosen; rows that can't be read are among them."""
        subjects = {part for part in self.parts if part in SUBJECTS}
        ranges = [match.groups() for part in self.parts if (match := _LEVELS.fullmatch(part))]
        levels = {level for low, high in ranges for level in range(int(low), int(high or low) + 1)}
        for number, row in numbered:
            try:
                if isinstance(row, UserError) or (
                    (not subjects or _subject(row) in subjects) and (not levels or _level(row) in levels)
                ):
                    yield number, row
            except UserError as error:
                yield number, error


_LEVELS = re.compile(r"level([1-5])(?:-([1-5]))?")


def _subject(row: Field) -> str:
    field = next((row[name] for name in ("subject", "type") if name in row), None)
    if field is None:
        row.wrong(f"has no field 'subject' or 'type', so it can't be chosen by subject; {_fields(row)}")
    return "-".join(word for word in re.findall(r"[a-z]+", field.text().lower()) if word != "and")


def _level(row: Field) -> int:
    """5 of ``5`` and of ``Level 5``; 0 where the level is not known."""
    if "level" not in row:
        row.wrong(f"has no field 'level', so it can't be chosen by level; {_fields(row)}")
    digits = re.findall(r"\d", str(row["level"].value))
    return int(digits[0]) if len(digits) == 1 else 0


def hub_rows(dataset: Dataset, split: str) -> Iterator[Row]:
    """Every row of a split, downloaded from the hub or from the cache."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError:
        how = f"{install_hint('datasets')}, or give its file: {dataset.name}:PATH"
        raise UserError(f"task: to get {dataset.name} from the hub needs the library datasets; {how}") from None
    try:
        library.disable_progress_bars()
        split_rows = library.load_dataset(dataset.hub, dataset.config, split=split)
    except Exception as error:  # of the network, of the hub, of the disk: the library has dozens
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        how = f"try again, or give its file: {dataset.name}:PATH"
        raise EngineError(f"task: {dataset.hub} can't be had from the hub ({why}); {how}") from None
    for number, value in enumerate(split_rows, 1):
        yield number, Field(value, f"{dataset.hub}, {split}, row {number}")


def plain(question_field: str = "question", answer_field: str = "answer") -> Read:
    """How to read a row with a field for the question and, if there is truth, one for the answer."""

    def read(row: Field) -> tuple[str, str | None]:
        if question_field not in row:
            row.wrong(f"has no field {question_field!r} (question_field); {_fields(row, question_field)}")
        return text(row[question_field]), _answer(row.get(answer_field, None))

    return read


def _fields(row: Field, wanted: str = "") -> str:
    """What a row has, to choose from."""
    names = tuple(map(str, row.value))[:20]
    close = difflib.get_close_matches(wanted, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, names)) or 'none'}"


def text(field: Field, what: str = "question") -> str:
    """A question, which must be there and be text."""
    content = field.text().strip()
    if not content:
        field.wrong(f"is empty; every row needs a {what}")
    if any("\ud800" <= char <= "\udfff" for char in content):
        field.wrong("holds half a character (a lone surrogate); write it whole")
    return content


def _answer(field: Field) -> str | None:
    """An answer as text, or ``None`` where there is none."""
    value = field.value
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        field.wrong(f"{field.shown} is neither text nor a number; write it in quotes")
    return str(value) if isinstance(value, int | float) else text(field)


def worked_solution(row: Field, answer: str | None) -> str | None:
    """The worked solution in a row, if it has one: its ``solution``, or what stands before the answer of a GSM8K row.

    The answer, where there is one, is put in a box behind it unless something in it is boxed.
    """
    solution = row.get("solution", None).value or str(row.get("answer", None).value).rpartition("####")[0]
    if not isinstance(solution, str) or not solution.strip() or len(solution) > LONGEST_SOLUTION:
        return None
    solution = only_text(_CALCULATOR.sub("", solution).strip())
    return solution if answer is None or last_boxed(solution) else f"{solution}\n\\boxed{{{answer}}}"


def solved(row: Field) -> tuple[str, str | None]:
    """The question and the answer of a row that must have a worked solution too: what a warm start learns from."""
    solution = text(row["solution"], "solution to learn from")
    if len(solution) > LONGEST_SOLUTION:
        row["solution"].wrong(f"has {len(solution):,} characters; give at most {LONGEST_SOLUTION:,}")
    return plain()(row)


def _gsm8k(row: Field) -> tuple[str, str | None]:
    """The worked solution ends in ``#### answer``."""
    solved = _answer(row.get("answer", None))
    return text(row["question"]), solved and (solved.rpartition("####")[2].strip() or None)


def _math(row: Field) -> tuple[str, str | None]:
    """The answer has a field of its own in newer copies; in the first, it is what the solution boxes last."""
    answer = _answer(row.get("answer", None))
    if answer is None and row.get("solution", None).value is not None:
        answer = last_boxed(row["solution"].text()) or row["solution"].wrong(
            "has no \\boxed answer; give one, or a field for it"
        )
    return text(row["problem"]), answer


def _svamp(row: Field) -> tuple[str, str | None]:
    """A story and what is asked about it."""
    body, asked = text(row["Body"]), text(row["Question"])
    return f"{body}{'' if body.endswith(('.', '?', '!', ',')) else '.'} {asked}", _answer(row.get("Answer", None))


def _longwriter(row: Field) -> tuple[str, str | None]:
    """A conversation; what the person says first is the question."""
    for message in row["messages"]:
        if message.object()["role"].text() == "user":
            return text(message["content"]), None
    return row["messages"].wrong("has no message of the role 'user'")


def _mt_bench(row: Field) -> tuple[str, str | None]:
    """Turns of a conversation; the first is the question."""
    turns = row["turns"] if "turns" in row else row["prompt"]
    if isinstance(turns.value, str):
        return text(turns), None
    first = next(iter(turns), None) or turns.wrong("is empty; every row needs a question")
    return text(first), None


DATASETS = {
    known.name: known
    for known in (
        Dataset("gsm8k", "openai/gsm8k", "main", "train", "test", BOXED, ("question",), _gsm8k),
        Dataset("math", "nlile/hendrycks-MATH-benchmark", None, "train", "test", BOXED, ("problem",), _math),
        Dataset("aime", "HuggingFaceH4/aime_2024", None, "train", None, BOXED, ("problem",), _math),
        Dataset("svamp", "ChilleD/SVAMP", None, "train", "test", BOXED, ("Body",), _svamp),
        Dataset("longwriter", "THUDM/LongWriter-6k", None, "train", None, OPEN, ("messages",), _longwriter),
        Dataset("mt-bench", "HuggingFaceH4/mt_bench_prompts", None, "train", None, OPEN, ("turns", "prompt"), _mt_bench),
    )
}

"""Questions as a list, made from the rows of a file or of the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field
from peergrad.debate.style import BOXED, OPEN
from peergrad.debate.types import Question
from peergrad.tasks.arithmetic import Arithmetic
from peergrad.tasks.base import Grade, Grader
from peergrad.tasks.datasets import Read, plain
from peergrad.tasks.grading import grade, installed, needs_math
from peergrad.tasks.rows import Row, rows, stem


@dataclass(frozen=True, slots=True)
class Questions:
    """A list of questions and who grades them: what is in the last box is compared as a number, as words, or as mathematics,
    unless there is another ``grader``.

    ``skipped`` says of each row that was left out why it can't be used.
    """

    name: str
    questions: Sequence[Question]
    skipped: tuple[str, ...] = ()
    grader: Grader = grade

    @property
    def known(self) -> bool:
        """Whether there is truth to grade by."""
        return any(question.known for question in self.questions)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int, /) -> Question:
        return self.questions[index]

    def grade(self, question: Question, solution: str) -> Grade:
        """A grade for a solution."""
        return self.grader(question, solution)


def read_questions(
    path: Path, question_field: str = "question", answer_field: str = "answer", *, skip_bad: bool = False
) -> Questions:
    """The questions of a file of any origin. A row that can't be used is refused by file, row and field.

    Example: ``read_questions(Path("mine.csv"), answer_field="gold")``
    """
    label = stem(path)
    name = path.name if label == Arithmetic.name else label  # its questions must not be taken for the built-in ones
    return questions_of(rows(path), plain(question_field, answer_field), name, label, str(path), skip_bad)


def questions_of(numbered: Iterable[Row], read: Read, name: str, label: str, origin: str, skip_bad: bool) -> Questions:
    """The questions of rows from ``origin``. They belong to the dataset ``name`` and are called ``label`` and a number.

    Rows with ids of their own keep them if every row has one and no two are the same.
    """
    used: list[tuple[int, object, str, str | None]] = []
    skipped: list[str] = []
    for number, row in numbered:
        try:
            if isinstance(row, UserError):
                raise row
            question, answer = read(row)
            used.append((number, row.get("id", None).value, question, answer))
        except UserError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if not used and skipped:
        raise UserError(f"task: none of the {len(skipped)} rows of {origin} can be used; the first: {skipped[0]}")
    if not used:
        raise UserError(f"task: {origin} has no questions")
    _check_math([answer for *_, answer in used if answer is not None], origin)
    ids = [own for _, own, *_ in used if isinstance(own, str) and own.isprintable() and 0 < len(own) <= 200]
    if len(set(ids)) != len(used):
        ids = [f"{label}-{number}" for number, *_ in used]
    asked = (
        Question(id, question, answer, OPEN if answer is None else BOXED, name)
        for id, (*_, question, answer) in zip(ids, used, strict=True)
    )
    return Questions(name, tuple(asked), tuple(skipped))


def fingerprint(questions: Sequence[Question]) -> str:
    """A hash of all that is asked and of what it is graded by."""
    hashed = hashlib.sha256()
    for question in questions:
        hashed.update(repr((question.id, question.text, question.answer, question.style.name)).encode())
        if question.payload is not None:
            hashed.update(json.dumps(question.payload, default=dict).encode())
    return hashed.hexdigest()


def _check_math(golds: Sequence[str], origin: str) -> None:
    if not installed():
        wanting = next((gold for gold in golds if needs_math(gold)), None)
        if wanting is not None:
            shown = Field(wanting, "").shown
            why = f"answers such as {shown} can only be compared as mathematics"
            raise UserError(f"task: {origin}: {why}; pip install 'peergrad[math]'")

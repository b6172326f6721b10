"""Questions from a person's file: JSON lines or CSV, one question a row."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field, nearest
from peergrad.debate.types import Question
from peergrad.tasks.base import Grade
from peergrad.tasks.grading import grade


@dataclass(frozen=True, slots=True)
class Questions:
    """A list of questions. With answers they are asked for in a box and graded; without, there is no truth."""

    name: str
    questions: Sequence[Question]

    @property
    def known(self) -> bool:
        """Whether there is truth to grade by."""
        return any(question.answer is not None for question in self.questions)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int, /) -> Question:
        return self.questions[index]

    def grade(self, question: Question, solution: str) -> Grade:
        """What is in the last box, compared as a number, as words, or as mathematics."""
        return grade(question, solution)


def read_questions(path: Path, question_field: str = "question", answer_field: str = "answer") -> Questions:
    """The questions of a ``.jsonl`` or ``.csv`` file. A row that can't be used is refused by file, row and field."""
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"task: {path} can't be read ({why}); give a .jsonl or .csv file") from None
    rows = _csv(raw, path) if path.suffix.lower() == ".csv" else _jsonl(raw, path)
    questions: list[Question] = []
    for number, row in rows:
        if question_field not in row:
            known = tuple(map(str, row.value))
            row.wrong(f"has no field {question_field!r} (question_field); {nearest(question_field, known)}")
        text = row[question_field].text().strip()
        if not text:
            row[question_field].wrong("is empty; every row needs a question")
        found = row.get(answer_field, None)
        if found.value in (None, ""):
            answer = None
        else:
            answer = str(found.value) if isinstance(found.value, int | float) else found.text()
        questions.append(Question(f"{path.stem}-{number}", text, answer, "open" if answer is None else "boxed", path.stem))
    if not questions:
        raise UserError(f"task: {path} has no questions")
    return Questions(path.stem, tuple(questions))


def fingerprint(questions: Sequence[Question]) -> str:
    """A hash of all that is asked and of the answers."""
    hashed = hashlib.sha256()
    for question in questions:
        hashed.update(repr((question.id, question.text, question.answer, question.style)).encode())
    return hashed.hexdigest()


def _jsonl(raw: bytes, path: Path) -> Iterator[tuple[int, Field]]:
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if line.strip():
            yield number, Field.parse(line, f"{path}, line {number}")


def _csv(raw: bytes, path: Path) -> Iterator[tuple[int, Field]]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, row in enumerate(reader, 1):
            where = f"{path}, row {number}"
            if None in row or None in row.values():
                raise UserError(f"{where}: has another number of cells than the header; quote cells that hold commas")
            yield number, Field(row, where)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: is not CSV ({error})") from None

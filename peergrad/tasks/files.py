"""Questions of a person's file (JSON lines, a JSON list or CSV, each also packed with gzip), and questions as typed."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field, open_plain
from peergrad.debate.question import BOXED, OPEN, Question, Style
from peergrad.debate.settings import install_hint
from peergrad.tasks.base import TASKS, Questions
from peergrad.tasks.datasets import Read, Row, plain, worked_solution
from peergrad.tasks.grading import grade, installed, needs_math

KINDS = ".jsonl, .json or .csv file, or one of them with .gz on its end"
_MOST_BYTES = 1 << 30  # a small file may unpack to more than anybody wants to read
_MOST_AT_ONCE = 256 << 20  # of what has to be in memory as a whole
_LONGEST_LINE = 16 << 20
_MOST_LINES = 5_000_000
_BOM = b"\xef\xbb\xbf"
_LINE_ENDS = r"\r\n|\r|\n"


def read_questions(
    path: Path, question_field: str = "question", answer_field: str = "answer", *, skip_bad: bool = False
) -> Questions:
    """The questions of a file of any origin. A row that can't be used is refused by file, row and field.

    Example: ``read_questions(Path("mine.csv"), answer_field="gold")``
    """
    label = stem(path)
    name = path.name if label in TASKS else label  # its questions must not be taken for the built-in ones
    return questions_of(rows(path), plain(question_field, answer_field), name, label, str(path), skip_bad)


def questions_of(numbered: Iterable[Row], read: Read, name: str, label: str, origin: str, skip_bad: bool) -> Questions:
    """The questions of rows from ``origin``. They belong to the dataset ``name`` and are called ``label`` and a number.

    Rows with ids of their own keep them if every row has one and no two are the same.
    """
    used: list[tuple[int, Any, str | None, str, str | None]] = []
    skipped: list[str] = []
    for number, row in numbered:
        try:
            if isinstance(row, UserError):
                raise row
            question, answer = read(row)
            used.append((number, row.get("id", None).value, worked_solution(row, answer), question, answer))
        except UserError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if not used and skipped:
        raise UserError(f"task: none of the {len(skipped)} rows of {origin} can be used; the first: {skipped[0]}")
    if not used:
        raise UserError(f"task: {origin} has no questions")
    answers = () if installed() else (answer for *_, answer in used if answer is not None)
    if (hard := next(filter(needs_math, answers), None)) is not None:
        why = f"answers such as {Field(hard, '').shown} can only be compared as mathematics"
        raise UserError(f"task: {origin}: {why}; {install_hint('math')}")
    ids = [own for _, own, *_ in used if isinstance(own, str) and own.isprintable() and 0 < len(own) <= 200]
    if len(set(ids)) != len(used):
        ids = [f"{label}-{number}" for number, *_ in used]
    questions = (
        Question(id, question, answer, OPEN if answer is None else BOXED, name, solution=solution)
        for id, (*_, solution, question, answer) in zip(ids, used, strict=True)
    )
    return Questions(name, tuple(questions), grade, tuple(skipped))


def rows(path: Path) -> Iterator[Row]:
    """Every row of a file. What makes the whole file unreadable is raised."""
    if not is_kind_of_file(path):
        raise UserError(f"task: {path} is of no kind that can be read; give a {KINDS}")
    packed = path.suffix.lower() == ".gz"
    read = {".jsonl": _lines, ".json": _json, ".csv": _csv}[_unpacked(path).suffix.lower()]
    try:
        with open_plain(path) as raw, io.BufferedReader(cast("Any", gzip.GzipFile(fileobj=raw))) if packed else raw as file:
            yield from read(file, path)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        if packed and getattr(error, "errno", None) is None:  # of what is in it, not of the file
            raise UserError(f"task: {path} can't be unpacked ({error}); pack it again with gzip") from None
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"task: {path} can't be read ({why}); give a {KINDS}") from None


def is_kind_of_file(path: Path) -> bool:
    """Whether a name ends as those of files that can be read."""
    return _unpacked(path).suffix.lower() in (".jsonl", ".json", ".csv")


def stem(path: Path) -> str:
    """A file's name without its kind: ``stem(Path("a/b.jsonl.gz")) == "b"``."""
    return _unpacked(path).stem


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _lines(file: BinaryIO, path: Path) -> Iterator[Row]:
    """An object a line, read line by line."""
    number, left = 0, _MOST_BYTES
    while read := file.readline(_LONGEST_LINE + 1):
        left -= len(read)
        if left < 0:
            raise UserError(f"task: {path} holds more than {_MOST_BYTES >> 30} GiB; give a part of it")
        if len(read) > _LONGEST_LINE:
            raise UserError(f"{path}, line {number + 1}: has more than {_LONGEST_LINE >> 20} MiB; give an object per line")
        # Bytes are split at line ends alone; text would be at Unicode's line separators too, which may be inside a question.
        for line in (read.removeprefix(_BOM) if not number else read).splitlines():
            number += 1
            if number > _MOST_LINES:
                raise UserError(f"task: {path} has more than {_MOST_LINES:,} lines; give a part of it")
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    yield number, Field.parse(_text(line, where), where)
                except UserError as error:
                    yield number, error


def _whole(file: BinaryIO, path: Path) -> str:
    raw = file.read(_MOST_AT_ONCE + 1)
    if len(raw) > _MOST_AT_ONCE:
        raise UserError(f"task: {path} holds more than {_MOST_AT_ONCE >> 20} MiB; give a part of it, or a .jsonl file")
    return _text(raw.removeprefix(_BOM), str(path))


def _json(file: BinaryIO, path: Path) -> Iterator[Row]:
    """A list of objects; anything else is taken for an object per line."""
    begins = cast("Any", file).peek(1024)
    if not begins.removeprefix(_BOM).lstrip().startswith(b"["):
        yield from _lines(file, path)
        return
    text = _whole(file, path)
    try:
        values: list[Any] = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise UserError(f"{where}: {error.msg}; the file is torn or not JSON; give a list of objects") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: can't be read as JSON ({error}); give a list of objects") from None
    for number, value in enumerate(values, 1):
        row = Field(value, f"{path}, row {number}")
        wrong = UserError(f"{row.where}: {row.shown} is not an object; each row must be one JSON object")
        yield number, row if isinstance(value, dict) else wrong


def _csv(file: BinaryIO, path: Path) -> Iterator[Row]:
    reader, number = csv.DictReader(io.StringIO(_whole(file, path), newline=""), strict=True), 0
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name, times in Counter(names).items() if times > 1), None)
        if twice is not None:
            raise UserError(f"{path}, header: has {twice!r} twice; give every column a name of its own")
        for number, row in enumerate(reader, 1):
            where = f"{path}, row {number}"
            if None in row or None in row.values():
                why = "has another number of cells than the header; quote cells that hold commas"
                yield number, UserError(f"{where}: {why}")
            else:
                yield number, Field(row, where)
    except csv.Error as error:
        raise UserError(f"{path}, row {number + 1}: is not CSV ({error}); close every quote that is opened") from None


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None


def typed_questions(texts: Sequence[str], style: Style, origin: str) -> tuple[Question, ...]:
    """A question of each text that is not blank. It is called by its first words and a hash, so that the same words always
    mean the same question; one that is asked twice gets a number.

    Example: ``typed_questions(["What is 17 + 25?"], OPEN, "question")[0].id == "what-is-17-25-ec7a5a"``
    """
    times: Counter[str] = Counter()
    questions: list[Question] = []
    for text in filter(None, (text.strip() for text in texts)):
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise UserError(f"{origin}: holds bytes that are not text; give plain UTF-8 text")
        name = name_of(text)
        times[name] += 1
        questions.append(Question(name if times[name] == 1 else f"{name}-{times[name]}", text, style=style))
    if not questions:
        raise UserError(f"{origin}: is empty; give at least one question")
    return tuple(questions)


def lines_of(raw: bytes, origin: str) -> list[str]:
    """The lines of a text."""
    return re.split(_LINE_ENDS, _text(raw.removeprefix(_BOM), origin))


def lines_of_file(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        with open_plain(path) as file:
            return re.split(_LINE_ENDS, _whole(file, path))
    except OSError as error:
        raise UserError(f"task: {path} can't be read ({error.strerror})") from None


def name_of(text: str) -> str:
    """A name for a text, fit for a file: its first words and a hash of all of it."""
    words = re.findall(r"[a-z0-9]+", text.lower())[:6]
    return "-".join([*(word[:20] for word in words), hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]])

"""The rows of a person's file: JSON lines, a JSON list or CSV, each also packed with gzip."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field

Row = tuple[int, Field | UserError]
"""A row's number, from 1, and what is in it, or why it can't be read."""

KINDS = ".jsonl, .json or .csv file, or one of them with .gz on its end"


def stem(path: Path) -> str:
    """A file's name without its kind: ``stem(Path("a/b.jsonl.gz")) == "b"``."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).stem


def rows(path: Path) -> Iterator[Row]:
    """Every row of a file. What makes the whole file unreadable is raised."""
    if not is_kind_of_file(path):
        raise UserError(f"task: {path} is of no kind that can be read; give a {KINDS}")
    return {".jsonl": _lines, ".json": _json, ".csv": _csv}[_kind(path)](_bytes(path), path)


def is_kind_of_file(path: Path) -> bool:
    """Whether a name ends as those of files that can be read."""
    return _kind(path) in (".jsonl", ".json", ".csv")


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"task: {path} can't be read ({why}); give a {KINDS}") from None
    if path.suffix.lower() == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"task: {path} can't be unpacked ({error}); pack it again with gzip") from None
    return raw.removeprefix(b"\xef\xbb\xbf")


def _lines(raw: bytes, path: Path) -> Iterator[Row]:
    # Bytes are split at line ends alone; text would be at Unicode's line separators too, which may be inside a question.
    for number, line in enumerate(raw.splitlines(), 1):
        if line.strip():
            try:
                yield number, _object(line, f"{path}, line {number}")
            except UserError as error:
                yield number, error


def _object(line: bytes, where: str) -> Field:
    try:
        return Field.parse(line.decode(), where)
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None


def _json(raw: bytes, path: Path) -> Iterator[Row]:
    """A list of objects; anything else is taken for an object per line."""
    if not raw.lstrip().startswith(b"["):
        yield from _lines(raw, path)
        return
    for number, value in enumerate(cast("list[Any]", _list(raw, path)), 1):
        row = Field(value, f"{path}, row {number}")
        if isinstance(value, dict):
            yield number, row
        else:
            yield number, UserError(f"{row.where}: {row.shown} is not an object; each row must be one JSON object")


def _list(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise UserError(f"{where}: {error.msg}; the file is torn or not JSON; give a list of objects") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: can't be read as JSON ({error}); give a list of objects") from None


def _csv(raw: bytes, path: Path) -> Iterator[Row]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    reader, number = csv.DictReader(io.StringIO(text, newline=""), strict=True), 0
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if names.count(name) > 1), None)
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

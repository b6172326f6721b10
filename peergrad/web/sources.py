"""What can be looked at: runs, evaluations and transcripts at the paths that a person gave, and their files of debates."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peergrad.debate.errors import UserError
from peergrad.web import safe
from peergrad.web.safe import Entry

Kind = Literal["run", "eval", "file"]

DEFAULTS = ("runs", "evals", "debates")
_DEPTH = 3
_MOST_FOLDERS = 5_000
_HEAD = 65_536
_OF_RUN = re.compile(r"(step|warm|eval|eval_warm)_(\d{6,9})")
_OF_EVAL = re.compile(r"[a-z]{1,32}")
_ORDER = ("warm", "eval_warm", "step", "eval")  # of what was made at the same step


@dataclass(frozen=True, slots=True)
class Part:
    """A file of debates. ``place`` sorts parts in the order they were made."""

    name: str
    kind: str
    step: int | None
    place: str
    path: tuple[str, ...]
    entry: Entry


@dataclass(frozen=True, slots=True)
class Source:
    """A run's or an evaluation's folder, or a transcript. ``run`` is the id of the run in whose folder it is."""

    id: str
    kind: Kind
    name: str
    path: Path
    run: str | None = None

    @staticmethod
    def of(kind: Kind, path: Path, name: str, run: str | None = None) -> Source:
        where = os.path.abspath(path)
        return Source(hashlib.sha256(os.fsencode(where)).hexdigest()[:16], kind, name, Path(where), run)

    def parts(self) -> list[Part]:
        """Its files of debates, in order; links and names that we do not give are passed over."""
        if self.kind == "file":
            entry = safe.entry_of(self.path)
            return [Part("debates", "file", None, "", (), entry)] if entry else []
        read = _run_part if self.kind == "run" else _eval_part
        found = [read(entry) for entry in safe.listing(self.path, "debates") if entry.name.endswith(".jsonl")]
        return sorted((part for part in found if part), key=lambda part: part.place)

    def opened(self, part: Part) -> contextlib.AbstractContextManager:
        """The file of a part."""
        return safe.opened(self.path, *part.path)

    def dropped(self, part: Part) -> dict[str, str]:
        """The debates that the engine dropped, and why."""
        about = safe.read_object(self.path, "debates", f"{part.name}.dropped.json") if self.kind == "run" else None
        return {id: why for id, why in (about or {}).items() if isinstance(why, str)}


def find(paths: Sequence[str | Path], *, live: bool = True) -> list[Source]:
    """All that there is at these paths; raises ``UserError`` for one that is not there.

    What is not ``live`` is for others to look at: its name does not say where on this machine it lies.
    """
    found: dict[str, Source] = {}
    for path in map(Path, paths):
        try:
            there = path.exists()
        except (OSError, ValueError):
            there = False
        if not there:
            raise UserError(f"{path}: is not there; give a run, an evaluation, a transcript, or a folder of them")
        for source in _at(path, path.name if path.is_absolute() and not live else str(path), given=True):
            found.setdefault(source.id, source)
    return list(found.values())


def _at(
    path: Path, name: str, depth: int = _DEPTH, *, given: bool = False, budget: list[int] | None = None
) -> Iterator[Source]:
    budget = budget if budget is not None else [_MOST_FOLDERS]
    budget[0] -= 1
    if budget[0] < 0:
        return
    if given and path.is_file():
        yield Source.of("file", path, name)
        return
    kind: Kind | None = "run" if safe.entry_of(path, "run.json") else "eval" if safe.entry_of(path, "eval.json") else None
    if kind:
        source = Source.of(kind, path, name)
        yield source
        for below in safe.listing(path, "evals", folders=True) if kind == "run" else ():
            if safe.entry_of(path, "evals", below.name, "eval.json"):
                yield Source.of("eval", path / "evals" / below.name, f"{name}/evals/{below.name}", source.id)
        return
    for entry in safe.listing(path):
        if entry.name.endswith(".jsonl") and _is_transcript(path, entry.name):
            yield Source.of("file", path / entry.name, f"{name}/{entry.name}")
    for below in safe.listing(path, folders=True) if depth else ():
        if not below.name.startswith("."):
            yield from _at(path / below.name, f"{name}/{below.name}", depth - 1, budget=budget)


def _is_transcript(folder: Path, name: str) -> bool:
    with contextlib.suppress(OSError), safe.opened(folder, name) as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
        return head.startswith(b"{") and all(f'"{field}"'.encode() in head for field in ("question", "agents", "protocol"))
    return False


def _run_part(entry: Entry) -> Part | None:
    match = _OF_RUN.fullmatch(entry.name.removesuffix(".jsonl"))
    if not match:
        return None
    kind, number = match[1], int(match[2])
    step = 0 if kind == "eval_warm" else number
    place = f"{step:09}.{_ORDER.index(kind)}.{number:09}"
    return Part(match[0], kind.removesuffix("_warm"), step, place, ("debates", entry.name), entry)


def _eval_part(entry: Entry) -> Part | None:
    name = entry.name.removesuffix(".jsonl")
    order = ("debate", "seats", "pairs", "direct", "samples", "alone")
    place = f"{order.index(name) if name in order else 9}.{name}"
    return Part(name, name, None, place, ("debates", entry.name), entry) if _OF_EVAL.fullmatch(name) else None

"""The index of a source: where every debate begins, its row, and what was said. Kept in the user's cache, never beside the
debates: a folder may be read-only, or somebody else's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peergrad import __version__
from peergrad.debate.errors import UserError
from peergrad.learn.data import has_signal
from peergrad.reward.rewards import Scored
from peergrad.web import safe
from peergrad.web.lines import Line, lines, load_light, said
from peergrad.web.scoring import FLAGS, Rules, ScoredDebate, centred, flags_of, no_row, rules_of
from peergrad.web.sources import Part, Source

_FORMAT = 1
_COMMIT_S = 0.2
_EDGE = 512  # bytes at both ends of what was read, to see whether a file that grew is still the same
_MOST_IN_BATCH = 5_000  # debates of a part that are centred together; more than any step has

SORTS = {
    "part": "place, idx", "id": "id", "question": "question", "rounds": "rounds", "right": "right_share",
    "flips": "flips", "winner_right": "winner_right", "votes": "votes", "copied": "copied", "malformed": "malformed",
    "unreadable": "unreadable", "signal": "signal", "chars": "chars", "sampled_tokens": "sampled_tokens",
}  # fmt: skip
_NUMBERS = ("rounds", "right_share", "winner_right", "votes", "copied", "malformed", "unreadable", "signal", "chars")
_COLUMNS = ("part", "idx", "place", "offset", "length", "id", "question_id", "question", "flags", "flips", *_NUMBERS)
_COLUMNS += ("sampled_tokens", "row", "advantages")
_SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE parts (name TEXT PRIMARY KEY, size INT, mtime_ns INT, inode INT, done INT, lines INT, edges TEXT, problem TEXT);
CREATE TABLE debates ({", ".join(_COLUMNS)}, PRIMARY KEY (part, idx));
CREATE INDEX by_question ON debates (question_id);
CREATE INDEX by_place ON debates (place, idx);
CREATE TABLE said (part TEXT, idx INT, folded BLOB, PRIMARY KEY (part, idx));
CREATE TABLE alarms (step INT PRIMARY KEY, found TEXT);
"""  # a dropped debate has an idx below 0


def cache_folder() -> Path:
    """Where indexes are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().absolute() / "peergrad" / "view"


def fold(text: str) -> bytes:
    """Text as it is searched: without the difference of cases."""
    return text.lower().encode("utf-8", "replace")


class Index:
    """The index of one source. One thread of one process writes, any number read."""

    def __init__(self, source: Source, folder: Path | None) -> None:
        self.source, self.rules = source, Rules()
        self._path = folder and folder / f"{source.id}.sqlite"
        self._memory = None if folder else sqlite3.connect(":memory:", check_same_thread=False)
        self._lock = threading.RLock()
        self._rules_seen: tuple[object, ...] = ()
        self.wanted: set[str] = set()  # parts that somebody waits for
        self.parts = source.parts()
        self.complete = False  # whether all that was there was read
        with self._lock:
            self._prepare()

    @property
    def revision(self) -> object:
        """Something that differs when anything was written, by whatever process."""
        ends = ("", "-wal") if self._path else ()
        return [_stamp(f"{self._path}{end}") for end in ends]

    # Connections

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one piece of work. An index in memory has only one."""
        if self._memory:
            with self._lock:
                yield self._memory
            return
        connection = sqlite3.connect(str(self._path), timeout=30)
        try:
            yield connection
        finally:
            connection.close()

    def _prepare(self) -> None:
        """Make the database, unless there is one of this source, this version and these rules."""
        self._read_rules()
        about = [
            _FORMAT,
            __version__,
            str(self.source.path),
            self.source.kind,
            self.rules.as_object(),
        ]
        about.append(hashlib.sha256(repr([self.rules.learn.reward, self.rules.learn.steps]).encode()).hexdigest())
        expected = json.dumps(about)
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for attempt in range(2):
            try:
                with self.connected() as db:
                    if self._path:
                        db.execute("PRAGMA journal_mode = WAL")
                        db.execute("PRAGMA synchronous = NORMAL")
                    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alarms'").fetchone():
                        db.executescript(_SCHEMA)
                    found = db.execute("SELECT value FROM meta WHERE name = 'about'").fetchone()
                    if not found or found[0] != expected:
                        for table in ("parts", "debates", "said", "alarms", "meta"):
                            db.execute(f"DELETE FROM {table}")
                        db.execute("INSERT INTO meta VALUES ('about', ?)", (expected,))
                    db.commit()
                return
            except sqlite3.DatabaseError as error:
                if attempt or not self._path or isinstance(error, sqlite3.OperationalError):
                    raise UserError(f"{self._path}: can't be used as an index ({error}); remove it") from None
                for end in ("", "-wal", "-shm"):
                    Path(f"{self._path}{end}").unlink(missing_ok=True)

    def _is_there(self) -> bool:
        """Whether nobody deleted or damaged it."""
        with contextlib.suppress(sqlite3.DatabaseError), self.connected() as db:
            return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alarms'").fetchone())
        return False

    def _read_rules(self) -> None:
        self._rules_seen = self._rules_files()
        self.rules = rules_of(self.source)

    def _rules_files(self) -> tuple[object, ...]:
        return (safe.entry_of(self.source.path, "config.toml"),) if self.source.kind != "file" else ()

    # Writing

    def refresh(self, until: float | None = None) -> bool:
        """Look for what is new and read it, for a while if ``until`` says so; returns whether anything changed.

        Another process that indexes the same source is left to it.
        """
        with self._writing() as ours:
            if not ours:
                return False
            if self._rules_files() != self._rules_seen or not self._is_there():
                self._prepare()
            self.parts = self.source.parts()
            with self.connected() as db:
                known = {row[0]: row[1:] for row in db.execute("SELECT * FROM parts")}
            changed = self._forget_gone(known)
            self.complete = True
            for part in sorted(self.parts, key=lambda part: part.name not in self.wanted):
                if not _is_read(part, known.get(part.name)):
                    self._read_part(part, known.get(part.name), until)
                    changed = True
                if until is not None and time.monotonic() > until:
                    self.complete = False
                    break
            return changed

    @contextlib.contextmanager
    def _writing(self) -> Iterator[bool]:
        if not self._path:
            yield True
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(f"{self._path}.lock", "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def _forget_gone(self, known: dict[str, Any]) -> bool:
        gone = known.keys() - {part.name for part in self.parts}
        with self.connected() as db:
            for name in gone:
                self._forget(db, name)
            db.commit()
        return bool(gone)

    def _forget(self, db: sqlite3.Connection, name: str) -> None:
        for table, column in (("debates", "part"), ("said", "part"), ("parts", "name")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
        if name.startswith("step_"):
            db.execute("DELETE FROM alarms WHERE step = ?", (int(name.removeprefix("step_")),))

    def read(self, part: Part) -> None:
        """Read one file that was not read before."""
        self._read_part(part, None, None)

    def _read_part(self, part: Part, before: Any, until: float | None) -> None:
        """Read what is new in a file."""
        size, mtime_ns, inode = part.entry[1:]
        batched = self.rules.learn.center != "group"  # then debates of a part are scored together
        with self.connected() as db:
            try:
                with self.source.opened(part) as file:
                    same = before and before[2] == inode and before[3] <= size and _edges(file, before[3]) == before[5]
                    if not same or batched:
                        self._forget(db, part.name)
                        before = None
                    done, count = (before[3], before[4]) if before else (0, 0)
                    self._read_lines(db, part, file, done, count, until)
            except OSError as error:
                about = (part.name, size, mtime_ns, inode, 0, 0, "", f"can't be read ({error.strerror})")
                db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", about)
            db.commit()

    def _read_lines(self, db: sqlite3.Connection, part: Part, file: Any, done: int, count: int, until: float | None) -> None:
        if not count:
            for at, (id, why) in enumerate(self.source.dropped(part).items(), 1):
                self._add(db, part, -at, None, no_row(id=id[:300], dropped=why[:1000]), [], b"")
        batch: list[tuple[int, dict[str, Any], Scored]] = []
        next_commit, problem = time.monotonic() + _COMMIT_S, None
        batched = self.rules.learn.center != "group"
        for line in lines(file, done):
            row, scored, texts = self._read_line(part, count, line)
            if row["problem"] and not line.whole:
                problem = "its last line is torn, or still being written"
                break
            if scored and batched and len(batch) < _MOST_IN_BATCH:
                batch.append((count, row, scored.scored))
            self._add(db, part, count, line, row, [], fold("\0".join(texts)))
            done, count = line.offset + line.length, count + 1
            if (now := time.monotonic()) > next_commit:
                next_commit = now + _COMMIT_S
                if not batched:  # a batch is seen when it is whole
                    self._note(db, part, file, done, count, None)
                    db.commit()
                    if until is not None and now > until:
                        return
        else:
            done = max(done, part.entry.size)  # blank lines at the end
        for (at, row, scored), values in zip(batch, centred([one[2] for one in batch], self.rules), strict=True):
            row["signal"] = has_signal(scored.streams, values)
            self._change(db, part.name, at, row, values)
        self._note(db, part, file, done, count, problem)

    def _note(self, db: sqlite3.Connection, part: Part, file: Any, done: int, count: int, problem: str | None) -> None:
        about = (part.name, *part.entry[1:], done, count, _edges(file, done), problem)
        db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", about)

    def _read_line(self, part: Part, index: int, line: Line) -> tuple[dict[str, Any], ScoredDebate | None, list[str]]:
        where = f"{part.name}, debate {index}"
        if line.text is None:
            return no_row(id=where, problem=f"{where}: the line is longer than 32 MB"), None, []
        try:
            one = ScoredDebate(load_light(line.text, where), self.rules, part.step)
            return one.row(), one, said(one.debate)
        except UserError as error:
            return no_row(id=where, problem=str(error)[:1000]), None, []
        except Exception as error:  # whatever somebody wrote there, the other lines are shown
            return no_row(id=where, problem=f"{where}: can't be scored ({type(error).__name__})"), None, []

    def _add(
        self,
        db: sqlite3.Connection,
        part: Part,
        index: int,
        line: Line | None,
        row: dict[str, Any],
        values: list[Any],
        text: bytes,
    ) -> None:
        row |= {"part": part.name, "index": index if index >= 0 else None, "step": part.step}
        flags = flags_of(row)
        bits = sum(1 << FLAGS.index(flag) for flag in flags)
        named = {"part": part.name, "idx": index, "place": part.place, "flags": bits}
        named |= {"offset": line.offset if line else None, "length": line.length if line else None}
        named |= {
            "flips": row["right_to_wrong"] + row["wrong_to_right"],
            "advantages": json.dumps(values) if values else None,
        }
        named |= {name: _number(row[name]) for name in (*_NUMBERS, "sampled_tokens")}
        named |= {name: _text(row[name]) for name in ("id", "question_id", "question")}
        named["row"] = json.dumps(row | {"flags": flags})
        db.execute(f"INSERT INTO debates VALUES ({', '.join('?' * len(_COLUMNS))})", [named[name] for name in _COLUMNS])
        if text:
            db.execute("INSERT INTO said VALUES (?, ?, ?)", (part.name, index, text))

    def _change(
        self, db: sqlite3.Connection, part: str, index: int, row: dict[str, Any], values: Any, *, alarm: bool = False
    ) -> None:
        flags = flags_of(row, alarm=alarm)
        bits = sum(1 << FLAGS.index(flag) for flag in flags)
        changed = (
            bits,
            row["signal"],
            json.dumps(row | {"flags": flags}),
            json.dumps(values) if values is not None else None,
        )
        columns = "flags = ?, signal = ?, row = ?, advantages = coalesce(?, advantages)"
        db.execute(f"UPDATE debates SET {columns} WHERE part = ? AND idx = ?", (*changed, part, index))

    def mark_alarms(self, step: int, found: list[dict[str, Any]]) -> None:
        """Keep what set off the alarms of a step, and mark the debates that it names."""
        named = {one["index"] for alarm in found for one in alarm["debates"]}
        part = f"step_{step:06}"
        with self._writing() as ours, self.connected() as db:
            if not ours:
                return
            db.execute("INSERT OR REPLACE INTO alarms VALUES (?, ?)", (step, json.dumps(found)))
            for index in named:
                kept = db.execute("SELECT row FROM debates WHERE part = ? AND idx = ?", (part, index)).fetchone()
                if kept:
                    self._change(db, part, index, json.loads(kept[0]), None, alarm=True)
            db.commit()


def _stamp(path: str) -> object:
    """When a file of an index was written. To open and close it would drop all locks that SQLite has on it here."""
    with contextlib.suppress(OSError):
        about = os.stat(path)
        return about.st_size, about.st_mtime_ns, about.st_ino
    return None


def _is_read(part: Part, before: Any) -> bool:
    """Whether a file is as it was when it was read to its end."""
    return bool(before) and before[:3] == part.entry[1:] and (before[3] >= part.entry.size or before[6] is not None)


def _edges(file: Any, done: int) -> str:
    """A hash of the beginning and the end of what was read."""
    edge = os.pread(file.fileno(), min(_EDGE, done), 0) + os.pread(file.fileno(), min(_EDGE, done), max(0, done - _EDGE))
    return hashlib.sha256(edge).hexdigest()


def _number(value: Any) -> Any:
    """A number as SQLite can hold it."""
    return max(-(2**63), min(value, 2**63 - 1)) if isinstance(value, int) else value


def _text(text: str | None) -> str | None:
    """Text that SQLite takes."""
    return text if text is None else text.encode("utf-8", "replace").decode()

"""All sources with their indexes, kept up to date in the background, and every page's data by its key
(docs/reference/view.md).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad import __version__
from peergrad.debate.errors import UserError
from peergrad.web import safe
from peergrad.web.compare import alarm_debates, compare, evaluation_alarms
from peergrad.web.debate_page import debate_page
from peergrad.web.index import Index
from peergrad.web.overview import Overview, changed_at, is_locked
from peergrad.web.scoring import ScoredDebate
from peergrad.web.sources import Part, Source, find
from peergrad.web.tables import (
    advantages_of,
    indexed,
    read_debate,
    row_of,
    rows_of,
    same_question,
    shown,
    table,
    whole,
)

_PAUSE_S = 0.5
_FIND_S = 2.0
_SLICE_S = 0.5  # of the indexer's time for one source, before others have their turn
_GROWING_S = 10.0
_SAID = {"text", "question", "answer", "answers", "asked", "reason", "error", "tokens", "credit", "streams", "votes"}
# A path from the root or from above: all that there is or what stands in quotes, with whatever spaces, or a word.
_PLACE = re.compile(
    r"^(?:\.\.)?/[^:;\n]*/([^/:;\n]+)$"
    r"|(?<=(['\"]))(?:\.\.)?/(?:(?!\2)[^\n])*/((?:(?!\2)[^/\n])+)(?=\2)"
    r"|(?<![\w/<>.~)}\]])(?:\.\.)?/(?!/)(?:[^/\s'\"`,;:]+/)+([^/\s'\"`,;:]+)"
)
_FILES = ("run.json", "eval.json", "config.toml", "metrics.jsonl", "result.json", "time.jsonl")


class NotFoundError(Exception):
    """There is nothing under a key."""


class Shelf:
    """One source: its index, and its overview as long as no file of it changes."""

    def __init__(self, source: Source, cache: Path | None) -> None:
        self.source, self.index = source, Index(source, cache)
        self._live = cache is not None
        self._overview = Overview(source, self._live)
        self._signature: object = None
        self._seen: object = None

    @property
    def overview(self) -> Overview:
        if (now := self._files()) != self._signature:
            self._overview, self._signature = Overview(self.source, self._live), now
        return self._overview

    def _files(self) -> object:
        names = () if self.source.kind == "file" else _FILES
        growing = time.time() - changed_at(self.source, growing=True) < _GROWING_S
        return [*(safe.entry_of(self.source.path, name) for name in names), is_locked(self.source.path / "lock"), growing]

    def update(self, until: float | None = None) -> bool:
        """Look for what is new; returns whether a page would show something else."""
        changed = self.index.refresh(until)
        changed = self._mark_alarms() or changed
        seen, self._seen = self._seen, [self._files(), self.index.revision]
        return changed or seen != self._seen

    def _mark_alarms(self) -> bool:
        """Find what set off the alarms of one more step; the steps are many, and other things are waiting."""
        if self.source.kind != "run":
            return False
        with self.index.connected() as db:
            marked = {step for (step,) in db.execute("SELECT step FROM alarms")}
            read = {name for (name,) in db.execute("SELECT name FROM parts WHERE name LIKE 'step_%' AND done >= size")}
        lines = [line for line in self.overview.history.train if line.get("alarms")]
        steps = [line["step"] for line in lines if line["step"] not in marked and f"step_{line['step']:06}" in read]
        if steps:
            self.index.mark_alarms(steps[0], alarm_debates(self.index, self.overview, steps[0]))
        return bool(steps)

    def listed(self) -> dict[str, Any]:
        share, parts = indexed(self.index)
        first = next((row_of(self.index, part.name, 0) for part in self.index.parts), None)
        return self.overview.listed(first, sum(held for held, *_ in parts.values()), share)

    def part(self, name: str) -> Part:
        for part in self.index.parts:
            if part.name == name:
                return part
        raise NotFoundError("there is no such part; it may have gone")


class Library:
    """Everything there is to see. ``cache`` is where indexes are kept; ``None`` keeps them in memory, for an export."""

    def __init__(self, paths: Sequence[str | Path], cache: Path | None) -> None:
        self._paths, self._cache = [str(path) for path in paths], cache
        self.shelves: dict[str, Shelf] = {}
        self._nonce, self._count, self._list_changed = secrets.token_hex(4), 0, 0
        self._changed: dict[str, int] = {}
        self._found_at, self._turn = 0.0, 0
        self._stop = threading.Event()
        self.find()

    # Staying up to date

    def find(self) -> None:
        """Look for sources that are new, or gone."""
        found = {source.id: source for source in find(self._paths, live=self._cache is not None)}
        shelves = {id: self.shelves.get(id) or Shelf(source, self._cache) for id, source in found.items()}
        if shelves.keys() != self.shelves.keys():
            self._count += 1
            self._list_changed = self._count
            for id in shelves.keys() - self.shelves.keys():
                self._changed[id] = self._count
        self.shelves, self._found_at = shelves, time.monotonic()

    def update(self, slice_s: float | None = _SLICE_S) -> bool:
        """One round over all sources; returns whether anything changed."""
        any_changed = False
        # Of those with much to read one has its turn, so that what others add is seen soon.
        waiting = [id for id, shelf in self.shelves.items() if slice_s is not None and not shelf.index.complete]
        self._turn += 1
        for id, shelf in list(self.shelves.items()):
            if id in waiting and id != waiting[self._turn % len(waiting)]:
                continue
            try:
                until = None if slice_s is None else time.monotonic() + slice_s
                changed = shelf.update(until)
            except Exception:  # it goes while it is read, or holds what nobody thought of: the others go on
                changed = False
            if changed:
                self._count += 1
                self._changed[id] = self._count
                any_changed = True
            if self._stop.is_set():
                break
        return any_changed

    def watch(self) -> threading.Thread:
        """Stay up to date in a thread until ``close``."""

        def work() -> None:
            while not self._stop.is_set():
                busy = self.update()
                if time.monotonic() - self._found_at > _FIND_S:
                    try:
                        self.find()
                    except UserError:  # a path that was given is gone
                        self._found_at = time.monotonic()
                self._stop.wait(0.01 if busy else _PAUSE_S)

        thread = threading.Thread(target=work, name="index", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self._stop.set()

    # Pages

    def get(self, key: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What is under a key; raises ``NotFoundError`` and, for a query that can't be, ``UserError``."""
        name, *rest = key.split("/")
        pages: dict[tuple[str, int], Callable[..., dict[str, Any]]] = {
            ("sources", 0): self._sources,
            ("changes", 0): self._changes,
            ("source", 1): self._source,
            ("metrics", 1): self._metrics,
            ("alarms", 2): self._alarms,
            ("debates", 1): lambda query, source: table(self._shelf(source).index, query),
            ("question", 1): lambda query, source: same_question(self._shelf(source).index, query.get("question", "")),
            ("debate", 3): self._debate,
            ("compare", 2): self._compare,
        }
        page = pages.get((name, len(rest)))
        if page is None:
            raise NotFoundError("there is no such page")
        try:
            found = page(query or {}, *rest)
        except sqlite3.DatabaseError as error:
            raise NotFoundError(f"the index can't be read just now ({error})") from None
        return found if self._cache else self._unplaced(found)

    def _unplaced(self, value: Any) -> Any:
        """What an export may hold: it does not say where on this machine something lies. What was asked and said stays."""
        if isinstance(value, dict):
            return {name: one if name in _SAID else self._unplaced(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._unplaced(one) for one in value]
        if not isinstance(value, str) or "/" not in value:
            return value
        for shelf in self.shelves.values():
            value = value.replace(str(shelf.source.path), shelf.source.name)
        if (home := os.path.expanduser("~"))[1:]:  # its name may have spaces
            value = re.sub(rf"(?<![\w.]){re.escape(home)}(?![\w.-])", "/~", value)
        return _PLACE.sub(lambda found: f"…/{found[found.lastindex or 0]}", value.replace("file:///", "/"))

    def _shelf(self, id: str) -> Shelf:
        if id not in self.shelves:
            raise NotFoundError("there is no such source; it may have gone")
        return self.shelves[id]

    def _sources(self, _: Mapping[str, str]) -> dict[str, Any]:
        return {"version": __version__, "sources": [shelf.listed() for shelf in self.shelves.values()]}

    def _changes(self, query: Mapping[str, str]) -> dict[str, Any]:
        nonce, _, count = query.get("cursor", "").partition(".")
        since = int(count) if nonce == self._nonce and count.isascii() and count.isdigit() and len(count) < 16 else -1
        changed = [id for id, at in self._changed.items() if at > since and id in self.shelves]
        return {"cursor": f"{self._nonce}.{self._count}", "sources": changed, "list": self._list_changed > since}

    def _source(self, _: Mapping[str, str], id: str) -> dict[str, Any]:
        shelf = self._shelf(id)
        read = indexed(shelf.index)[1]
        parts: list[dict[str, Any]] = []
        for part in shelf.index.parts:
            debates, dropped, done, problem = read.get(part.name, (0, 0, 0, None))
            share = 1.0 if problem or not part.entry.size else min(1.0, done / part.entry.size)
            about = {"debates": debates, "dropped": dropped, "bytes": part.entry.size, "indexed": share, "problem": problem}
            parts.append({"name": part.name, "kind": part.kind, "step": part.step} | about)
        evals = [other.source.id for other in self.shelves.values() if other.source.run == id]
        about = {"source": shelf.listed(), **shelf.overview.page(), "rules": shelf.index.rules.as_object()}
        return about | {"parts": parts, "evals": evals}

    def _metrics(self, query: Mapping[str, str], id: str) -> dict[str, Any]:
        return self._shelf(id).overview.metrics(whole(query, "bins", 500, 10, 5000))

    def _alarms(self, _: Mapping[str, str], id: str, step: str) -> dict[str, Any]:
        shelf, at = self._shelf(id), whole({"step": step}, "step", 0, 0, 10**9)
        with shelf.index.connected() as db:
            kept = db.execute("SELECT found FROM alarms WHERE step = ?", (at,)).fetchone()
        found = json.loads(kept[0]) if kept else alarm_debates(shelf.index, shelf.overview, at)
        named = {alarm["name"] for alarm in found}
        later = [alarm for alarm in evaluation_alarms(shelf.overview, at) if alarm["name"] not in named]
        return {"step": at, "alarms": found + later}

    def _debate(self, _: Mapping[str, str], id: str, part: str, index: str) -> dict[str, Any]:
        shelf, at = self._shelf(id), whole({"index": index}, "index", 0, 0, 10**9)
        held = shelf.part(part)
        row, debate = row_of(shelf.index, part, at), read_debate(shelf.index, held, at)
        if row is None or debate is None:
            raise NotFoundError("there is no such debate, or it is not indexed yet")
        rules = shelf.index.rules
        scored = ScoredDebate(debate, rules, held.step)
        values = advantages_of(shelf.index, part, at) or scored.advantages
        next_ = row_of(shelf.index, part, at + 1)
        around = {"previous": at - 1 if at else None, "next": at + 1 if next_ else None}
        return {"row": shown(row), **around, **debate_page(scored, values, rules, held.step)}

    def _compare(self, query: Mapping[str, str], a: str, b: str) -> dict[str, Any]:
        first, second = self._shelf(a), self._shelf(b)
        compared = compare((first.index, first.overview), (second.index, second.overview), query)
        return {"a": first.listed(), "b": second.listed()} | compared

    def rows(self, id: str, parts: Sequence[str]) -> list[dict[str, Any]]:
        """All rows of some parts, for an export."""
        index = self._shelf(id).index
        return self._unplaced([shown(row) for part in parts for row in rows_of(index, part, dropped=True)])

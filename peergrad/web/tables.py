"""Tables of debates from an index: filtered, sorted, searched, page by page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.transcript import load
from peergrad.debate.types import Debate
from peergrad.web.index import SORTS, Index, fold
from peergrad.web.lines import MOST_BYTES, load_light, said_in
from peergrad.web.scoring import FLAGS
from peergrad.web.sources import Part

_LIMIT, _MOST = 100, 500
_LONGEST_QUERY = 200
_AROUND = 60  # characters on both sides of what was found


def table(index: Index, query: Mapping[str, str]) -> dict[str, Any]:
    """The rows that a query asks for."""
    parts = [name for name in query.get("part", "").split(",") if name]
    flags = [flag for flag in query.get("flags", "").split(",") if flag]
    if unknown := [flag for flag in flags if flag not in FLAGS]:
        raise UserError(f"flags: {unknown[0][:40]!r} is not known; it may be {', '.join(FLAGS)}")
    sort, falling = query.get("sort", "part").removeprefix("-"), query.get("sort", "").startswith("-")
    if sort not in SORTS:
        raise UserError(f"sort: {sort[:40]!r} is not known; it may be {', '.join(SORTS)}")
    text = query.get("q", "")
    if len(text) > _LONGEST_QUERY:
        raise UserError(f"q: is longer than {_LONGEST_QUERY} characters")
    offset, limit = whole(query, "offset", 0, 0, 10**9), whole(query, "limit", _LIMIT, 0, _MOST)
    index.wanted.update(parts)
    among, values = _among(parts)
    bits = sum(1 << FLAGS.index(flag) for flag in flags)
    order = ", ".join(f"{column}{' DESC' * falling}" for column in SORTS[sort].split(", ")) + ", place, idx"
    # What nobody knows comes last in either order.
    order = order if sort in ("part", "id", "question") else f"{SORTS[sort]} IS NULL, {order}"
    with index.connected() as db:
        db.execute("BEGIN")  # all that follows is of one moment, whatever is read meanwhile
        counted = db.execute(f"SELECT flags, count(*) FROM debates WHERE {among} GROUP BY flags", values).fetchall()
        where, wanted = f"{among} AND flags & ? = ?", [*values, bits, bits]
        if text:
            where += " AND EXISTS (SELECT 1 FROM said WHERE said.part = debates.part AND said.idx = debates.idx"
            where += " AND instr(folded, ?) > 0)"
            wanted.append(fold(text))
        matching = [row for (row,) in db.execute(f"SELECT rowid FROM debates WHERE {where} ORDER BY {order}", wanted)]
        page = matching[offset : offset + limit]
        marks = ", ".join("?" * len(page))
        found = dict(db.execute(f"SELECT rowid, row FROM debates WHERE rowid IN ({marks})", page))
        total = db.execute("SELECT count(*) FROM debates").fetchone()[0]
        db.rollback()
    rows: list[dict[str, Any]] = [json.loads(found[at]) for at in page]
    return {
        "total": total,
        "matched": len(matching),
        "offset": offset,
        "indexed": indexed(index)[0],
        "flags": {flag: sum(n for held, n in counted if held >> bit & 1) for bit, flag in enumerate(FLAGS)},
        "rows": [shown(row, _snippet(index, row, text) if text else None) for row in rows],
    }


def shown(row: dict[str, Any], snippet: dict[str, Any] | None = None) -> dict[str, Any]:
    """A row as pages are given it."""
    return {name: value for name, value in row.items() if name not in ("right_share", "agree_wrong")} | {"snippet": snippet}


def row_of(index: Index, part: str, at: int) -> dict[str, Any] | None:
    """The row of one debate, as it is kept."""
    with index.connected() as db:
        found = db.execute("SELECT row FROM debates WHERE part = ? AND idx = ?", (part, at)).fetchone()
    return json.loads(found[0]) if found else None


def same_question(index: Index, question: str) -> dict[str, Any]:
    """The rows about one question, at whatever step."""
    named = question.encode("utf-8", "replace").decode()
    with index.connected() as db:
        query = "SELECT row FROM debates WHERE question_id = ? ORDER BY place, idx LIMIT ?"
        rows = [json.loads(row) for (row,) in db.execute(query, (named, _MOST))]
    about = rows[0] if rows else {"question": None, "answer": None}
    return {"question": about["question"], "answer": about["answer"], "rows": [shown(row) for row in rows]}


def rows_of(index: Index, part: str, *, dropped: bool = False) -> list[dict[str, Any]]:
    """All rows of a part, as they are kept; those of dropped debates, which come first, only if they are wanted."""
    with index.connected() as db:
        query = "SELECT row FROM debates WHERE part = ? AND (idx >= 0 OR ?) ORDER BY idx"
        return [json.loads(row) for (row,) in db.execute(query, (part, dropped))]


def indexed(index: Index) -> tuple[float, dict[str, tuple[int, int, int, str | None]]]:
    """The share of the bytes that was read; and by part debates, dropped ones, bytes read and what is wrong."""
    with index.connected() as db:
        done = {name: (bytes_, problem) for name, bytes_, problem in db.execute("SELECT name, done, problem FROM parts")}
        query = "SELECT part, sum(idx >= 0), sum(idx < 0) FROM debates GROUP BY part"
        counts = {name: (held, dropped) for name, held, dropped in db.execute(query)}
    size = sum(part.entry.size for part in index.parts)
    read = sum(
        part.entry.size if done[part.name][1] else min(done[part.name][0], part.entry.size)
        for part in index.parts
        if part.name in done
    )
    by_part = {name: (*counts.get(name, (0, 0)), bytes_, problem) for name, (bytes_, problem) in done.items()}
    return (read / size if size else 1.0), by_part


def read_debate(index: Index, part: Part, at: int, *, light: bool = False) -> Debate | None:
    """A debate from its file; ``None`` if the index knows of none there."""
    text = _line(index, part, at)
    return None if text is None else (load_light if light else load)(text, f"{part.name}, debate {at}")


def _line(index: Index, part: Part, at: int) -> bytes | None:
    with index.connected() as db:
        query = "SELECT offset, length FROM debates WHERE part = ? AND idx = ? AND idx >= 0"
        found = db.execute(query, (part.name, at)).fetchone()
    if not found or found[1] > MOST_BYTES:
        return None
    try:
        with index.source.opened(part) as file:
            file.seek(found[0])
            text = file.read(found[1])
    except OSError as error:
        raise UserError(f"{part.name}: can't be read ({error.strerror})") from None
    return text.removeprefix(b"\xef\xbb\xbf") if not found[0] else text


def advantages_of(index: Index, part: str, at: int) -> list[Any] | None:
    """The advantages of a debate that was scored together with others."""
    with index.connected() as db:
        found = db.execute("SELECT advantages FROM debates WHERE part = ? AND idx = ?", (part, at)).fetchone()
    return json.loads(found[0]) if found and found[0] else None


def whole(query: Mapping[str, str], name: str, unset: int, least: int, most: int) -> int:
    """A whole number of a query."""
    text = query.get(name, str(unset))
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise UserError(f"{name}: give a whole number from {least} to {most}")
    return int(text)


def _among(parts: Sequence[str]) -> tuple[str, list[Any]]:
    parts = parts[:500]
    return (f"part IN ({', '.join('?' * len(parts))})", [*parts]) if parts else ("1", [])


def _snippet(index: Index, row: dict[str, Any], text: str) -> dict[str, Any] | None:
    """Where a text was said, for people to see; cases are as they were written."""
    part = next((part for part in index.parts if part.name == row["part"]), None)
    try:
        line = _line(index, part, row["index"]) if part and row["index"] is not None else None
    except UserError:
        return None
    wanted = text.lower()
    for turn, spoken in enumerate(said_in(line) if line else ()):
        folded = spoken.lower()
        if len(folded) != len(spoken):  # so that places in the one are places in the other
            folded = "".join(low if len(low := char.lower()) == 1 else char for char in spoken)
        if (at := folded.find(wanted)) >= 0:
            end = at + len(wanted)
            before, after = spoken[max(0, at - _AROUND) : at], spoken[end : end + _AROUND]
            return {"turn": turn - 1 if turn else None, "before": before, "hit": spoken[at:end], "after": after}
    return None

"""Two evaluations question by question, those that changed first; and what set off the alarms of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.play import Played
from peergrad.learn.train import Step
from peergrad.measure.alarms import alarms, fallen_answers
from peergrad.measure.history import alarms_of, number
from peergrad.measure.outcome import compared
from peergrad.measure.titles import in_order, title
from peergrad.reward.rewards import Scored
from peergrad.web.index import Index
from peergrad.web.overview import Overview
from peergrad.web.scoring import ScoredDebate, centred
from peergrad.web.tables import read_debate, rows_of, shown

_MOST = 2_000
_ORDER = ("worse", "better", "other", "same")


def compare(a: tuple[Index, Overview], b: tuple[Index, Overview], query: Mapping[str, str]) -> dict[str, Any]:
    """What both sides made of the questions that both have."""
    sides = [_side(index, query.get(name, "")) for (index, _), name in ((a, "part_a"), (b, "part_b"))]
    (part_a, by_a), (part_b, by_b) = sides
    shared = [key for key in by_a if key in by_b]
    questions: list[dict[str, Any]] = []
    for key in shared:
        one, other = by_a[key], by_b[key]
        before, after = _value(one), _value(other)
        if before is not None and after is not None and before != after:
            change = "worse" if after < before else "better"
        else:
            change = "same" if _won(one) == _won(other) else "other"
        about = {"question_id": one["question_id"], "question": one["question"], "change": change}
        questions.append(about | {"value_a": before, "value_b": after, "a": shown(one), "b": shown(other)})
    questions.sort(key=lambda question: _ORDER.index(question["change"]))
    counts = {change: sum(question["change"] == change for question in questions) for change in _ORDER}
    counts |= {"shared": len(shared), "only_a": len(by_a) - len(shared), "only_b": len(by_b) - len(shared)}
    results = a[1].result, b[1].result
    rows = compared(results[0], results[1])["rows"] if results[0] and results[1] else {}
    return {
        "part_a": part_a,
        "part_b": part_b,
        "parts_a": [part.name for part in a[0].parts],
        "parts_b": [part.name for part in b[0].parts],
        "summary": [{"name": name, "label": title(name)} | rows[name] for name in in_order(rows)],
        "counts": counts,
        "questions": questions[:_MOST],
    }


def _side(index: Index, name: str) -> tuple[str, dict[Any, dict[str, Any]]]:
    """A part, and its first debate about each question, by the question."""
    names = [part.name for part in index.parts]
    part = name or next(iter(names), "")
    if name and name not in names:
        raise UserError(f"part: {name[:80]!r} is none of it; it has {', '.join(names[:12]) or 'no debates yet'}")
    rows: dict[Any, dict[str, Any]] = {}
    for row in rows_of(index, part):
        if row["problem"] is None:
            rows.setdefault((row["question_id"], row["question"], row["answer"]), row)
    return part, rows


def _value(row: Mapping[str, Any]) -> float | None:
    right = row["winner_right"]
    return row["right_share"] if right is None else float(right)


def _won(row: Mapping[str, Any]) -> Any:
    return None if row["winner"] is None else row["answers"][row["winner"]]


def alarm_debates(index: Index, overview: Overview, step: int) -> list[dict[str, Any]]:
    """The alarms that sounded after a step, computed again from its debates (not those of its evaluation)."""
    lines = [line for line in overview.history.train if line["step"] <= step]
    names = sorted(alarms_of(lines[-1])) if lines and lines[-1]["step"] == step else []
    history = [{name: number(value) for name, value in line.items()} for line in lines]  # a log may hold anything
    part = next((part for part in index.parts if part.name == f"step_{step:06}"), None)
    found: dict[str, Any] = {}
    if names and part:
        places: dict[str, int] = {}
        scored: list[Scored] = []
        for row in rows_of(index, part.name):
            debate = None if row["problem"] else read_debate(index, part, row["index"], light=True)
            if debate:
                places.setdefault(debate.id, row["index"])
                scored.append(ScoredDebate(debate, index.rules, step).scored)
        advantages = tuple(map(tuple, centred(scored, index.rules)))
        debates = tuple(one.debate for one in scored)
        as_it_was = Step(step - 1, 0.0, Played(debates, {}), tuple(scored), advantages, (), None, 0.0)
        for alarm in alarms(history, as_it_was):
            named = [{"part": part.name, "index": places[id], "id": id} for id in alarm.debates if id in places]
            found[alarm.name] = {"name": alarm.name, "seen": alarm.seen, "advice": alarm.advice, "debates": named}
    return [found.get(name, {"name": name, "seen": None, "advice": None, "debates": []}) for name in names]


def evaluation_alarms(overview: Overview, step: int) -> list[dict[str, Any]]:
    """The alarms that sounded after the evaluation of a step."""
    lines = [line for line in overview.history.evals if line["step"] <= step]
    names = alarms_of(lines[-1]) if lines and lines[-1]["step"] == step else set[str]()
    fallen = fallen_answers(lines) if names else None
    about = {fallen.name: {"seen": fallen.seen, "advice": fallen.advice}} if fallen else {}
    return [{"name": name, "debates": []} | about.get(name, {"seen": None, "advice": None}) for name in sorted(names)]

"""What changed over a run and what it cost, in two tables."""

from __future__ import annotations

from collections.abc import Sequence

from peergrad.config import TrainConfig
from peergrad.measure.history import RunHistory, fifths, total
from peergrad.measure.shown import Row, rows_before_and_after
from peergrad.web.markup import Safe, clip, tag


def before_and_after(history: RunHistory, settings: TrainConfig) -> Safe:
    """What changed, as in the table at the end of a run. Never the mean reward, which can't change."""
    rows = rows_before_and_after(history)
    if not rows:
        return tag("p", "Nothing has been measured yet.", class_="empty")
    size = len(fifths(history.train)[0])
    many = f"{size} steps" if size != 1 else "1 step"
    asked = f"{settings.held_out.eval_questions} questions alone, {settings.held_out.eval_debates} in debate"
    about = [
        f"Self-play: means over the first and the last fifth of its steps, {many} each." if history.train else None,
        " There is only one step, so the two are the same." if len(history.train) == 1 else None,
        f" Held out: the first and the last evaluation, {asked}." if history.evals else None,
    ]
    body = [
        tag(
            "tr",
            tag("th", clip(row.label, 80)[0], scope="row"),
            tag("td", _value(row.before, row.share)),
            tag("td", _value(row.after, row.share), class_="after"),
            tag("td", _change(row), class_="change"),
        )
        for row in rows
    ]
    return tag("div", _table(("", "before", "after", "change"), body), tag("p", about, class_="about"))


def used(history: RunHistory) -> Safe:
    """Updates, debates, tokens and time, by what they were used for."""
    warm, train, evals = history.warm, history.train, history.evals
    debates, sampled = total(train, "debates/done"), total(train, "tokens/sampled")
    trained, seconds = total(train, "tokens/trained"), total(train, "time/sample_s", "time/train_s")
    rows = [
        ("Warm start", len(warm), None, None, total(warm, "tokens/trained"), total(warm, "time/train_s")),
        ("Self-play", len(train), debates, sampled, trained, seconds),
        ("Evaluation", len(evals), None, None, None, total(evals, "time/eval_s")),
    ]
    body = [
        tag("tr", tag("th", name, scope="row"), [tag("td", _count(value)) for value in counts], tag("td", _time(seconds)))
        for name, *counts, seconds in rows
        if counts[0]
    ]
    if not body:
        return tag("p", "Nothing yet.", class_="empty")
    everything = sum(row[-1] or 0.0 for row in rows)
    body.append(tag("tr", tag("th", "Together", scope="row"), [tag("td", "")] * 4, tag("td", _time(everything))))
    dropped = total(train, "debates/dropped")
    notes = [
        f"{history.updates}. " if history.updates.asked else None,
        f"{dropped:,.0f} debates were dropped because the engine failed them." if dropped else None,
    ]
    table = _table(("", "times", "debates", "tokens sampled", "tokens trained on", "time"), body)
    return tag("div", table, tag("p", notes, class_="about") if any(notes) else None)


def _table(titles: Sequence[str], rows: Sequence[Safe]) -> Safe:
    head = tag("tr", [tag("th", title, scope="col") for title in titles])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll")


def _value(value: float | None, share: bool) -> str:
    return "–" if value is None else f"{value:.1%}" if share else f"{value:.2f}"


def _change(row: Row) -> str:
    if row.before is None or row.after is None:
        return ""
    change = row.after - row.before
    return (f"{change * 100:+.1f} points" if row.share else f"{change:+.2f}").replace("-", "−")


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

"""What changed over a run and what it cost, in two tables."""

from __future__ import annotations

from collections.abc import Sequence

from peergrad.config import TrainConfig
from peergrad.web.history import History, Logged, fifths, mean, names, number, total
from peergrad.web.markup import Safe, tag

Row = tuple[str, float | None, float | None, bool]


def before_and_after(history: History, settings: TrainConfig) -> Safe:
    """Readable replies, votes and, where it is known, accuracy. Never the mean reward, which can't change."""
    rows = [row for row in (*_self_play(history), *_held_out(history, settings)) if row[1] is not None or row[2] is not None]
    if not rows:
        return tag("p", "Nothing has been measured yet.", class_="empty")
    size = len(fifths(history.train)[0])
    many = f"{size} steps" if size != 1 else "1 step"
    about = [
        f"Self-play: means over the first and the last fifth of its steps, {many} each." if history.train else None,
        " There is only one step, so the two are the same." if len(history.train) == 1 else None,
        " Held out: the first and the last evaluation." if history.evals else None,
    ]
    head = tag("tr", [tag("th", title, scope="col") for title in ("", "before", "after", "change")])
    body = [
        tag(
            "tr",
            tag("th", label, scope="row"),
            tag("td", _value(before, share)),
            tag("td", _value(after, share), class_="after"),
            tag("td", _change(before, after, share), class_="change"),
        )
        for label, before, after, share in rows
    ]
    table = tag("table", tag("thead", head), tag("tbody", body))
    return tag("div", tag("div", table, class_="scroll"), tag("p", about, class_="about"))


def used(history: History) -> Safe:
    """Updates, debates, tokens and time, by what they were used for."""
    train = history.train
    rows = [
        (
            "Warm start",
            len(history.warm),
            None,
            None,
            total(history.warm, "tokens/trained"),
            total(history.warm, "time/train_s"),
        ),
        (
            "Self-play",
            len(train),
            total(train, "debates/done"),
            total(train, "tokens/sampled"),
            total(train, "tokens/trained"),
            total(train, "time/sample_s", "time/train_s"),
        ),
        ("Evaluation", len(history.evals), None, None, None, total(history.evals, "time/eval_s")),
    ]
    head = ("", "times", "debates", "tokens sampled", "tokens trained on", "time")
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
    made = history.updates
    notes = [
        f"{made}. " if made.asked else None,
        f"{dropped:,.0f} debates were dropped because the engine failed them." if dropped else None,
    ]
    table = tag("table", tag("thead", tag("tr", [tag("th", title, scope="col") for title in head])), tag("tbody", body))
    return tag("div", tag("div", table, class_="scroll"), tag("p", notes, class_="about") if any(notes) else None)


def _self_play(history: History) -> list[Row]:
    first, last = fifths(history.train)

    def row(label: str, name: str, share: bool = True, weight: str | None = None) -> Row:
        return label, mean(first, name, weight), mean(last, name, weight), share

    correct = names(history.train, "train_", "/correct")[:4]
    return [
        row("Readable replies", "replies/readable"),
        row("Valid votes per due turn", "votes/per_due_turn", share=False),
        row("Due turns with a vote", "votes/due_turns_with_vote"),
        row("Right votes between a right and a wrong solution", "votes/accuracy", weight="votes/between_right_and_wrong"),
        *(row("Right answers in self-play", name) for name in correct),
    ]


def _held_out(history: History, settings: TrainConfig) -> list[Row]:
    evals = history.evals
    first, last = evals[:1], evals[1:][-1:]
    alone, debated = settings.held_out.eval_questions, settings.held_out.eval_debates
    rows: list[Row] = []
    for prefix, suffix, label in (
        ("eval/direct/", "/correct", f"Right answers alone, {alone} held-out questions"),
        ("eval/debate/", "/correct", f"Right answers in debate, {debated} held-out questions"),
        ("eval/debate/", "/replies/readable", f"Readable replies, {debated} held-out questions"),
    ):
        rows += [(label, _one(first, name), _one(last, name), True) for name in names(evals, prefix, suffix)[:4]]
    return rows


def _one(lines: Sequence[Logged], name: str) -> float | None:
    return number(lines[0].get(name)) if lines else None


def _value(value: float | None, share: bool) -> str:
    return "–" if value is None else f"{value:.1%}" if share else f"{value:.2f}"


def _change(before: float | None, after: float | None, share: bool) -> str:
    if before is None or after is None:
        return ""
    change = after - before
    return (f"{change * 100:+.1f} points" if share else f"{change:+.2f}").replace("-", "−")


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

"""A run as one page: what it is, what changed, every curve, and debates from before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peergrad.config import TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.settings import is_import_path
from peergrad.measure.changes import Row, rows_before_and_after
from peergrad.measure.history import RunHistory, alarm_spans, fifths, total
from peergrad.runs import files
from peergrad.runs.folder import Run
from peergrad.web.chart import curves
from peergrad.web.debates import side_by_side
from peergrad.web.markup import Safe, clip, tag

# Nothing is fetched and nothing runs, even if markup should ever get in.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_report(run: Run) -> Path:
    """Write the report to the run's folder."""
    path = run.path / "report.html"
    files.write(path, report(run).encode())
    return path


def report(run: Run) -> str:
    """The report as a page of HTML. It can be made at any moment of a run."""
    facts = run.facts if isinstance(run.facts, dict) else {}
    history = RunHistory.of(run.metrics())
    try:
        config = from_folder(TrainConfig(), run.path)
    except UserError:  # of another version, or damaged; what was logged can be shown all the same
        config = None
    settings = config or TrainConfig()
    rules = settings.learn.reward
    if is_import_path(rules.reward):  # a folder somebody sent names it, and no code is run for that
        rules = replace(rules, reward="streams")
    title = f"{_word(facts.get('model'))} on {_word(facts.get('task'))}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}: peergrad report"),
        tag("style", Safe(Path(__file__).with_name("style.css").read_text())),
    )
    main = tag(
        "main",
        tag("h1", title),
        tag("p", _state(history, config), class_="state"),
        _made_with(facts, config),
        _alarms(history, run),
        tag(
            "div",
            tag("section", tag("h2", "Before and after"), _before_and_after(history, settings)),
            tag("section", tag("h2", "What it took"), _used(history)),
            class_="tables",
        ),
        curves(history),
        tag("h2", "Debates"),
        side_by_side(run, rules),
        tag("p", "Written by peergrad from the run's folder; the same folder gives the same page.", class_="end"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n"


def _state(history: RunHistory, config: TrainConfig | None) -> str:
    done = f"{history.steps:,} steps of self-play" if history.steps != 1 else "1 step of self-play"
    if history.warm and not history.train:
        done = f"{len(history.warm):,} steps of warm start, no self-play{' yet' if not config or config.learn.steps else ''}"
    if config is None:
        return f"{done}. Its settings (config.toml) can't be read, so rewards are shown by the default rules."
    own = config.learn.reward.reward
    by = f" It trained on {clip(own, 80)[0]}; rewards below are shown by the default one." if is_import_path(own) else ""
    if not config.learn.steps:
        return f"{done}.{by}"
    if history.steps >= config.learn.steps:
        return f"Finished: {done}.{by}"
    return f"Not finished: {done}, of {config.learn.steps:,}.{by}"


def _alarms(history: RunHistory, run: Run) -> Safe | None:
    steps_of: dict[str, list[str]] = {}
    for alarm in alarm_spans(history.train):
        steps = str(alarm.first) if alarm.first == alarm.last else f"{alarm.first}–{alarm.last}"
        steps_of.setdefault(alarm.name, []).append(steps)
    lines = [
        tag("p", tag("b", clip(name, 80)[0]), " sounded after step ", ", ".join(steps[:12]), " and more" * (len(steps) > 12))
        for name, steps in list(steps_of.items())[:12]
    ]
    if history.updates.too_many:
        folder = "skipped/ in the run's folder" if run.skipped_updates() else None
        lines.insert(0, tag("p", history.updates.warning(folder), class_="lost"))
    return tag("div", lines, class_="alarms", role="note", aria_label="alarms") if lines else None


def _made_with(facts: Mapping[str, Any], config: TrainConfig | None) -> Safe:
    versions = facts.get("versions")
    listed = [f"{_word(k)} {_word(v)}" for k, v in versions.items()] if isinstance(versions, dict) else []
    rows = [
        ("model", _word(facts.get("model"))),
        ("task", f"{_word(facts.get('task'))}, {_word(facts.get('questions'))} questions"),
        ("created", _word(facts.get("created"))),
        ("seed", _word(facts.get("seed"))),
    ]
    if config:
        debate, learn = config.debate, config.learn
        rows += [
            ("debate", f"{debate.protocol}, {debate.build().size}"),
            ("reward", learn.reward.reward),
            ("learning", f"{learn.loss}, rate {learn.lr:g}, {learn.batch} debates a step"),
        ]
    rows.append(("versions", ", ".join(listed[:12]) or "–"))
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value), class_=name) for name, value in rows], class_="facts")


def _word(value: object) -> str:
    return "–" if value is None else clip(str(value), 200)[0]


def _before_and_after(history: RunHistory, settings: TrainConfig) -> Safe:
    """What changed, as in the table at the end of a run. Never the mean reward, which can't change."""
    rows = rows_before_and_after(history)
    if not rows:
        return tag("p", "Nothing has been measured yet.", class_="empty")
    size = len(fifths(history.train)[0])
    many = f"{size} steps" if size != 1 else "1 step"
    asked = f"up to {settings.held_out.eval_questions} questions alone, {settings.held_out.eval_debates} in debate"
    about = [
        f"Self-play: means over the first and the last fifth of its steps, {many} each." if history.train else None,
        " There is only one step, so the two are the same." if len(history.train) == 1 else None,
        f" Held out: the first and the last evaluation, {asked}." if history.evals else None,
    ]
    body = [_row(row.label, _value(row.before, row), _value(row.after, row), _change(row)) for row in rows]
    return tag("div", _table(("", "before", "after", "change"), body, "changes"), tag("p", about, class_="about"))


def _used(history: RunHistory) -> Safe:
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
        _row(name, *("–" if count is None else f"{count:,.0f}" for count in counts), _time(seconds))
        for name, *counts, seconds in rows
        if counts[0]
    ]
    if not body:
        return tag("p", "Nothing yet.", class_="empty")
    body.append(_row("Together", "", "", "", "", _time(sum(seconds for *_, seconds in rows))))
    dropped = total(train, "debates/dropped")
    notes = [
        f"{history.updates}. " if history.updates.total else None,
        f"{dropped:,.0f} debates were dropped because the engine failed them." if dropped else None,
    ]
    table = _table(("", "times", "debates", "tokens sampled", "tokens trained on", "time"), body)
    return tag("div", table, tag("p", notes, class_="about") if any(notes) else None)


def _table(titles: Sequence[str], rows: Sequence[Safe], kind: str | None = None) -> Safe:
    head = tag("tr", [tag("th", title, scope="col") for title in titles])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_=kind), class_="scroll")


def _row(name: str, *cells: str) -> Safe:
    return tag("tr", tag("th", clip(name, 80)[0], scope="row"), [tag("td", cell) for cell in cells])


def _value(value: float | None, row: Row) -> str:
    return "–" if value is None else f"{value:.1%}" if row.share else f"{value:.2f}"


def _change(row: Row) -> str:
    if row.before is None or row.after is None:
        return ""
    change = row.after - row.before
    return (f"{change * 100:+.1f} points" if row.share else f"{change:+.2f}").replace("-", "−")


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

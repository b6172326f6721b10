"""The curves of a report."""

from __future__ import annotations

from dataclasses import replace

from peergrad.measure.history import BINS, RunHistory, alarmed, points
from peergrad.measure.shown import SHOWN, Chart, Shown, filled, matches, own_names
from peergrad.web.chart import Line, draw
from peergrad.web.markup import Safe, tag

OWN = "Other metrics"
ABOUT = {
    "Rewards": "What votes award (gen, or the score per agent) has a mean that is constant by construction: a vote for one "
    "agent is a vote against another, however good or bad the debates become. It can't show progress. Read here how it is "
    "spread over seats, and what judging and form earn."
}


def curves(history: RunHistory) -> Safe:
    """All curves, in groups; what was not measured is left out."""
    alarms = alarmed(history.train)
    groups: dict[str, list[Safe]] = {}
    for index, (chart, lines) in enumerate(_charts(history).items(), 1):
        on_steps = chart.axis == "step"
        figure = draw(chart, lines, f"chart-{index}", history.span if on_steps else None, alarms if on_steps else ())
        if figure:
            groups.setdefault(chart.group, []).append(figure)
    parts = [
        tag(
            "section",
            tag("h2", group),
            tag("p", ABOUT[group], class_="about") if group in ABOUT else None,
            tag("div", figures, class_="charts"),
        )
        for group, figures in groups.items()
    ]
    if len(history.train) > BINS:
        each = f"Each point stands for about {len(history.train) / BINS:.0f} of {len(history.train):,} steps: their mean."
        parts.insert(0, tag("p", each, class_="about binned"))
    return tag("div", parts or tag("p", "Nothing has been measured yet.", class_="empty"))


def _charts(history: RunHistory) -> dict[Chart, list[Line]]:
    """Every chart with its lines. Lines of one metric and several tasks are told apart by the task."""
    names = history.names
    own = [
        Shown(name, label, Chart(OWN, title, ""))
        for title in own_names(names["train"])
        for name, label in ((title, "self-play"), (f"eval/debate/*/{title}", "held out"))
    ]
    charts: dict[Chart, list[Line]] = {}
    for shown in (*SHOWN, *own):
        if shown.chart:
            phase = shown.name.partition("/")[0] if shown.name.startswith(("eval/", "warm/")) else "train"
            found = matches(shown, names[phase])
            for name, stars in found:
                label = filled(shown.label, stars)
                several = len(found) > 1 and "{" not in shown.label
                line = Line(f"{label}: {stars[0]}" if several else label, points(history, phase, name))
                charts.setdefault(replace(shown.chart, title=filled(shown.chart.title, stars)), []).append(line)
    return charts

"""The curves of a report: line charts as inline SVG, readable in light, dark and grey, by eye and by screen reader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from peergrad.measure.history import BINS, AlarmSpan, Chart, Points, RunHistory, alarm_spans, all_shown, points
from peergrad.web.markup import Safe, clip, tag

_STYLES = 6  # lines that can be told apart: each has a colour, a dash pattern and a shape of its own
_WIDTH, _HEIGHT = 420, 244
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 408, 36, 202
_MARKED = 40  # up to so many points each has a mark that says its value
_MOST_ALARMS = 40  # marks; more can't be told apart


@dataclass(frozen=True, slots=True)
class _Line:
    """One metric over steps."""

    label: str
    points: Points

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that were measured."""
        return [(x, y) for x, y in self.points if y is not None]


@dataclass(frozen=True, slots=True)
class _Frame:
    """From values to places."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / (self.x1 - self.x0) * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        return _BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (_BOTTOM - _TOP)


def curves(history: RunHistory) -> Safe:
    """All curves, in groups; what was not measured is left out."""
    groups: dict[str, list[Safe]] = {}
    for index, (chart, lines) in enumerate(_charts(history).items(), 1):
        groups.setdefault(chart.group, []).append(_figure(chart, lines, f"chart-{index}", history))
    parts = [tag("section", tag("h2", group), tag("div", figures, class_="charts")) for group, figures in groups.items()]
    if len(history.train) > BINS:
        each = f"Each point stands for about {len(history.train) / BINS:.0f} of {len(history.train):,} steps: their mean."
        parts.insert(0, tag("p", each, class_="about binned"))
    return tag("div", parts or tag("p", "Nothing has been measured yet.", class_="empty"))


def _charts(history: RunHistory) -> dict[Chart, list[_Line]]:
    """Every chart with its lines. Lines of one metric and several tasks are told apart by the task."""
    names = history.names
    charts: dict[Chart, list[_Line]] = {}
    for shown in all_shown(names["train"]):
        if not shown.chart:
            continue
        named = shown.matches(names[shown.phase])
        for name, stars in named:
            label, title = (_filled(text, stars) for text in (shown.label, shown.chart.title))
            several = len(named) > 1 and "{" not in shown.label
            line = _Line(f"{label}: {stars[0]}" if several else label, points(history, shown.phase, name))
            if line.known:
                charts.setdefault(replace(shown.chart, title=title), []).append(line)
    return charts


def _filled(template: str, stars: tuple[str, ...]) -> str:
    """A label or title with what the *s stand for. Not ``format``: names come from a file and may hold anything."""
    for index, star in enumerate(stars):
        template = template.replace(f"{{{index}}}", star)
    return template


def _figure(chart: Chart, lines: Sequence[_Line], id: str, history: RunHistory) -> Safe:
    """The chart as a figure with its legend."""
    drawn, on_steps = lines[:_STYLES], chart.axis == "step"
    xs, ys = zip(*(point for line in drawn for point in line.known), strict=True)
    x0, x1 = _apart(*(history.span if on_steps else (min(xs), max(xs))))
    low, high = min(ys), max(ys)
    y0, y1 = (0.0, max(1.0, high)) if chart.share else _apart(0.0 if 0 <= low <= high * 0.6 else low, high)
    frame = _Frame(x0, x1, y0, y1)
    alarms = alarm_spans(history.train) if on_steps else []
    picture = tag(
        "svg",
        tag("title", chart.title, id=f"{id}-title"),
        tag("desc", _described(chart, drawn), id=f"{id}-desc"),
        _axes(frame, chart),
        None if chart.chance is None else _rule(frame, chart.chance, "chance"),
        _alarms(frame, alarms),
        [_line(line, index, frame, chart) for index, line in enumerate(drawn)],
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{id}-title {id}-desc",
    )
    legend = [
        tag("li", _swatch(index), f" {clip(line.label, 60)[0]} ", tag("b", _number(line.known[-1][1], chart.share)))
        for index, line in enumerate(drawn)
    ]
    if alarms:
        letters = [(tag("span", letter, class_="alarm-letter"), f" {name}") for letter, name in _letters(alarms).items()]
        legend.append(tag("li", "alarms: ", [tag("span", named, class_="named") for named in letters]))
    left_out = len(lines) - len(drawn)
    return tag(
        "figure",
        tag("h3", clip(chart.title, 80)[0]),
        picture,
        tag("ul", legend, class_="legend"),
        tag("figcaption", chart.note) if chart.note else None,
        tag("figcaption", f"{left_out} more lines are not drawn.") if left_out else None,
    )


def _axes(frame: _Frame, chart: Chart) -> list[Safe]:
    parts = [tag("text", chart.unit, x=4, y=13, class_="unit")]
    for value, label in _ticks(frame.y0, frame.y1, share=chart.share):
        parts.append(_rule(frame, value, "grid"))
        parts.append(tag("text", label, x=_LEFT - 6, y=_at(frame.y(value) + 4), text_anchor="end"))
    for value, label in _ticks(frame.x0, frame.x1, whole=True):
        x = _at(frame.x(value))
        parts.append(tag("path", d=f"M{x} {_BOTTOM}v5", class_="axis"))
        parts.append(tag("text", label, x=x, y=_BOTTOM + 18, text_anchor="middle"))
    parts.append(tag("path", d=f"M{_LEFT} {_BOTTOM}H{_RIGHT}", class_="axis"))
    parts.append(tag("text", chart.axis, x=_RIGHT, y=_HEIGHT - 5, text_anchor="end", class_="unit"))
    return parts


def _rule(frame: _Frame, value: float, kind: str) -> Safe:
    return tag("path", d=f"M{_LEFT} {_at(frame.y(value))}H{_RIGHT}", class_=kind)


def _line(line: _Line, style: int, frame: _Frame, chart: Chart) -> Safe:
    """The line, broken where nothing was measured. A point with no neighbours would be no line, so it gets a mark."""
    split = groupby(line.points, lambda point: point[1] is not None)
    runs = [[(x, y or 0.0) for x, y in run] for measured, run in split if measured]
    marked = line.known if len(line.known) <= _MARKED else [run[0] for run in runs if len(run) == 1]
    path = "".join("M" + "L".join(f"{_at(frame.x(x))} {_at(frame.y(y))}" for x, y in run) for run in runs if len(run) > 1)
    marks: list[Safe] = []
    for x, y in marked:
        title = tag("title", f"{line.label}, {chart.axis} {x:g}: {_number(y, chart.share)}")
        marks.append(tag("path", title, d=_shape(style, frame.x(x), frame.y(y)), class_="mark"))
    return tag("g", tag("path", d=path, class_="line") if path else None, marks, class_=f"s{style}")


def _shape(style: int, x: float, y: float) -> str:
    """A circle, square, diamond, triangle, triangle on its head, or bar."""
    left, top = _at(x - 3), _at(y - 3)
    return (
        f"M{left} {_at(y)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
        f"M{left} {top}h6v6h-6z",
        f"M{_at(x)} {_at(y - 4)}l4 4l-4 4l-4-4z",
        f"M{_at(x)} {_at(y - 4)}l4 7h-8z",
        f"M{_at(x)} {_at(y + 4)}l4-7h-8z",
        f"M{_at(x - 1)} {_at(y - 4)}h2v8h-2z",
    )[style]


def _swatch(style: int) -> Safe:
    parts = (tag("path", d="M1 6H31", class_="line"), tag("path", d=_shape(style, 16, 6), class_="mark"))
    return tag("svg", tag("g", parts, class_=f"s{style}"), viewBox="0 0 32 12", class_="swatch", aria_hidden="true")


def _letters(alarms: Sequence[AlarmSpan]) -> dict[str, str]:
    return dict(zip("ABCDEF", dict.fromkeys(alarm.name for alarm in alarms), strict=False))


def _alarms(frame: _Frame, alarms: Sequence[AlarmSpan]) -> list[Safe]:
    """Marks on the step axis: a bar as long as the alarm sounded, and its letter where it began, in a row of its own."""
    rows = {name: (place, letter) for place, (letter, name) in enumerate(_letters(alarms).items())}
    parts: list[Safe] = []
    taken: dict[str, float] = {}
    for alarm in alarms:
        x, end = frame.x(alarm.first), frame.x(alarm.last)
        if alarm.name not in rows or x < taken.get(alarm.name, 0.0) or len(parts) >= _MOST_ALARMS:
            continue
        taken[alarm.name] = end + 10
        place, letter = rows[alarm.name]
        steps = f"step {alarm.first}" if alarm.first == alarm.last else f"steps {alarm.first} to {alarm.last}"
        marks = (
            tag("path", d=f"M{_at(x)} {_TOP}V{_BOTTOM}", class_="alarm-line"),
            tag("path", d=f"M{_at(x - 1.5)} {_BOTTOM - 3}H{_at(end + 1.5)}v6H{_at(x - 1.5)}z", class_="alarm-bar"),
            tag("text", letter, x=_at(x), y=_TOP - 5 + 12 * place, text_anchor="middle", class_="alarm-text"),
        )
        parts.append(tag("g", tag("title", f"alarm: {alarm.name}, {steps}"), marks))
    return parts


def _described(chart: Chart, lines: Sequence[_Line]) -> str:
    sentences: list[str] = []
    for line in lines:
        values = [y for _, y in line.known]
        first, last, low, high = (_number(value, chart.share) for value in (values[0], values[-1], min(values), max(values)))
        sentences.append(f"{line.label}: {first} at first, {last} at last; lowest {low}, highest {high}.")
    return f"{chart.unit} over {chart.axis}. " + " ".join(sentences)


def _apart(low: float, high: float) -> tuple[float, float]:
    """Two ends of an axis, moved apart if nothing would fit between them."""
    largest = max(abs(low), abs(high))
    if high - low > max(largest * 1e-9, 1e-290):
        return low, high
    room = largest / 2 if largest > 1e-290 else 1.0
    return low - room, high + room


def _ticks(low: float, high: float, *, share: bool = False, whole: bool = False) -> list[tuple[float, str]]:
    """Round values along an axis, and how they are written."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next((power * by for by in (1, 2, 5) if (high - low) / (power * by) <= 6), power * 10)
    step = max(step, 1.0) if whole else step
    values = [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [(value, f"{value:.0%}" if share else _number(value)) for value in values]


def _number(value: float, share: bool = False) -> str:
    text = f"{value:.1%}" if share else f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"
    return text.replace("-", "−")


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

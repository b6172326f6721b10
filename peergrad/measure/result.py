"""From an outcome to a result: means with intervals, differences between ways of answering, and all of it as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from peergrad.measure.outcome import Outcome
from peergrad.measure.statistics import Interval, difference, mean, ratio

# What everything is compared with: the best that the same tokens give without debate, where it was measured.
REFERENCES = ("direct/majority", "direct/correct")


def result(outcome: Outcome, task: str, hashes: Mapping[str, str]) -> dict[str, Any]:
    """All that an evaluation found, as JSON knows it. ``metrics`` has the names of SPEC 8.3; ``hashes`` are of questions."""
    reference = next((name for name in REFERENCES if name in outcome.values), None)
    against = outcome.values[reference] if reference else None
    return {
        "task": task,
        "questions": list(outcome.questions),
        "hashes": [hashes[name] for name in outcome.questions],
        "reference": reference,
        "metrics": {_metric(name, task): interval.value for name, interval in _means(outcome).items()},
        "accuracy": {name: _as_list(interval) for name, interval in _means(outcome).items()},
        "difference": {
            name: _as_list(made)
            for name, values in outcome.values.items()
            if against is not None and name != reference and (made := difference(values, against))
        },
        "tokens": {name: sum(values) / len(values) for name, values in outcome.tokens.items()},
        "shares": {
            name: [*_as_list(made), sum(whole for _, whole in counts)]
            for name, counts in outcome.counts.items()
            if (made := ratio([part for part, _ in counts], [whole for _, whole in counts]))
        },
        "values": {name: [_finite(value) for value in values] for name, values in outcome.values.items()},
        "counts": {name: [list(pair) for pair in counts] for name, counts in outcome.counts.items()},
    }


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two results side by side, question by question: what both measured, over the questions both asked.

    A question is the same if its name, its words and its answer are.
    """
    asked = set(zip(second["questions"], second["hashes"], strict=True))
    shared = [name for name, sum_ in zip(first["questions"], first["hashes"], strict=True) if (name, sum_) in asked]
    rows: dict[str, Any] = {}
    for name in first["values"]:
        if name in second["values"]:
            a, b = (_over(found, name, shared) for found in (first, second))
            change, before, after = difference(b, a), mean(a), mean(b)
            if change and before and after:
                pairs = [(x, y) for x, y in zip(a, b, strict=True) if not math.isnan(x) and not math.isnan(y)]
                rows[name] = {
                    "first": _as_list(before),
                    "second": _as_list(after),
                    "difference": _as_list(change),
                    "better": sum(y > x for x, y in pairs),
                    "worse": sum(y < x for x, y in pairs),
                }
    return {"questions": shared, "rows": rows}


def _over(found: Mapping[str, Any], name: str, questions: Sequence[str]) -> list[float]:
    at = dict(zip(found["questions"], found["values"][name], strict=True))
    return [math.nan if at[question] is None else float(at[question]) for question in questions]


def _means(outcome: Outcome) -> dict[str, Interval]:
    return {name: made for name, values in outcome.values.items() if (made := mean(values))}


def _metric(name: str, task: str) -> str:
    """``debate/winner`` of gsm8k is ``eval/debate/gsm8k/winner``."""
    way, _, what = name.partition("/")
    return f"eval/{way}/{task}/{what}"


def _as_list(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

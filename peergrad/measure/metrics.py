"""The list of metrics (SPEC 8). A metric is a plain function from debates to named numbers.

One that is added to ``METRICS``, or given by its import path (``--metrics module:name``), is logged, shown in the live view
and drawn in the report under its name. ``measure/shown.py`` has better words for some, and says which are only logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from peergrad.debate.errors import UserError
from peergrad.debate.imports import call_own
from peergrad.measure.answers import accuracy
from peergrad.measure.batch import DebateBatch, Metrics
from peergrad.measure.debates import debate_metrics, form, rewards
from peergrad.measure.quality import vote_quality

Metric = Callable[[DebateBatch], Mapping[str, float | None]]


def cost(batch: DebateBatch) -> Metrics:
    """Debates, tokens and seconds of a training step."""
    if batch.step is None:
        return {}
    step = batch.step
    done = len(step.played.debates)
    sampled = sum(len(turn.tokens.ids_T) for debate in step.played.debates for turn in debate.turns if turn.tokens)
    trained = sum(map(len, step.data))
    metrics = {
        "debates/done": float(done),
        "debates/dropped": float(len(step.played.dropped)),
        "debates/without_signal": step.without_signal / max(1, done),
        "tokens/sampled": float(sampled),
        "tokens/trained": float(trained),
        "tokens/trained_per_s": trained / max(step.trained_s, 1e-9) if step.data else 0.0,
        "time/train_s": step.trained_s,
    }
    if step.played.seconds:  # else the debates were sampled before the run was interrupted
        metrics |= {"time/sample_s": step.played.seconds, "tokens/sampled_per_s": sampled / step.played.seconds}
    return metrics


def update(batch: DebateBatch) -> Metrics:
    """The update of a training step, and what the engine says about it."""
    step = batch.step
    if step is None:
        return {}
    if step.stats is None:
        return {"lr": step.lr}
    return {"lr": step.lr, "optim/loss": step.stats.loss, "optim/grad_norm": step.stats.grad_norm} | dict(step.stats.metrics)


METRICS: tuple[Metric, ...] = (cost, update, form, debate_metrics, rewards, accuracy, vote_quality)


def measure(batch: DebateBatch, own: Mapping[str, Metric] | None = None) -> Metrics:
    """Everything measured about debates. ``own`` are somebody's own metrics, by the name that messages give them."""
    metrics: Metrics = {name: value for metric in METRICS for name, value in metric(batch).items() if value is not None}
    for path, metric in (own or {}).items():
        numbers = _own(path, metric, batch)
        if taken := [name for name in numbers if name in metrics or name in ("phase", "step", "warm", "alarms")]:
            raise UserError(f"metrics: {path}: another metric is called {taken[0]!r}; give it another name")
        metrics |= numbers
    return metrics


def _own(path: str, metric: Metric, batch: DebateBatch) -> Metrics:
    """What somebody's own metric gives, if it is numbers by name. ``None`` is no number, and left out."""
    numbers = call_own(metric, path, "metrics", batch)
    try:
        named = {name: float(value) for name, value in numbers.items() if value is not None}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"metrics: {path}: gave no numbers by name ({error}); give a dict, such as {{'votes': 3.0}}"
        ) from None
    if wrong := [name for name in named if not isinstance(name, str) or not name]:
        raise UserError(f"metrics: {path}: {wrong[0]!r} is no name; give a text for each number")
    return named

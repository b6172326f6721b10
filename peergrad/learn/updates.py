"""Several updates of one batch (SPEC 7.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peergrad.learn.datums import Datum
from peergrad.learn.trainer import RETRIED, Fault, StepStats


def parts(data: Sequence[Datum], updates: int) -> list[Sequence[Datum]]:
    """The data of a batch, dealt out in order to so many updates, or to fewer if there is not enough for all."""
    count = min(updates, len(data))
    return [data[len(data) * i // count : len(data) * (i + 1) // count] for i in range(count)]


def joined(stats: Sequence[StepStats]) -> StepStats | None:
    """What the updates of a step did together: losses add up, of norms and ratios the extreme one is told, else the mean.

    Those that were skipped count as a share of all (``optim/skipped`` of ``optim/updates``), with a fault each, and for
    nothing else unless all were; what was computed again is counted over all.
    """
    if not stats:
        return None
    made = [one for one in stats if not one.skipped]
    told = made or list(stats)
    names = dict.fromkeys(name for one in told for name in one.metrics)
    metrics = {name: _over(name)([one.metrics[name] for one in told if name in one.metrics]) for name in names}
    metrics |= {"optim/updates": float(len(stats)), "optim/skipped": 1 - len(made) / len(stats)}
    if any(RETRIED in one.metrics for one in stats):
        metrics[RETRIED] = sum(one.metrics.get(RETRIED, 0.0) for one in stats)
    return StepStats(
        loss=sum(one.loss for one in told),
        grad_norm=max(one.grad_norm for one in told),
        skipped=not made,
        metrics=metrics,
        faults=tuple(fault for one in stats if one.skipped for fault in one.faults or (Fault(),)),
    )


def _over(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(("/max", "/p99")):
        return max
    return min if name.endswith("/min") else _mean


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

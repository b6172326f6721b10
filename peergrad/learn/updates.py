"""Several updates of one batch (SPEC 7.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peergrad.learn.datums import Datum
from peergrad.learn.trainer import StepStats


def parts(data: Sequence[Datum], updates: int) -> list[Sequence[Datum]]:
    """The data of a batch, dealt out in order to so many updates, or to fewer if there is not enough for all."""
    count = min(updates, len(data))
    return [data[len(data) * i // count : len(data) * (i + 1) // count] for i in range(count)]


def joined(stats: Sequence[StepStats]) -> StepStats | None:
    """What the updates of a step did together: losses add up, of norms and ratios the extreme one is told, else the mean.

    They count as skipped if all were.
    """
    if len(stats) < 2:
        return stats[0] if stats else None
    names = dict.fromkeys(name for one in stats for name in one.metrics)
    return StepStats(
        loss=sum(one.loss for one in stats),
        grad_norm=max(one.grad_norm for one in stats),
        skipped=all(one.skipped for one in stats),
        metrics={name: _over(name)([one.metrics[name] for one in stats if name in one.metrics]) for name in names},
    )


def _over(name: str) -> Callable[[Sequence[float]], float]:
    if name.endswith(("/max", "/p99")):
        return max
    return min if name.endswith("/min") else _mean


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

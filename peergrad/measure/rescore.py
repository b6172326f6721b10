"""The same debates under other rewards, and how each reward relates to the truth (docs/reference/rescore.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peergrad.debate.types import Debate, Question
from peergrad.measure.candidates import LITERAL, STREAMS, Array, Compared, InTurns, candidates, compare_all
from peergrad.measure.statistics import Interval, correlation, correlation_difference, ratio
from peergrad.reward.rewards import RewardRules
from peergrad.tasks.base import Grader
from peergrad.tasks.open import gradable, regrade

Matrix = tuple[tuple[float | None, ...], ...]
_NOTHING = 1e-12  # what centring leaves of equal numbers


@dataclass(frozen=True, slots=True)
class Reward:
    """What one reward makes of the debates. ``follows`` is its correlation with the truth; ``None``: nothing to say."""

    name: str
    follows: Interval | None
    signal: Interval | None
    top_right: Interval | None


@dataclass(frozen=True, slots=True)
class TurnStream:
    """One stream, turn by turn: in how many debates it varies, and its correlation with what it should reward."""

    name: str
    turns: int
    signal: Interval | None
    follows: Interval | None


@dataclass(frozen=True, slots=True)
class Rescored:
    """Debates under several rewards. ``best`` follows the truth most closely, ahead of the others by ``lead[name]``.

    ``mixed`` counts debates with right and wrong agents; ``same`` are published rules that give here what ours gives.
    """

    debates: int
    with_truth: int
    mixed: int
    timed_out: int
    random_right: Interval | None
    some_right: Interval | None
    rewards: tuple[Reward, ...]
    streams: tuple[TurnStream, ...]
    agreement: Matrix
    best: str | None
    lead: Mapping[str, Interval]
    same: tuple[str, ...]


def rescore(
    debates: Iterable[Debate],
    rules: RewardRules,
    grade: Grader = regrade,
    own: Sequence[str] = (),
    known: Callable[[Question], bool] = gradable,
) -> Rescored:
    """Score every debate under every candidate and hold the rewards against the truth, where there is one.

    ``own`` are import paths of rewards to compare with the built-in ones. ``known``: which questions ``grade`` can grade.
    """
    named = candidates(rules, own)
    names = list(named)
    table = list(compare_all(debates, named, grade, known))
    same = [name for name, of in LITERAL.items() if not _differ(table, names.index(name), names.index(of))]
    shown = [i for i, name in enumerate(names) if name not in same]
    named_streams = dict.fromkeys(name for row in table for name in row.streams)
    streams = sorted(named_streams, key=lambda name: [*STREAMS, name].index(name))
    with_known = [row for row in table if row.known.any()]
    mixed = [row for row in with_known if len(set(row.right_A[row.known])) == 2]
    follows, lead = _truth(mixed, shown)
    rewards = [
        Reward(
            names[i],
            follows.get(i),
            _share(table, [row.signal_C[i] for row in table]),
            _share(with_known, [_top_right(row, i) for row in with_known]),
        )
        for i in shown
    ]
    best = max(follows, key=lambda i: follows[i].value, default=None)
    return Rescored(
        debates=len(table),
        with_truth=sum(row.truth is not None for row in table),
        mixed=len(mixed),
        timed_out=sum(row.truth.count(None) for row in table if row.truth is not None),
        random_right=_share(with_known, [float(row.right_A[row.known].mean()) for row in with_known]),
        some_right=_share(with_known, [float(row.right_A[row.known].max()) for row in with_known]),
        rewards=tuple(rewards),
        streams=tuple(_stream(name, table) for name in streams if STREAMS.get(name, ("", ""))[0] not in same),
        agreement=_agreement([row.rewards_CA[shown] for row in table]),
        best=None if best is None else names[best],
        lead={names[i]: gap for i, gap in lead.items()},
        same=tuple(same),
    )


def _truth(mixed: Sequence[Compared], shown: Sequence[int]) -> tuple[dict[int, Interval], dict[int, Interval]]:
    """By candidate, its correlation with being right, within debates; and by how much the best is ahead of the others."""
    sums = [_products(row.rewards_CA[:, row.known], row.right_A[row.known]) for row in mixed]
    xy_CQ, xx_CQ, yy_Q = _by_question(mixed, sums)
    follows = {i: interval for i in shown if mixed and (interval := correlation(xy_CQ[i], xx_CQ[i], yy_Q))}
    best = max(follows, key=lambda i: follows[i].value, default=None)
    if best is None:
        return {}, {}
    gaps = {i: correlation_difference((xy_CQ[best], xx_CQ[best]), (xy_CQ[i], xx_CQ[i]), yy_Q) for i in follows if i != best}
    return follows, {i: gap for i, gap in gaps.items() if gap}


def _differ(table: Sequence[Compared], i: int, j: int) -> bool:
    """Whether two candidates give different numbers in some debate."""
    return any(
        row.signal_C[i] != row.signal_C[j] or not np.allclose(row.rewards_CA[i], row.rewards_CA[j], rtol=0, atol=_NOTHING)
        for row in table
    )


def _top_right(row: Compared, i: int) -> float:
    """Whether the agent with the highest reward is right; averaged over equally high ones."""
    rewards_A, right_A = row.rewards_CA[i, row.known], row.right_A[row.known]
    return float(right_A[rewards_A >= rewards_A.max() - _NOTHING].mean())


def _stream(name: str, table: Sequence[Compared]) -> TurnStream:
    """One stream; correlated within debates in which what it should reward varies."""
    of = [row.streams.get(name, InTurns(False, ())) for row in table]
    varied = [(row, stream) for row, stream in zip(table, of, strict=True) if len({y for _, y in stream.pairs}) > 1]
    turns = [np.array(stream.pairs).T for _, stream in varied]
    xy_CQ, xx_CQ, yy_Q = _by_question([row for row, _ in varied], [_products(xy[:1], xy[1]) for xy in turns])
    return TurnStream(
        name,
        sum(xy.shape[1] for xy in turns),
        _share(table, [stream.varies for stream in of]),
        correlation(xy_CQ[0], xx_CQ[0], yy_Q) if varied else None,
    )


def _agreement(rewards: Sequence[Array]) -> Matrix:
    """Correlations of the rewards of agents within debates with each other; ``None`` where one of them is constant."""
    count = len(rewards[0]) if rewards else 0
    products_CC = np.zeros((count, count))
    for rewards_CA in rewards:
        x_CA = _centred(rewards_CA)
        products_CC += x_CA @ x_CA.T
    size_C = np.sqrt(products_CC.diagonal())
    scale_CC = np.outer(size_C, size_C)
    with np.errstate(invalid="ignore"):
        agreement_CC = np.clip(products_CC / scale_CC, -1, 1)
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in agreement_CC)


def _products(x_CA: Array, y_A: Array) -> tuple[Array, Array, float]:
    """Sums of products of values less their mean: xy and xx for each candidate, and yy."""
    x_CA, y_A = _centred(x_CA), _centred(y_A)
    return x_CA @ y_A, (x_CA**2).sum(-1), float(y_A @ y_A)


def _centred(values: Array) -> Array:
    centred = values - values.mean(-1, keepdims=True)
    return np.where(np.abs(centred) < _NOTHING, 0.0, centred)


def _by_question(rows: Sequence[Compared], sums: Sequence[tuple[Array, Array, float]]) -> tuple[Array, Array, Array]:
    """The sums of debates, added up by question: several debates about one question are no independent evidence."""
    if not rows:
        return np.empty((0, 0)), np.empty((0, 0)), np.empty(0)
    place_D = _questions(rows)
    totals = [np.zeros((int(place_D.max()) + 1, *np.shape(part))) for part in sums[0]]
    for place, parts in zip(place_D, sums, strict=True):
        for total, part in zip(totals, parts, strict=True):
            total[place] += part
    return totals[0].T, totals[1].T, totals[2]


def _share(rows: Sequence[Compared], values: Sequence[float]) -> Interval | None:
    """The mean over debates, its uncertainty over questions."""
    if not rows:
        return None
    place_D = _questions(rows)
    counted_Q, all_Q = np.bincount(place_D, values), np.bincount(place_D)
    return ratio(counted_Q.astype(np.float64), all_Q.astype(np.float64))


def _questions(rows: Sequence[Compared]) -> NDArray[np.int64]:
    """A number for each question, per debate."""
    number = {question: index for index, question in enumerate(dict.fromkeys(row.question for row in rows))}
    return np.array([number[row.question] for row in rows], np.int64)

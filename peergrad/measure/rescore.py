"""The same debates under every reward that one could train with, held against the truth (docs/reference/rescore.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peergrad.debate.errors import UserError
from peergrad.debate.fields import listed
from peergrad.debate.question import Question
from peergrad.debate.settings import is_import_path
from peergrad.debate.types import Debate
from peergrad.learn.data import Values, advantages, has_signal
from peergrad.measure.counts import final_grades, known_grades, vote_right
from peergrad.measure.statistics import Interval, correlation, correlation_difference, ratio
from peergrad.reward.rewards import RewardRules, Scored, score_votes
from peergrad.reward.tally import Ballots, SelfVotes, Tally, tally
from peergrad.tasks.base import Grade, Grader
from peergrad.tasks.open import gradable, regrade

Array = NDArray[np.float64]
_NOTHING = 1e-12  # what centring leaves of equal numbers
_AT_ONCE = 200  # debates that are held at a time, so that slow grades can be made side by side

LITERAL = {
    "win_rate literal": "win_rate",
    "win_minus_loss literal": "win_minus_loss",
    "gen literal": "gen",
    "streams literal": "streams all",
}
"""The published rules, and ours that they are the counterpart of."""

CONTROLS: dict[str, dict[str, Any]] = {
    "majority": {"votes": "majority"},
    "gen shuffled": {"votes": "shuffled"},
    "truth": {"truth_weight": 1.0},
    "gen judged": {"judge_weight": 1.0},
}
"""What the generator stream is held beside, and how it is made (SPEC 4.13, 4.14, 4.16): no rewards to choose between."""

STREAMS = {
    ("gen", "gen"): "gen",
    ("borda", "borda"): "borda",
    ("majority", "gen"): "majority",
    ("gen shuffled", "gen"): "gen shuffled",
    ("gen judged", "gen"): "gen judged",
    ("gen literal", "gen"): "gen literal",
    ("streams all", "judge"): "judge all",
    ("streams others", "judge"): "judge others",
}
"""Built-in streams to look at by themselves: the candidate, its stream, and what to call it."""


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
    ``agreement`` are correlations of the rewards with each other, ``None`` where one of them is constant.
    """

    debates: int
    with_truth: int
    mixed: int
    timed_out: int
    random_right: Interval | None
    some_right: Interval | None
    rewards: tuple[Reward, ...]
    streams: tuple[TurnStream, ...]
    agreement: tuple[tuple[float | None, ...], ...]
    best: str | None
    lead: Mapping[str, Interval]
    same: tuple[str, ...]


def candidates(rules: RewardRules, own: Sequence[str] = ()) -> dict[str, RewardRules]:
    """The rewards to compare; ``own`` are import paths of somebody's own.

    ``literal`` is the published rule: every line is a vote, and a turn nobody judged gets -1.
    """
    streams = replace(rules, reward="streams", votes="peer", truth_weight=0.0, outcome_bonus=0.0, judge_weight=None)
    answers = {"lambda_gen": 1.0, "lambda_judge": 0.0, "lambda_diagnosis": 0.0, "format_penalty": False}
    ours = {
        "win_rate": replace(streams, reward="win_rate"),
        "win_minus_loss": replace(streams, reward="win_minus_loss"),
        "gen": replace(streams, **answers),
        "borda": replace(streams, reward="borda", **answers),
        "streams all": replace(streams, consensus="all"),
        "streams others": replace(streams, consensus="others"),
    }
    for path in own:
        if not is_import_path(path):
            raise UserError(f"reward: {path!r} is compared already, or is not known; give module:name of your own")
    literal = {name: replace(ours[of], ballots="literal", unjudged="literal") for name, of in LITERAL.items()}
    controls = {name: replace(ours["gen"], **settings) for name, settings in CONTROLS.items()}
    if rules.judge_weight is not None:
        controls["gen judged"] = replace(ours["gen"], judge_weight=rules.judge_weight)
    return ours | literal | {path: replace(streams, reward=path) for path in own} | controls


def rescore(
    debates: Iterable[Debate],
    rules: RewardRules,
    grade: Grader = regrade,
    own: Sequence[str] = (),
    known: Callable[[Question], bool] = gradable,
) -> Rescored:
    """Score every debate under every candidate, and hold the rewards against the truth of questions that are ``known``."""
    named = candidates(rules, own)
    names, rows, rest = list(named), list[_Row](), iter(debates)
    while some := list(islice(rest, _AT_ONCE)):
        rows += [_row(*one, named) for one in zip(some, known_grades(some, grade, known), strict=True)]
    same = [name for name, of in LITERAL.items() if all(row.alike(names.index(name), names.index(of)) for row in rows)]
    hidden = {*same, *(() if any(row.judged for row in rows) else ("gen judged",))}
    compared = [i for i, name in enumerate(names) if name not in hidden]
    streams = dict.fromkeys(name for row in rows for name in row.streams if name not in hidden)
    with_known = [row for row in rows if row.known.any()]
    mixed = [row for row in with_known if len(set(row.right_A[row.known])) == 2]
    best, follows, lead = _truth(mixed, compared, [i for i in compared if names[i] not in CONTROLS])
    signal = {i: _share(rows, [row.signal_C[i] for row in rows]) for i in compared}
    top = {i: _share(with_known, [row.top_right(i) for row in with_known]) for i in compared}
    return Rescored(
        debates=len(rows),
        with_truth=sum(row.grades is not None for row in rows),
        mixed=len(mixed),
        timed_out=sum(grade.timed_out for row in rows for grade in row.grades or ()),
        random_right=_share(with_known, [row.right_A[row.known].mean() for row in with_known]),
        some_right=_share(with_known, [row.right_A[row.known].max() for row in with_known]),
        rewards=tuple(Reward(names[i], follows.get(i), signal[i], top[i]) for i in compared),
        streams=tuple(
            _turn_stream(name, rows) for name in sorted(streams, key=lambda name: [*STREAMS.values(), name].index(name))
        ),
        agreement=_agreement([row.rewards_CA[compared] for row in rows]),
        best=None if best is None else names[best],
        lead={names[i]: gap for i, gap in lead.items()},
        same=tuple(same),
    )


def verdict(result: Rescored) -> str:
    """One sentence about which reward to train with, as far as the intervals allow one."""
    if not result.with_truth:
        return "These questions have no known answers, so the data does not decide which reward is better."
    best = next((reward for reward in result.rewards if reward.name == result.best), None)
    if best is None or best.follows is None:
        return "In no debate is one agent right, another wrong and their reward different, so the data does not decide."
    if best.follows.low <= 0:
        return "No reward is known to follow the truth: the data does not decide, and these votes are no safe ground yet."
    behind = [name for name, gap in result.lead.items() if gap.low > 0]
    level = [name for name in result.lead if name not in behind]
    if not level:
        return f"Train with {best.name}: it follows the truth more closely than every other reward here."
    if not behind:
        return "All rewards follow the truth, and the data does not decide which of them does best."
    less = "follows the truth less closely" if len(behind) == 1 else "follow the truth less closely"
    return f"{listed(behind)} {less} than {best.name}; the data does not decide between {listed([best.name, *level])}."


@dataclass(frozen=True, slots=True)
class _TurnValues:
    """A stream of one debate: whether it varies, and per turn ``(value, what it should reward)`` where both are known."""

    varies: bool = False
    pairs: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """One debate: each candidate's reward of each agent, as training credits it, and whether the agent is right (or NaN)."""

    question: tuple[str, str]
    grades: Sequence[Grade] | None
    right_A: Array
    rewards_CA: Array
    signal_C: Sequence[bool]
    streams: Mapping[str, _TurnValues]
    judged: bool

    @property
    def known(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.right_A)

    def alike(self, i: int, j: int) -> bool:
        """Whether two candidates give the same numbers."""
        equal = np.allclose(self.rewards_CA[i], self.rewards_CA[j], rtol=0, atol=_NOTHING)
        return equal and self.signal_C[i] == self.signal_C[j]

    def top_right(self, i: int) -> float:
        """Whether the agent with the highest reward is right; averaged over equally high ones."""
        rewards_A, right_A = self.rewards_CA[i, self.known], self.right_A[self.known]
        return float(right_A[rewards_A >= rewards_A.max() - _NOTHING].mean())


def _row(debate: Debate, grades: Sequence[Grade] | None, named: Mapping[str, RewardRules]) -> _Row:
    """One debate under each of the named rules, its votes counted once for each way of counting."""

    @cache
    def votes(self_votes: SelfVotes, ballots: Ballots, judge_weight: float) -> Tally:
        return tally(debate, self_votes=self_votes, ballots=ballots, judge_weight=judge_weight)

    right = [None] * len(debate.turns) if grades is None else [grade.right for grade in grades]
    final = [None] * debate.agents if grades is None else [grade.right for grade in final_grades(debate, grades)]
    final = [None if seat in debate.opponents else right for seat, right in enumerate(final)]
    tallied = [votes(of.self_votes, of.ballots, of.judge_weight_at(0, 1)) for of in named.values()]
    of_rules = [score_votes(debate, *one, right.__getitem__) for one in zip(tallied, named.values(), strict=True)]
    centred = [advantages([one])[0] for one in of_rules]
    return _Row(
        (debate.question.dataset, debate.question.id),
        grades,
        np.array(final, np.float64),
        np.array([_per_agent(*one) for one in zip(of_rules, centred, strict=True)]),
        [has_signal(scored.streams, values) for scored, values in zip(of_rules, centred, strict=True)],
        _turn_values(dict(zip(named, of_rules, strict=True)), right),
        debate.verdict is not None,
    )


def _per_agent(scored: Scored, centred: Sequence[Values]) -> list[float]:
    """Per agent and stream, the mean advantage of its units with signal, 0 without any; weighted and summed."""
    totals = [0.0] * scored.debate.agents
    for stream, values in zip(scored.streams, centred, strict=True):
        by_agent: dict[int, list[float]] = defaultdict(list)
        for unit, value in enumerate(values):
            if value is not None:
                by_agent[scored.agent_of(stream, unit)].append(value)
        for agent, with_signal in by_agent.items():
            totals[agent] += stream.weight * sum(with_signal) / len(with_signal)
    return totals


def _turn_values(scored: Mapping[str, Scored], right: Sequence[bool | None]) -> dict[str, _TurnValues]:
    """The streams to look at by themselves, with what each should reward: being right, or voting for who is."""
    values: dict[str, _TurnValues] = {}
    for candidate, one in scored.items():
        for stream in one.streams:
            name = f"{candidate} {stream.name}" if is_import_path(candidate) else STREAMS.get((candidate, stream.name))
            if name and stream.unit == "turn" and stream.follows:
                should = right if stream.follows == "solution" else _vote_accuracy(one.tally, right)
                both = zip(stream.values, should, strict=True)
                pairs = [(x, float(y)) for x, y in both if x is not None and y is not None]
                values[name] = _TurnValues(len({*stream.values} - {None}) > 1, pairs)
    return values


def _vote_accuracy(tallied: Tally, right: Sequence[bool | None]) -> list[float | None]:
    """Per turn, the share of its votes between a right and a wrong solution that are for the right one; a tie is half."""
    by_turn: list[list[float]] = [[] for _ in right]
    for vote in tallied.votes:
        if (share := vote_right(vote, right)) is not None:
            by_turn[vote.turn].append(share)
    return [sum(shares) / len(shares) if shares else None for shares in by_turn]


def _truth(
    mixed: Sequence[_Row], compared: Sequence[int], contest: Sequence[int]
) -> tuple[int | None, dict[int, Interval], dict[int, Interval]]:
    """The candidate in the contest that follows the truth best; by candidate, its correlation with being right, within
    debates; and by how much the best is ahead of the others in the contest.
    """
    xy_CQ, xx_CQ, yy_Q = _sums(mixed, [(row.rewards_CA[:, row.known], row.right_A[row.known]) for row in mixed])
    follows = {i: interval for i in compared if mixed and (interval := correlation(xy_CQ[i], xx_CQ[i], yy_Q))}
    known = [i for i in contest if i in follows]
    best = max(known, key=lambda i: follows[i].value, default=None)
    if best is None:
        return None, follows, {}
    gaps = {i: correlation_difference((xy_CQ[best], xx_CQ[best]), (xy_CQ[i], xx_CQ[i]), yy_Q) for i in known if i != best}
    return best, follows, {i: gap for i, gap in gaps.items() if gap}


def _turn_stream(name: str, rows: Sequence[_Row]) -> TurnStream:
    """One stream; correlated within debates in which what it should reward varies."""
    of = [row.streams.get(name, _TurnValues()) for row in rows]
    varied = [
        (row, np.array(stream.pairs).T)
        for row, stream in zip(rows, of, strict=True)
        if len({y for _, y in stream.pairs}) > 1
    ]
    xy_CQ, xx_CQ, yy_Q = _sums([row for row, _ in varied], [(xy_2T[:1], xy_2T[1]) for _, xy_2T in varied])
    return TurnStream(
        name,
        sum(xy_2T.shape[1] for _, xy_2T in varied),
        _share(rows, [stream.varies for stream in of]),
        correlation(xy_CQ[0], xx_CQ[0], yy_Q) if varied else None,
    )


def _agreement(rewards: Sequence[Array]) -> tuple[tuple[float | None, ...], ...]:
    """Correlations of the rewards of agents within debates with each other."""
    if not rewards:
        return ()
    x_CA = np.concatenate([_centred(rewards_CA) for rewards_CA in rewards], axis=1)
    products_CC = x_CA @ x_CA.T
    size_C = np.sqrt(products_CC.diagonal())
    with np.errstate(invalid="ignore"):
        agreement_CC = np.clip(products_CC / np.outer(size_C, size_C), -1, 1)
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in agreement_CC)


def _sums(rows: Sequence[_Row], values: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Of x of each candidate and y, less their means within each debate: sums of xy, xx and yy, by question."""
    centred = [(_centred(x_CA), _centred(y_A)) for x_CA, y_A in values]
    xy_DC, xx_DC = [x_CA @ y_A for x_CA, y_A in centred], [(x_CA**2).sum(-1) for x_CA, _ in centred]
    return _by_question(rows, xy_DC), _by_question(rows, xx_DC), _by_question(rows, [y_A @ y_A for _, y_A in centred])


def _centred(values: Array) -> Array:
    centred = values - values.mean(-1, keepdims=True)
    return np.where(np.abs(centred) < _NOTHING, 0.0, centred)


def _share(rows: Sequence[_Row], values: Sequence[float]) -> Interval | None:
    """The mean over debates, its uncertainty over questions."""
    return ratio(_by_question(rows, values), _by_question(rows, [1.0] * len(rows)))


def _by_question(rows: Sequence[_Row], values_D: Sequence[float] | Sequence[Array]) -> Array:
    """Numbers of debates, added up by question: several debates about one question are no independent evidence."""
    places = {question: place for place, question in enumerate(dict.fromkeys(row.question for row in rows))}
    totals = np.zeros((len(places), *np.shape(values_D)[1:]))
    np.add.at(totals, np.array([places[row.question] for row in rows], np.int64), values_D)
    return totals.T

"""One debate under every reward that one could train with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from peergrad.debate.errors import UserError
from peergrad.debate.imports import is_import_path
from peergrad.debate.types import Debate, Question
from peergrad.learn.advantages import Values, advantages, has_signal
from peergrad.measure.counts import vote_right
from peergrad.measure.grades import Truth, final_grades, known_grades, truth
from peergrad.reward.rewards import RewardRules, Scored, nobody_knows, score_votes
from peergrad.reward.stream import Stream
from peergrad.reward.tally import Ballots, SelfVotes, Tally, tally
from peergrad.tasks.base import Grade, Grader

Array = NDArray[np.float64]
_AT_ONCE = 200

LITERAL = {
    "win_rate literal": "win_rate",
    "win_minus_loss literal": "win_minus_loss",
    "gen literal": "gen",
    "streams literal": "streams all",
}
"""The published rules, and ours that they are the counterpart of."""

STREAMS = {
    "gen": ("gen", "gen"),
    "gen literal": ("gen literal", "gen"),
    "judge all": ("streams all", "judge"),
    "judge others": ("streams others", "judge"),
}
"""Built-in streams to look at by themselves: the candidate that has it, and its name there."""


def candidates(rules: RewardRules, own: Sequence[str] = ()) -> dict[str, RewardRules]:
    """The rewards to compare; ``own`` are import paths of somebody's own.

    ``literal`` is the published rule: every line is a vote, and a turn nobody judged gets -1.
    """
    streams = replace(rules, reward="streams")
    ours = {
        "win_rate": replace(rules, reward="win_rate"),
        "win_minus_loss": replace(rules, reward="win_minus_loss"),
        "gen": replace(streams, lambda_gen=1.0, lambda_judge=0.0, format_penalty=False),
        "streams all": replace(streams, consensus="all"),
        "streams others": replace(streams, consensus="others"),
    }
    for path in own:
        if not is_import_path(path):
            raise UserError(f"reward: {path!r} is compared already, or is not known; give module:name of your own")
    literal = {name: replace(ours[of], ballots="literal", unjudged="literal") for name, of in LITERAL.items()}
    return ours | literal | {path: replace(rules, reward=path) for path in own}


@dataclass(frozen=True, slots=True)
class InTurns:
    """A stream of one debate: whether it varies, and per turn ``(value, what it should reward)`` where both are known."""

    varies: bool
    pairs: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One debate: each candidate's reward of each agent, as training credits it, and whether the agent is right (or NaN)."""

    question: tuple[str, str]
    truth: Truth | None
    right_A: Array
    rewards_CA: Array
    signal_C: tuple[bool, ...]
    streams: Mapping[str, InTurns]

    @property
    def known(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.right_A)


def compare_all(
    debates: Iterable[Debate], named: Mapping[str, RewardRules], grade: Grader, known: Callable[[Question], bool]
) -> Iterator[Compared]:
    """Score debates under each of the named rules. Some are held at a time, so that slow grades can be made side by side."""
    rest = iter(debates)
    while some := list(islice(rest, _AT_ONCE)):
        for debate, grades in zip(some, known_grades(some, grade, known), strict=True):
            yield _compare(debate, named, grades)


def _compare(debate: Debate, named: Mapping[str, RewardRules], grades: Sequence[Grade] | None) -> Compared:
    """One debate, its votes counted once for each way of counting."""

    @cache
    def votes(self_votes: SelfVotes, ballots: Ballots) -> Tally:
        return tally(debate, self_votes=self_votes, ballots=ballots)

    right = None if grades is None else truth(grades)
    final = (None,) * debate.agents if grades is None else truth(final_grades(debate, grades))
    answer = nobody_knows if right is None else right.__getitem__
    scored = {
        name: score_votes(debate, votes(rules.self_votes, rules.ballots), rules, answer) for name, rules in named.items()
    }
    centred = {name: advantages([one])[0] for name, one in scored.items()}
    return Compared(
        (debate.question.dataset, debate.question.id),
        right,
        np.array([np.nan if ok is None else float(ok) for ok in final]),
        np.array([_per_agent(scored[name], centred[name]) for name in named]),
        tuple(has_signal(scored[name].streams, centred[name]) for name in named),
        {name: _in_turns(stream, tallied, right) for name, stream, tallied in _streams(scored)},
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


def _streams(scored: Mapping[str, Scored]) -> Iterator[tuple[str, Stream, Tally]]:
    """The streams to look at by themselves, each with the votes it was made of."""
    names = {places: label for label, places in STREAMS.items()}
    for candidate, one in scored.items():
        for stream in one.streams:
            label = f"{candidate} {stream.name}" if is_import_path(candidate) else names.get((candidate, stream.name))
            if label and stream.unit == "turn" and stream.follows:
                yield label, stream, one.tally


def _in_turns(stream: Stream, tallied: Tally, right: Truth | None) -> InTurns:
    """A stream turn by turn, with what it should reward: being right, or voting for who is."""
    varies = len({value for value in stream.values if value is not None}) > 1
    if right is None:
        return InTurns(varies, ())
    should = right if stream.follows == "solution" else _vote_accuracy(tallied, right)
    both = zip(stream.values, should, strict=True)
    return InTurns(varies, [(x, float(y)) for x, y in both if x is not None and y is not None])


def _vote_accuracy(tallied: Tally, right: Truth) -> list[float | None]:
    """Per turn, the share of its votes between a right and a wrong solution that are for the right one; a tie is half."""
    by_turn: list[list[float]] = [[] for _ in right]
    for vote in tallied.votes:
        if (share := vote_right(vote, right)) is not None:
            by_turn[vote.turn].append(share)
    return [sum(shares) / len(shares) if shares else None for shares in by_turn]

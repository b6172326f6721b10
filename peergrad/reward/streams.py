"""Separate rewards for generating, judging and keeping to the form, one value per turn (SPEC 4.5 to 4.8)."""

from __future__ import annotations

from typing import Literal

from peergrad.debate.types import Debate
from peergrad.reward.stream import Stream
from peergrad.reward.tally import Tally, Vote

Consensus = Literal["all", "others"]
Unjudged = Literal["skip", "literal"]


def soft_vote_ratio(debate: Debate, tallied: Tally, *, unjudged: Unjudged = "skip", weight: float = 1.0) -> Stream:
    """Generator reward: how far the votes that judge a turn are for it, from -1 to +1; a tie is half for, half against."""
    shares: list[list[float]] = [[] for _ in debate.turns]
    why: list[list[int]] = [[] for _ in debate.turns]
    for index, vote in enumerate(tallied.votes):
        for agent, judged in zip((vote.a, vote.b), vote.judged or (), strict=False):
            if agent != vote.author:
                shares[judged].append(0.5 if vote.op == "=" else float(agent == vote.a))
                why[judged].append(index)
    nobody = None if unjudged == "skip" else -1.0
    values = tuple(2 * sum(share) / len(share) - 1 if share else nobody for share in shares)
    return Stream("gen", "turn", values, ("solution", "evaluation"), weight, tuple(map(tuple, why)), "solution")


def consensus_alignment(debate: Debate, tallied: Tally, *, consensus: Consensus, weight: float = 1.0) -> Stream:
    """Judge reward: the mean over a turn's votes of +1 for going with the consensus on the pair, -1 against, 0 at a tie."""
    on_pair: dict[frozenset[int], list[int]] = {}
    cast: dict[tuple[int, frozenset[int]], list[int]] = {}
    for index, vote in enumerate(tallied.votes):
        if vote.judged:
            pair = frozenset((vote.a, vote.b))
            on_pair.setdefault(pair, []).append(index)
            cast.setdefault((vote.turn, pair), []).append(index)
    agreements: list[list[float]] = [[] for _ in debate.turns]
    why: list[set[int]] = [set() for _ in debate.turns]
    for (turn, pair), own in cast.items():
        author = debate.turns[turn].agent
        jury = [i for i in on_pair[pair] if consensus == "all" or tallied.votes[i].author != author]
        if jury:
            low = min(pair)
            lead = sum(1 if tallied.votes[i].a == low else -1 for i in jury if tallied.votes[i].op == ">")
            agreements[turn] += [_agreement(tallied.votes[i], lead if tallied.votes[i].a == low else -lead) for i in own]
            why[turn].update(own, jury)
    values = tuple(sum(agreed) / len(agreed) if agreed else None for agreed in agreements)
    return Stream("judge", "turn", values, ("comparison",), weight, tuple(tuple(sorted(w)) for w in why), "votes")


def contract_penalty(debate: Debate, tallied: Tally) -> Stream:
    """-1 on an unreadable turn, -0.5 on one without a valid vote when one was due, else 0; on all of the turn's tokens."""
    values = tuple(
        -1.0 if turn.parsed.error else -0.5 if index in tallied.missing else 0.0 for index, turn in enumerate(debate.turns)
    )
    return Stream("format", "turn", values, None, 1.0, ((),) * len(values))


def default_consensus(agents: int) -> Consensus:
    """Up to three agents, at most one may judge a pair, so nobody else's votes are there to agree with (SPEC 4.8)."""
    return "others" if agents >= 4 else "all"


def _agreement(vote: Vote, lead: int) -> float:
    """Whether a vote goes with the majority, given by how many votes its ``a`` leads its ``b``."""
    if lead == 0:
        return 0.0
    return 1.0 if vote.op == ">" and lead > 0 else -1.0

"""How good the votes are where the truth is known (SPEC 8.4)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from peergrad.measure.batch import Counts, DebateBatch, Metrics, shares, total
from peergrad.measure.grades import Truth, truth
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored
from peergrad.reward.tally import Vote


def vote_quality(batch: DebateBatch) -> Metrics:
    """Whether votes find the truth, whether debate moves towards it, and what votes favour besides."""
    if not batch.graded:
        return {}
    counts = total(vote_counts(scored, truth(grades)) for scored, grades in batch.graded)
    return {"votes/between_right_and_wrong": counts.get("votes/accuracy", (0.0, 0.0))[1]} | shares(counts)


def vote_counts(scored: Scored, right: Truth) -> Counts:
    """The same of one debate, as counts.

    A tie between a right and a wrong solution counts half, so that voting blindly scores 0.5 in any style.
    """
    counted: dict[str, list[float]] = defaultdict(list)
    for vote in scored.tally.votes:
        if (share := vote_right(vote, right)) is not None:
            counted["votes/accuracy"].append(share)
    turns_of: dict[int, list[int]] = defaultdict(list)
    for index, turn in enumerate(scored.debate.turns):
        if turn.asked_to_answer:
            turns_of[turn.agent].append(index)
    if scored.tally.votes and (won := winner_is_right(scored, right)) is not None:
        counted["votes/winner_is_right"].append(won)
    for indices in turns_of.values():
        for before, after in pairwise(indices):
            if right[before] is not None and right[after] is not None:
                name = "flips/right_to_wrong" if right[before] else "flips/wrong_to_right"
                counted[name].append(float(right[before] != right[after]))
    _count_bias(scored, counted)
    return {name: (sum(shares), float(len(shares))) for name, shares in counted.items()}


def vote_right(vote: Vote, right: Truth) -> float | None:
    """Whether a vote between a right and a wrong solution is for the right one; a tie is half, and others have no value."""
    if not vote.judged or {right[vote.judged[0]], right[vote.judged[1]]} != {True, False}:
        return None
    return 0.5 if vote.op == "=" else float(bool(right[vote.judged[0]]))


def winner_is_right(scored: Scored, right: Truth) -> float | None:
    """Whether the last solution of the agent with the best win rate is right; averaged over equally good ones.

    ``None`` if it is not known of any of them.
    """
    last = {turn.agent: index for index, turn in enumerate(scored.debate.turns) if turn.asked_to_answer}
    rates = win_rate(scored.debate.agents, scored.tally.votes)
    best = [agent for agent, rate in enumerate(rates) if rate == max(rates)]
    known = [truth for agent in best if (truth := right[last[agent]] if agent in last else False) is not None]
    return sum(known) / len(known) if known else None


def _count_bias(scored: Scored, counted: dict[str, list[float]]) -> None:
    """Votes won by seat and by persona (a tie is half), and by the longer of two solutions (ties left out)."""
    debate = scored.debate
    lengths = [len(turn.solution or "") for turn in debate.turns]
    for vote in scored.tally.votes:
        for agent, win in ((vote.a, 1.0), (vote.b, 0.0)):
            share = 0.5 if vote.op == "=" else win
            counted[f"bias/seat/{agent}"].append(share)
            if persona := debate.protocol.persona(agent):
                counted[f"bias/persona/{persona.name}"].append(share)
        if vote.judged and vote.op == ">":
            winner, loser = (lengths[index] for index in vote.judged)
            if winner != loser:
                counted["bias/longer"].append(float(winner > loser))

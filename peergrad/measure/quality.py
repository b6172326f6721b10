"""How good the votes are where the truth is known (SPEC 8.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from peergrad.debate.contract import said
from peergrad.debate.protocols import Parallel
from peergrad.debate.types import Debate, Question
from peergrad.measure.metrics import Metrics
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored
from peergrad.tasks.base import Grade

Truth = tuple[bool, ...]


def truth(debate: Debate, grade: Callable[[Question, str], Grade]) -> Truth:
    """Per turn, whether its solution is right; an unreadable turn is not."""
    return tuple(
        not turn.parsed.error and grade(debate.question, said(turn.text, turn.parsed, "solution")).correct
        for turn in debate.turns
    )


def vote_quality(batch: Sequence[Scored], truths: Sequence[Truth]) -> Metrics:
    """Whether votes find the truth, whether debate moves towards it, and what votes favour besides. Empty means left out.

    A tie between a right and a wrong solution counts half, so that voting blindly scores 0.5 in any style.
    """
    pairs: list[float] = []
    winners: list[float] = []
    to_wrong: list[bool] = []
    to_right: list[bool] = []
    for scored, right in zip(batch, truths, strict=True):
        for vote in scored.tally.votes:
            if vote.judged and right[vote.judged[0]] != right[vote.judged[1]]:
                pairs.append(0.5 if vote.op == "=" else float(right[vote.judged[0]]))
        turns_of: dict[int, list[int]] = defaultdict(list)
        for index, turn in enumerate(scored.debate.turns):
            turns_of[turn.agent].append(index)
        if scored.tally.votes:
            rates = win_rate(scored.debate.agents, scored.tally.votes)
            best = [agent for agent, rate in enumerate(rates) if rate == max(rates)]
            winners.append(sum(right[turns_of[agent][-1]] if turns_of[agent] else False for agent in best) / len(best))
        for indices in turns_of.values():
            for before, after in pairwise(indices):
                (to_wrong if right[before] else to_right).append(right[before] != right[after])
    metrics = {"votes/between_right_and_wrong": float(len(pairs))}
    for name, values in (
        ("votes/accuracy", pairs),
        ("votes/winner_is_right", winners),
        ("flips/right_to_wrong", to_wrong),
        ("flips/wrong_to_right", to_right),
    ):
        if values:
            metrics[name] = sum(values) / len(values)
    return metrics | _bias(batch)


def _bias(batch: Sequence[Scored]) -> Metrics:
    """Share of votes won by seat and by persona (a tie is half), and by the longer of two solutions (ties left out)."""
    won: dict[str, list[float]] = defaultdict(list)
    for scored in batch:
        debate = scored.debate
        lengths = [len(said(turn.text, turn.parsed, "solution")) for turn in debate.turns]
        for vote in scored.tally.votes:
            for agent, win in ((vote.a, 1.0), (vote.b, 0.0)):
                share = 0.5 if vote.op == "=" else win
                won[f"bias/seat/{agent}"].append(share)
                if isinstance(debate.protocol, Parallel):
                    won[f"bias/persona/{debate.protocol.persona(agent).name}"].append(share)
            if vote.judged and vote.op == ">":
                winner, loser = (lengths[index] for index in vote.judged)
                if winner != loser:
                    won["bias/longer"].append(float(winner > loser))
    return {name: sum(shares) / len(shares) for name, shares in sorted(won.items())}

"""One score per agent from all votes of the debate (SPEC 4.1 to 4.4)."""

from __future__ import annotations

from collections.abc import Sequence

from peergrad.debate.types import Debate
from peergrad.reward.streams import Form, Stream, weighted_mean
from peergrad.reward.tally import Tally, Vote


def win_rate(agents: int, votes: Sequence[Vote], judge_weight: float = 1.0) -> list[float]:
    """Share of the others' votes an agent wins, a tie being half a win; in [0, 1], 0 without votes."""
    outcomes = [_outcomes(agent, agents, votes, judge_weight) for agent in range(agents)]
    return [weighted_mean([((outcome + 1) / 2, weight) for outcome, weight in of_agent]) for of_agent in outcomes]


def win_minus_loss(agents: int, votes: Sequence[Vote], judge_weight: float = 1.0) -> list[float]:
    """Mean of +1 per win, -1 per loss, 0 per tie among the others' votes; in [-1, 1], 0 without votes."""
    return [weighted_mean(_outcomes(agent, agents, votes, judge_weight)) for agent in range(agents)]


SCORES = {"win_rate": win_rate, "win_minus_loss": win_minus_loss}


def step_rewards(debate: Debate, form: Form = "graded") -> list[float]:
    """Per turn: -1 for an unreadable reply, else 0; by the literal rule only for one that ends a debate (SPEC 3.4)."""
    costs = form == "graded" or debate.protocol.ends_on_error
    return [-1.0 if costs and turn.parsed.error else 0.0 for turn in debate.turns]


def returns(debate: Debate, tallied: Tally, name: str, scores: Sequence[float], form: Form = "graded") -> Stream:
    """Step rewards plus score, one per agent, on all of its tokens."""
    values = list(scores)
    for turn, reward in zip(debate.turns, step_rewards(debate, form), strict=True):
        values[turn.agent] += reward
    why = tuple(
        tuple(index for index, vote in enumerate(tallied.all_votes) if agent in (vote.a, vote.b) and agent != vote.author)
        for agent in range(debate.agents)
    )
    return Stream(name, "agent", tuple(values), votes=why, follows="solution")


def _outcomes(agent: int, agents: int, votes: Sequence[Vote], judge_weight: float) -> list[tuple[float, float]]:
    """How far each vote about the agent that is not its own is for it, from -1 to 1, and how many votes it counts as."""
    about = [vote for vote in votes if vote.author != agent and agent in (vote.a, vote.b)]
    return [(vote.value(agent), judge_weight if vote.author >= agents else 1.0) for vote in about]

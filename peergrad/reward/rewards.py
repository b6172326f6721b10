"""What a debate is worth: the reward function a run is configured with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from peergrad.debate.errors import UserError
from peergrad.debate.types import Debate
from peergrad.reward import pairwise
from peergrad.reward.stream import Stream
from peergrad.reward.streams import (
    Consensus,
    Unjudged,
    consensus_alignment,
    contract_penalty,
    default_consensus,
    soft_vote_ratio,
)
from peergrad.reward.tally import Ballots, SelfVotes, Tally, tally

Reward = Literal["win_rate", "win_minus_loss", "streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRules:
    """How votes become reward. The defaults are ours; each has the published rule beside it, as ``literal`` or ``all``."""

    reward: Reward = "streams"
    """One score per agent (win_rate, win_minus_loss), or separate streams for generating, judging and form."""
    consensus: Consensus | None = None
    """Whose votes make the consensus a judge is held to: all, or only the others'. Unset: others from 4 agents on."""
    self_votes: SelfVotes = "drop"
    """Votes that name their author: dropped, or kept for the consensus (never for the author's own score)."""
    ballots: Ballots = "once"
    """One vote per pair and turn, or the literal rule: every line counts."""
    unjudged: Unjudged = "skip"
    """A turn nobody judged has no signal, or by the literal formula -1."""
    format_penalty: bool = True
    """Punish unreadable turns and missing votes (streams only)."""
    lambda_gen: float = 1.0
    """Weight of the generator stream."""
    lambda_judge: float = 1.0
    """Weight of the judge stream."""

    def __post_init__(self) -> None:
        for name in ("lambda_gen", "lambda_judge"):
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give a number")


@dataclass(frozen=True, slots=True)
class Scored:
    """A debate with its valid votes and its reward streams."""

    debate: Debate
    tally: Tally
    streams: tuple[Stream, ...]


def score(debate: Debate, rules: RewardRules | None = None) -> Scored:
    """Score one debate. Pure: the same transcript and rules always give the same numbers.

    Example: ``score(debate, RewardRules(reward="win_rate")).streams[0].values``
    """
    rules = rules or RewardRules()
    return score_votes(debate, tally(debate, self_votes=rules.self_votes, ballots=rules.ballots), rules)


def score_votes(debate: Debate, tallied: Tally, rules: RewardRules) -> Scored:
    """Score a debate whose votes are already counted by these rules, as several rewards may be made of the same votes."""
    if rules.reward == "streams":
        consensus = rules.consensus or default_consensus(debate.agents)
        streams = [
            soft_vote_ratio(debate, tallied, unjudged=rules.unjudged, weight=rules.lambda_gen),
            consensus_alignment(debate, tallied, consensus=consensus, weight=rules.lambda_judge),
        ]
        if rules.format_penalty:
            streams.append(contract_penalty(debate, tallied))
    else:
        scores = pairwise.SCORES[rules.reward](debate.agents, tallied.votes)
        streams = [pairwise.returns(debate, tallied, rules.reward, scores)]
    return Scored(debate, tallied, tuple(streams))

"""What debates were like: their form, their votes and their rewards, under the names people know (SPEC 8.1, 8.2)."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np

from peergrad.debate.protocols import consensus_reached
from peergrad.debate.types import Debate
from peergrad.measure.batch import Counts, DebateBatch, Metrics, shares, total
from peergrad.reward.pairwise import SCORES
from peergrad.reward.rewards import Scored
from peergrad.reward.tally import vote_due


def form(batch: DebateBatch) -> Metrics:
    """Whether replies can be read and votes are cast: what a weak model learns first."""
    counts = total(map(form_counts, batch.scored))
    return {"votes/agreement_pairs": counts.get("votes/agreement", (0.0, 0.0))[1]} | shares(counts)


def form_counts(scored: Scored) -> Counts:
    """The same of one debate, as counts."""
    turns, votes = scored.debate.turns, [vote for vote in scored.tally.votes if vote.judged]
    voters = {vote.turn for vote in votes}
    due = [index in voters for index, turn in enumerate(turns) if vote_due(scored.debate, turn)]
    counts = {
        "replies/readable": (sum(turn.parsed.error is None for turn in turns), len(turns)),
        "replies/truncated": (sum(turn.truncated for turn in turns), len(turns)),
        "votes/per_due_turn": (len(votes), len(due)),
        "votes/due_turns_with_vote": (sum(due), len(due)),
        "votes/ties": (sum(vote.op == "=" for vote in votes), len(votes)),
        "votes/agreement": _agreement(scored),
    }
    return {name: (float(part), float(whole)) for name, (part, whole) in counts.items()}


def debate_metrics(batch: DebateBatch) -> Metrics:
    """Votes, rewards and lengths. An episode is one agent's part in one debate; means are over what the name says."""
    if not batch.scored:
        return {}
    reward = batch.scored[0].streams[0].name
    returns = [agent_returns(scored) for scored in batch.scored]
    turns = [(scored.debate, index) for scored in batch.scored for index in range(len(scored.debate.turns))]
    counts = [scored.tally.counts for scored in batch.scored]
    # Pairwise metrics are per agent and then averaged, so a debate counts as often as it has agents.
    agents = np.array([scored.debate.agents for scored in batch.scored])
    votes = np.array([len(scored.tally.votes) for scored in batch.scored])
    metrics = {
        "pairwise_reward_is_win_rate": float(reward == "win_rate"),
        "pairwise_reward_is_win_minus_loss": float(reward == "win_minus_loss"),
        "pairwise_total_votes": float(np.average(votes, weights=agents)),
        "pairwise_malformed": float(np.average([count.malformed for count in counts], weights=agents)),
        "pairwise_any_votes": float(np.average(votes > 0, weights=agents)),
        "env/all/total_episodes": float(agents.sum()),
        "env/all/total_turns": float(len(turns)),
        "env/all/turns_per_episode": len(turns) / float(agents.sum()),
        "env/all/reward/total": float(np.mean(np.concatenate(returns))),
        "env/all/by_group/frac_mixed": float(np.mean([len(set(values)) > 1 for values in returns])),
        "v2/total_votes": float(votes.sum()),
        "v2/missing_comparisons": float(sum(count.missing for count in counts)),
        "v2/comparison_lines_invalid": float(sum(count.malformed for count in counts)),
    }
    if turns:
        metrics |= {
            "consensus_reached": float(np.mean([_agreed_by(debate, index) for debate, index in turns])),
            "round": float(np.mean([debate.turns[index].round + 1 for debate, index in turns])),
            "parse_error": float(np.mean([debate.turns[index].parsed.error is not None for debate, index in turns])),
        }
    if reward in SCORES:
        scores = [SCORES[reward](scored.debate.agents, scored.tally.votes) for scored in batch.scored]
        metrics["pairwise_reward"] = float(np.mean(np.concatenate(scores)))  # without step rewards
    sampled = [tokens for debate, index in turns if (tokens := debate.turns[index].tokens)]
    if sampled:
        metrics["env/all/ac_tokens_per_turn"] = float(np.mean([len(tokens.ids_T) for tokens in sampled]))
        metrics["env/all/ob_tokens_per_turn"] = float(np.mean([len(tokens.prompt_T) for tokens in sampled]))
    return metrics


def rewards(batch: DebateBatch) -> Metrics:
    """Mean and standard deviation of each stream, and its mean for each seat, over what has a signal."""
    by_stream: dict[str, list[float]] = defaultdict(list)
    by_seat: dict[str, list[float]] = defaultdict(list)
    for scored in batch.scored:
        for stream in scored.streams:
            for unit, value in enumerate(stream.values):
                agent = unit if stream.unit == "agent" else scored.debate.turns[unit].agent
                if value is not None:
                    by_stream[stream.name].append(value)
                    by_seat[f"reward/{stream.name}/seat/{agent}"].append(value)
    metrics = {f"reward/{name}/mean": float(np.mean(values)) for name, values in sorted(by_stream.items())}
    metrics |= {f"reward/{name}/std": float(np.std(values)) for name, values in sorted(by_stream.items())}
    return metrics | {name: float(np.mean(values)) for name, values in sorted(by_seat.items())}


def agent_returns(scored: Scored) -> list[float]:
    """Each agent's total: the pairwise return itself, or the weighted sum of its turns over all streams."""
    totals = [0.0] * scored.debate.agents
    for stream in scored.streams:
        for unit, value in enumerate(stream.values):
            agent = unit if stream.unit == "agent" else scored.debate.turns[unit].agent
            totals[agent] += stream.weight * (value or 0.0)
    return totals


def _agreed_by(debate: Debate, index: int) -> bool:
    """Whether the group had reached consensus by the end of this turn; it ends the debate, so only the last turn can."""
    return index == len(debate.turns) - 1 and consensus_reached(debate)


def _agreement(scored: Scored) -> tuple[int, int]:
    """Of the pairs of votes by different agents on the same two turns: how many agree, how many there are."""
    by_turns: dict[frozenset[int], list[tuple[int, int | None]]] = defaultdict(list)
    for vote in scored.tally.votes:
        if vote.judged:
            winner = vote.judged[0] if vote.op == ">" else None
            by_turns[frozenset(vote.judged)].append((vote.author, winner))
    agreed = [
        first[1] == second[1]
        for votes in by_turns.values()
        for first, second in combinations(votes, 2)
        if first[0] != second[0]
    ]
    return sum(agreed), len(agreed)

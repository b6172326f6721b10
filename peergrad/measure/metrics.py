"""What a batch of debates was like, under the names people know (SPEC 8.1 to 8.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from peergrad.debate.protocols import consensus_reached
from peergrad.debate.types import Debate
from peergrad.reward.pairwise import SCORES
from peergrad.reward.rewards import Scored
from peergrad.tasks.base import Grade

Metrics = dict[str, float]


def debate_metrics(batch: Sequence[Scored]) -> Metrics:
    """Votes, rewards, form and lengths. An episode is one agent's part in one debate; means are over what the name says."""
    if not batch:
        return {}
    reward = batch[0].streams[0].name
    returns = [agent_returns(scored) for scored in batch]
    turns = [(scored.debate, index) for scored in batch for index in range(len(scored.debate.turns))]
    counts = [scored.tally.counts for scored in batch]
    # Pairwise metrics are per agent and then averaged, so a debate counts as often as it has agents.
    agents = np.array([scored.debate.agents for scored in batch])
    votes = np.array([len(scored.tally.votes) for scored in batch])
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
            "round": float(np.mean([debate.round(index) + 1 for debate, index in turns])),
            "parse_error": float(np.mean([debate.turns[index].parsed.error is not None for debate, index in turns])),
        }
    if reward in SCORES:
        scores = [SCORES[reward](scored.debate.agents, scored.tally.votes) for scored in batch]
        metrics["pairwise_reward"] = float(np.mean(np.concatenate(scores)))  # without step rewards
    for name in sorted({stream.name for scored in batch for stream in scored.streams}):
        signal = [v for scored in batch for s in scored.streams if s.name == name for v in s.values if v is not None]
        if signal:
            metrics |= {f"reward/{name}/mean": float(np.mean(signal)), f"reward/{name}/std": float(np.std(signal))}
    sampled = [tokens for debate, index in turns if (tokens := debate.turns[index].tokens)]
    if sampled:
        metrics["env/all/ac_tokens_per_turn"] = float(np.mean([len(tokens.ids_T) for tokens in sampled]))
        metrics["env/all/ob_tokens_per_turn"] = float(np.mean([len(tokens.prompt_T) for tokens in sampled]))
    return metrics


def agent_returns(scored: Scored) -> list[float]:
    """Each agent's total: the pairwise return itself, or the weighted sum of its turns over all streams."""
    totals = [0.0] * scored.debate.agents
    for stream in scored.streams:
        for unit, value in enumerate(stream.values):
            agent = unit if stream.unit == "agent" else scored.debate.turns[unit].agent
            totals[agent] += stream.weight * (value or 0.0)
    return totals


def answer_metrics(grades: Sequence[Sequence[Grade]], prefix: str) -> Metrics:
    """Accuracy of k answers to each question, by name ``prefix/…``, e.g. ``train_gsm8k`` or ``eval/direct/gsm8k``.

    ``cons@k`` takes the most frequent answer; between equally frequent ones, the chance that a fair draw is right. What
    could not be graded in time counts as not given, and is counted apart.
    """
    if not grades:
        return {}
    ks = {len(answers) for answers in grades}
    if len(ks) != 1:
        raise ValueError(f"pass@k needs the same number of answers to each question, got {sorted(ks)}")
    (k,) = ks
    every = [answer for answers in grades for answer in answers]
    graded = [answer for answer in every if not answer.timed_out]
    metrics = {f"{prefix}/timed_out": float(len(every) - len(graded))} if len(graded) < len(every) else {}
    if graded:
        shares = [share for answers in grades if (share := share_right(answers)) is not None]
        metrics |= {
            f"{prefix}/format": float(np.mean([answer.format for answer in graded])),
            f"{prefix}/correct": float(np.mean([answer.correct for answer in graded])),
            f"{prefix}/pass@{k}": float(np.mean([any(answer.correct for answer in answers) for answers in grades])),
            f"{prefix}/avg@{k}": float(np.mean(shares)),
            f"{prefix}/cons@{k}": float(np.mean([vote_is_right(answers) for answers in grades])),
        }
    return metrics


def share_right(answers: Sequence[Grade]) -> float | None:
    """The share of right answers among those that could be graded in time; ``None`` if there are none."""
    graded = [answer.correct for answer in answers if not answer.timed_out]
    return sum(graded) / len(graded) if graded else None


def vote_is_right(answers: Sequence[Grade]) -> float:
    """Whether the most frequent answer is right; between equally frequent ones, the chance that a fair draw is."""
    given = Counter(answer.answer for answer in answers if answer.answer is not None)
    if not given:
        return 0.0
    most = max(given.values())
    right = {answer.answer for answer in answers if answer.correct}
    top = [answer for answer, count in given.items() if count == most]
    return sum(answer in right for answer in top) / len(top)


def _agreed_by(debate: Debate, index: int) -> bool:
    """Whether the group had reached consensus by the end of this turn; it ends the debate, so only the last turn can."""
    return index == len(debate.turns) - 1 and consensus_reached(debate)

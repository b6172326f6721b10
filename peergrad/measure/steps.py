"""What one step of a run was like: the line that is kept, shown and watched for alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from peergrad.learn.train import Step
from peergrad.measure.grades import final_grades, truth, turn_grades
from peergrad.measure.metrics import Metrics, answer_metrics, debate_metrics
from peergrad.measure.quality import vote_quality
from peergrad.reward.rewards import Scored
from peergrad.reward.tally import vote_due
from peergrad.tasks.base import Task


def step_metrics(step: Step, task: Task) -> Metrics:
    """Everything measured about a step (SPEC 8), without model text."""
    done, dropped = len(step.played.debates), len(step.played.dropped)
    sampled = sum(len(turn.tokens.ids_T) for debate in step.played.debates for turn in debate.turns if turn.tokens)
    trained = sum(map(len, step.data))
    metrics = {
        "lr": step.lr,
        "debates/done": float(done),
        "debates/dropped": float(dropped),
        "debates/without_signal": step.without_signal / max(1, done),
        "tokens/sampled": float(sampled),
        "tokens/trained": float(trained),
        "tokens/trained_per_s": trained / max(step.trained_s, 1e-9) if step.data else 0.0,
        "time/train_s": step.trained_s,
    }
    if step.played.seconds:  # else they were kept from before
        metrics |= {"time/sample_s": step.played.seconds, "tokens/sampled_per_s": sampled / step.played.seconds}
    if step.stats:
        metrics |= {"optim/loss": step.stats.loss, "optim/grad_norm": step.stats.grad_norm}
        metrics |= dict(step.stats.metrics)
    return metrics | form(step.scored) | debate_metrics(step.scored) | seats(step.scored) | answers(step.scored, task)


def form(batch: Sequence[Scored]) -> Metrics:
    """Whether replies can be read and votes are cast: what a weak model learns first."""
    turns = [turn for scored in batch for turn in scored.debate.turns]
    due = voted = votes = ties = same = pairs = 0
    for scored in batch:
        debate = scored.debate
        voters = {vote.turn for vote in scored.tally.votes if vote.judged}
        for index, turn in enumerate(debate.turns):
            if vote_due(debate, turn):
                due += 1
                voted += index in voters
        votes += sum(vote.judged is not None for vote in scored.tally.votes)
        ties += sum(vote.op == "=" for vote in scored.tally.votes if vote.judged)
        agreed, compared = _agreement(scored)
        same, pairs = same + agreed, pairs + compared
    metrics = {"votes/agreement_pairs": float(pairs)}
    if turns:
        metrics["replies/readable"] = float(np.mean([turn.parsed.error is None for turn in turns]))
        metrics["replies/truncated"] = float(np.mean([turn.truncated for turn in turns]))
    if due:
        metrics |= {"votes/per_due_turn": votes / due, "votes/due_turns_with_vote": voted / due}
    if votes:
        metrics["votes/ties"] = ties / votes
    if pairs:
        metrics["votes/agreement"] = same / pairs
    return metrics


def seats(batch: Sequence[Scored]) -> Metrics:
    """Mean reward of each seat in each stream."""
    by_seat: dict[str, list[float]] = defaultdict(list)
    for scored in batch:
        for stream in scored.streams:
            for unit, value in enumerate(stream.values):
                agent = unit if stream.unit == "agent" else scored.debate.turns[unit].agent
                if value is not None:
                    by_seat[f"reward/{stream.name}/seat/{agent}"].append(value)
    return {name: float(np.mean(values)) for name, values in sorted(by_seat.items())}


def answers(batch: Sequence[Scored], task: Task, prefix: str | None = None) -> Metrics:
    """Accuracy and the quality of votes, where there is truth; how often all agents end on the same answer."""
    batch = [scored for scored in batch if scored.debate.question.known]
    if not batch or not task.known:
        return {}
    debates = [scored.debate for scored in batch]
    grades = turn_grades(debates, task.grade)
    final = [final_grades(debate, given) for debate, given in zip(debates, grades, strict=True)]
    alike = [len({grade.answer for grade in given}) == 1 and given[0].answer is not None for given in final]
    metrics = answer_metrics(final, prefix or f"train_{task.name}") | {"debates/same_answer": float(np.mean(alike))}
    return metrics | vote_quality(batch, [truth(given) for given in grades])


def _agreement(scored: Scored) -> tuple[int, int]:
    """Of the pairs of votes by different agents on the same two turns: how many agree, how many there are."""
    by_turns: dict[frozenset[int], list[tuple[int, int | None]]] = defaultdict(list)
    for vote in scored.tally.votes:
        if vote.judged:
            winner = vote.judged[0] if vote.op == ">" else None
            by_turns[frozenset(vote.judged)].append((vote.author, winner))
    agreed = [
        first[1] == second[1]
        for cast in by_turns.values()
        for first, second in combinations(cast, 2)
        if first[0] != second[0]
    ]
    return sum(agreed), len(agreed)

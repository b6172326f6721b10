"""The metrics of debates (SPEC 8). A metric is a plain function from a batch of debates to named numbers.

One that is added to ``METRICS``, or given by its import path (``--metrics module:name``), is logged, shown in the live view
and drawn in the report under its name. ``measure/history.py`` has better words for some, and says which are only logged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from peergrad.debate.errors import UserError
from peergrad.debate.protocols import consensus_reached
from peergrad.debate.settings import call_own
from peergrad.learn.train import Step
from peergrad.measure.counts import AT_K, bias_counts, final_grades, form_counts, known_grades, shares, total, vote_counts
from peergrad.reward.pairwise import SCORES
from peergrad.reward.rewards import Scored
from peergrad.tasks.base import Grade, Task

Metrics = dict[str, float]
Numbers = Mapping[str, float | None]
"""What one metric gives; ``None`` where there was nothing to compute it from."""


@dataclass(frozen=True, slots=True)
class DebateBatch:
    """Debates of a training step or of an evaluation, scored and, where the answer is known, graded.

    ``grades[d]`` has the grade of every turn of debate d, or is ``None``. ``answers``, such as ``train_gsm8k``, begins the
    names of metrics of answers. ``step`` is everything else that happened in the step; ``None`` in an evaluation.
    """

    scored: Sequence[Scored]
    grades: Sequence[Sequence[Grade] | None] = ()
    answers: str = ""
    step: Step | None = None

    @staticmethod
    def of(scored: Sequence[Scored], task: Task, answers: str, step: Step | None = None) -> DebateBatch:
        """Grade all turns. Comparing answers may take long."""
        grades = known_grades([one.debate for one in scored], task.grade) if task.known else ()
        return DebateBatch(scored, grades, answers, step)

    @property
    def graded(self) -> list[tuple[Scored, Sequence[Grade]]]:
        """The debates whose answer is known, with the grade of every turn."""
        return [(scored, grades) for scored, grades in zip(self.scored, self.grades, strict=False) if grades is not None]


Metric = Callable[[DebateBatch], Numbers]


def cost(batch: DebateBatch) -> Numbers:
    """Debates, tokens and seconds of a training step."""
    step = batch.step
    if step is None:
        return {}
    debates, seconds = step.played.debates, step.played.seconds
    sampled = sum(len(turn.tokens.ids_T) for debate in debates for turn in debate.turns if turn.tokens)
    trained = sum(map(len, step.data))
    return {
        "debates/done": len(debates),
        "debates/dropped": len(step.played.dropped),
        "debates/without_signal": step.without_signal / max(1, len(debates)),
        "tokens/sampled": sampled,
        "tokens/trained": trained,
        "tokens/trained_per_s": trained / max(step.trained_s, 1e-9) if step.data else 0.0,
        "time/train_s": step.trained_s,
        "time/sample_s": seconds or None,  # without it, the debates were sampled before the run was interrupted
        "tokens/sampled_per_s": sampled / seconds if seconds else None,
    }


def update(batch: DebateBatch) -> Metrics:
    """The update of a training step, and what the engine says about it."""
    if batch.step is None:
        return {}
    rates, stats = {"lr": batch.step.lr, **batch.step.in_force}, batch.step.stats
    if stats is None:
        return rates
    return rates | {"optim/loss": stats.loss, "optim/grad_norm": stats.grad_norm} | dict(stats.metrics)


def form(batch: DebateBatch) -> Metrics:
    """Whether replies can be read and votes are cast: what a weak model learns first."""
    counts = total(map(form_counts, batch.scored))
    cases = {"votes/agreement_pairs": "votes/agreement", "votes/due_turns": "votes/due_turns_with_vote"}
    cases |= {"replies/read": "replies/readable"}
    return {name: counts.get(share, (0.0, 0.0))[1] for name, share in cases.items()} | shares(counts)


def debate_metrics(batch: DebateBatch) -> Numbers:
    """Votes, rewards and lengths. An episode is one agent's part in one debate; means are over what the name says."""
    scored = batch.scored
    if not scored:
        return {}
    reward = scored[0].streams[0].name
    returns = [_agent_returns(one) for one in scored]
    turns = [turn for one in scored for turn in one.debate.turns]
    tokens = [turn.tokens for turn in turns if turn.tokens]
    malformed = [one.tally.counts.malformed for one in scored]
    # Pairwise metrics are per agent and then averaged, so a debate counts as often as it has agents.
    agents = [one.debate.agents for one in scored]
    votes = np.array([len(one.tally.votes) for one in scored])
    of_judge = [len(one.tally.verdict) for one in scored if one.debate.verdict]
    counted = [(one.debate.agents, one.tally.all_votes, one.tally.judge_weight) for one in scored]
    scores = [SCORES[reward](*one) for one in counted] if reward in SCORES else []
    agreed = sum(bool(one.debate.turns) and consensus_reached(one.debate) for one in scored)  # by its last turn
    return {
        "pairwise_reward": _mean([value for of_debate in scores for value in of_debate]),
        "pairwise_reward_is_win_rate": reward == "win_rate",
        "pairwise_reward_is_win_minus_loss": reward == "win_minus_loss",
        "pairwise_total_votes": np.average(votes, weights=agents),
        "pairwise_malformed": np.average(malformed, weights=agents),
        "pairwise_any_votes": np.average(votes > 0, weights=agents),
        "consensus_reached": agreed / len(turns) if turns else None,
        "round": _mean([turn.round + 1 for turn in turns]),
        "parse_error": _mean([turn.parsed.error is not None for turn in turns]),
        "env/all/total_episodes": sum(agents),
        "env/all/total_turns": len(turns),
        "env/all/turns_per_episode": len(turns) / sum(agents),
        "env/all/ac_tokens_per_turn": _mean([len(one.ids_T) for one in tokens]),
        "env/all/ob_tokens_per_turn": _mean([len(one.prompt_T) for one in tokens]),
        "env/all/reward/total": _mean([value for of_debate in returns for value in of_debate]),
        "env/all/by_group/frac_mixed": _mean([len(set(of_debate)) > 1 for of_debate in returns]),
        "v2/total_votes": votes.sum(),
        "v2/judge_votes": sum(of_judge) if of_judge else None,
        "v2/missing_comparisons": sum(one.tally.counts.missing for one in scored),
        "v2/comparison_lines_invalid": sum(malformed),
    }


def rewards(batch: DebateBatch) -> Numbers:
    """Mean and standard deviation of each stream, and its mean for each seat, over what has a signal."""
    by_stream: dict[str, list[float]] = defaultdict(list)
    by_seat: dict[str, list[float]] = defaultdict(list)
    for scored in batch.scored:
        for stream in scored.streams:
            for unit, value in enumerate(stream.values):
                if value is not None:
                    by_stream[stream.name].append(value)
                    by_seat[f"reward/{stream.name}/seat/{scored.agent_of(stream, unit)}"].append(value)
    metrics = {f"reward/{name}/mean": _mean(values) for name, values in sorted(by_stream.items())}
    metrics |= {f"reward/{name}/std": float(np.std(values)) for name, values in sorted(by_stream.items())}
    return metrics | {name: _mean(values) for name, values in sorted(by_seat.items())}


def accuracy(batch: DebateBatch) -> Numbers:
    """Accuracy of the agents' last answers, opponents' left out, and how often all of these are the same one."""
    final = [
        [grade for seat, grade in enumerate(final_grades(one.debate, grades)) if seat not in one.debate.opponents]
        for one, grades in batch.graded
    ]
    alike = [len({grade.answer for grade in answers}) == 1 and answers[0].answer is not None for answers in final]
    return {**answer_metrics(final, batch.answers), "debates/same_answer": _mean(alike)}


def vote_quality(batch: DebateBatch) -> Metrics:
    """Whether votes find the truth, whether debate moves towards it, and what votes favour besides."""
    bias = shares(total(map(bias_counts, batch.scored)))
    if not batch.graded:
        return bias
    counts = total(vote_counts(scored, grades) for scored, grades in batch.graded)
    return {"votes/between_right_and_wrong": counts.get("votes/accuracy", (0.0, 0.0))[1]} | shares(counts) | bias


METRICS: tuple[Metric, ...] = (cost, update, form, debate_metrics, rewards, accuracy, vote_quality)


def measure(batch: DebateBatch, own: Mapping[str, Metric] | None = None) -> Metrics:
    """Everything measured about debates. ``own`` are somebody's own metrics, by the name that messages give them."""
    built_in = [item for metric in METRICS for item in metric(batch).items()]
    metrics: Metrics = {name: float(value) for name, value in built_in if value is not None}
    for path, metric in (own or {}).items():
        own_numbers = call_own(metric, path, "metrics", batch)
        try:
            numbers = {name: float(value) for name, value in own_numbers.items() if value is not None}
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            shape = "give a dict, such as {'votes': 3.0}"
            raise UserError(f"metrics: {path}: gave no numbers by name ({error}); {shape}") from None
        if wrong := [name for name in numbers if not isinstance(name, str) or not name]:
            raise UserError(f"metrics: {path}: {wrong[0]!r} is no name; give a text for each number")
        if taken := [name for name in numbers if name in metrics or name in ("phase", "step", "warm", "alarms")]:
            raise UserError(f"metrics: {path}: another metric is called {taken[0]!r}; give it another name")
        metrics |= numbers
    return metrics


def answer_metrics(grades: Sequence[Sequence[Grade]], prefix: str) -> Metrics:
    """Accuracy of k answers to each question, by name ``prefix/…``, such as ``train_gsm8k`` (SPEC 8.3).

    Where questions have different numbers of answers, those of each number k have their own ``pass@k`` and others.
    ``cons@k`` takes the most frequent answer; by ``strict_cons@k``, as published, more than half must be right. What could
    not be graded in time counts as not given, and is counted apart.
    """
    every = [answer for answers in grades for answer in answers]
    graded = [answer for answer in every if not answer.timed_out]
    metrics = {
        "answers": len(graded) or None,
        "timed_out": len(every) - len(graded) or None,
        "format": _mean([answer.format for answer in graded]),
        "correct": _mean([answer.correct for answer in graded]),
    }
    for k in sorted({*map(len, grades)}):
        of_k = [answers for answers in grades if len(answers) == k]
        for name, of in AT_K.items():
            values = [value for answers in of_k if (value := of(answers)) is not None]
            metrics[f"{name}@{k}"] = _mean(values) if graded else None
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items() if value is not None}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _agent_returns(scored: Scored) -> list[float]:
    """Each agent's total: the pairwise return itself, or the weighted sum of its turns over all streams."""
    totals = [0.0] * scored.debate.agents
    for stream in scored.streams:
        for unit, value in enumerate(stream.values):
            totals[scored.agent_of(stream, unit)] += stream.weight * (value or 0.0)
    return [value for seat, value in enumerate(totals) if seat not in scored.debate.opponents]

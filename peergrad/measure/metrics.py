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
from peergrad.debate.imports import call_own
from peergrad.debate.protocols import consensus_reached
from peergrad.learn.train import Step
from peergrad.measure.counts import form_counts, shares, total, vote_counts
from peergrad.measure.grades import final_grades, known_grades, share_right, vote_is_right
from peergrad.reward.pairwise import SCORES
from peergrad.reward.rewards import Scored
from peergrad.tasks.base import Grade, Task

Metrics = dict[str, float]


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


Metric = Callable[[DebateBatch], Mapping[str, float | None]]


def cost(batch: DebateBatch) -> Metrics:
    """Debates, tokens and seconds of a training step."""
    step = batch.step
    if step is None:
        return {}
    done = len(step.played.debates)
    sampled = sum(len(turn.tokens.ids_T) for debate in step.played.debates for turn in debate.turns if turn.tokens)
    trained = sum(map(len, step.data))
    metrics = {
        "debates/done": float(done),
        "debates/dropped": float(len(step.played.dropped)),
        "debates/without_signal": step.without_signal / max(1, done),
        "tokens/sampled": float(sampled),
        "tokens/trained": float(trained),
        "tokens/trained_per_s": trained / max(step.trained_s, 1e-9) if step.data else 0.0,
        "time/train_s": step.trained_s,
    }
    if step.played.seconds:  # else the debates were sampled before the run was interrupted
        metrics |= {"time/sample_s": step.played.seconds, "tokens/sampled_per_s": sampled / step.played.seconds}
    return metrics


def update(batch: DebateBatch) -> Metrics:
    """The update of a training step, and what the engine says about it."""
    if batch.step is None:
        return {}
    lr, stats = {"lr": batch.step.lr}, batch.step.stats
    return lr if stats is None else lr | {"optim/loss": stats.loss, "optim/grad_norm": stats.grad_norm} | dict(stats.metrics)


def form(batch: DebateBatch) -> Metrics:
    """Whether replies can be read and votes are cast: what a weak model learns first."""
    counts = total(map(form_counts, batch.scored))
    return {"votes/agreement_pairs": counts.get("votes/agreement", (0.0, 0.0))[1]} | shares(counts)


def debate_metrics(batch: DebateBatch) -> Metrics:
    """Votes, rewards and lengths. An episode is one agent's part in one debate; means are over what the name says."""
    if not batch.scored:
        return {}
    reward = batch.scored[0].streams[0].name
    returns = [_agent_returns(scored) for scored in batch.scored]
    turns = [turn for scored in batch.scored for turn in scored.debate.turns]
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
        agreed = sum(bool(one.debate.turns) and consensus_reached(one.debate) for one in batch.scored)  # by its last turn
        metrics |= {
            "consensus_reached": agreed / len(turns),
            "round": float(np.mean([turn.round + 1 for turn in turns])),
            "parse_error": float(np.mean([turn.parsed.error is not None for turn in turns])),
        }
    if reward in SCORES:
        scores = [SCORES[reward](scored.debate.agents, scored.tally.votes) for scored in batch.scored]
        metrics["pairwise_reward"] = float(np.mean(np.concatenate(scores)))  # without step rewards
    if sampled := [turn.tokens for turn in turns if turn.tokens]:
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
                if value is not None:
                    by_stream[stream.name].append(value)
                    by_seat[f"reward/{stream.name}/seat/{scored.agent_of(stream, unit)}"].append(value)
    metrics = {f"reward/{name}/mean": float(np.mean(values)) for name, values in sorted(by_stream.items())}
    metrics |= {f"reward/{name}/std": float(np.std(values)) for name, values in sorted(by_stream.items())}
    return metrics | {name: float(np.mean(values)) for name, values in sorted(by_seat.items())}


def accuracy(batch: DebateBatch) -> Metrics:
    """Accuracy of the agents' last answers, and how often all agents of a debate end on the same one."""
    final = [final_grades(scored.debate, grades) for scored, grades in batch.graded]
    if not final:
        return {}
    alike = [len({grade.answer for grade in answers}) == 1 and answers[0].answer is not None for answers in final]
    return answer_metrics(final, batch.answers) | {"debates/same_answer": float(np.mean(alike))}


def vote_quality(batch: DebateBatch) -> Metrics:
    """Whether votes find the truth, whether debate moves towards it, and what votes favour besides."""
    if not batch.graded:
        return {}
    counts = total(vote_counts(scored, grades) for scored, grades in batch.graded)
    return {"votes/between_right_and_wrong": counts.get("votes/accuracy", (0.0, 0.0))[1]} | shares(counts)


METRICS: tuple[Metric, ...] = (cost, update, form, debate_metrics, rewards, accuracy, vote_quality)


def measure(batch: DebateBatch, own: Mapping[str, Metric] | None = None) -> Metrics:
    """Everything measured about debates. ``own`` are somebody's own metrics, by the name that messages give them."""
    metrics: Metrics = {name: value for metric in METRICS for name, value in metric(batch).items() if value is not None}
    for path, metric in (own or {}).items():
        numbers = _own(path, metric, batch)
        if taken := [name for name in numbers if name in metrics or name in ("phase", "step", "warm", "alarms")]:
            raise UserError(f"metrics: {path}: another metric is called {taken[0]!r}; give it another name")
        metrics |= numbers
    return metrics


def answer_metrics(grades: Sequence[Sequence[Grade]], prefix: str) -> Metrics:
    """Accuracy of k answers to each question, by name ``prefix/…``, such as ``train_gsm8k`` (SPEC 8.3).

    ``cons@k`` takes the most frequent answer. What could not be graded in time counts as not given, and is counted apart.
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
        metrics |= {
            f"{prefix}/format": float(np.mean([answer.format for answer in graded])),
            f"{prefix}/correct": float(np.mean([answer.correct for answer in graded])),
            f"{prefix}/pass@{k}": float(np.mean([any(answer.correct for answer in answers) for answers in grades])),
            f"{prefix}/avg@{k}": float(np.mean([share for one in grades if (share := share_right(one)) is not None])),
            f"{prefix}/cons@{k}": float(np.mean([vote_is_right(answers) for answers in grades])),
        }
    return metrics


def _agent_returns(scored: Scored) -> list[float]:
    """Each agent's total: the pairwise return itself, or the weighted sum of its turns over all streams."""
    totals = [0.0] * scored.debate.agents
    for stream in scored.streams:
        for unit, value in enumerate(stream.values):
            totals[scored.agent_of(stream, unit)] += stream.weight * (value or 0.0)
    return totals


def _own(path: str, metric: Metric, batch: DebateBatch) -> Metrics:
    """What somebody's own metric gives, if it is numbers by name. ``None`` is no number, and left out."""
    numbers = call_own(metric, path, "metrics", batch)
    try:
        named = {name: float(value) for name, value in numbers.items() if value is not None}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"metrics: {path}: gave no numbers by name ({error}); give a dict, such as {{'votes': 3.0}}"
        ) from None
    if wrong := [name for name in named if not isinstance(name, str) or not name]:
        raise UserError(f"metrics: {path}: {wrong[0]!r} is no name; give a text for each number")
    return named

"""Which answers are right (SPEC 8.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from peergrad.measure.batch import DebateBatch, Metrics
from peergrad.measure.grades import final_grades
from peergrad.tasks.base import Grade


def accuracy(batch: DebateBatch) -> Metrics:
    """Accuracy of the agents' last answers, and how often all agents of a debate end on the same one."""
    final = [final_grades(scored.debate, grades) for scored, grades in batch.graded]
    if not final:
        return {}
    alike = [len({grade.answer for grade in answers}) == 1 and answers[0].answer is not None for answers in final]
    return answer_metrics(final, batch.answers) | {"debates/same_answer": float(np.mean(alike))}


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

"""The evaluation during training, on held-out questions: the policy alone, and in debate with itself (SPEC 9.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Question
from peergrad.measure.grades import truth_of, turn_grades
from peergrad.measure.metrics import DebateBatch, Metric, Metrics, answer_metrics, measure
from peergrad.reward.rewards import RewardRules, score
from peergrad.tasks.base import Task


async def direct(sampler: Sampler, task: Task, questions: Sequence[Question], debate: BaseProtocol) -> Metrics:
    """One answer to each question, without the debate that it would get, the likeliest words taken."""
    alone = Direct(max_tokens=debate.max_tokens, prompts=debate.prompts)
    played = await _play(alone, questions, sampler, "direct/")
    name = f"eval/direct/{task.name}"
    grades = await asyncio.to_thread(turn_grades, played.debates, task.grade)
    return answer_metrics(grades, name) | {f"{name}/dropped": float(len(played.dropped))}


async def debated(
    sampler: Sampler,
    task: Task,
    questions: Sequence[Question],
    protocol: BaseProtocol,
    rules: RewardRules,
    prefix: str,
    own: Mapping[str, Metric],
) -> tuple[Metrics, Played]:
    """The policy in debate with itself about each question. ``own`` are somebody's own metrics."""
    played = await _play(protocol, questions, sampler, prefix)
    truth = truth_of(task)
    name = f"eval/debate/{task.name}"

    def measured() -> Metrics:
        scored = [score(debate, rules, truth(debate)) for debate in played.debates]
        return measure(DebateBatch.of(scored, task, name), own) | {"dropped": float(len(played.dropped))}

    metrics = await asyncio.to_thread(measured)
    return {key if key.startswith("eval/") else f"{name}/{key}": value for key, value in metrics.items()}, played


async def _play(protocol: BaseProtocol, questions: Sequence[Question], sampler: Sampler, prefix: str) -> Played:
    return (await play_all(protocol, questions, sampler, prefix=prefix)).usable("questions of the evaluation")

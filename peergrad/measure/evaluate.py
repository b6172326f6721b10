"""Asking the policy what it can do: alone, and in debate with itself (SPEC 9.1)."""

from __future__ import annotations

from collections.abc import Sequence

from peergrad.debate import prompts
from peergrad.debate.batch import Batcher
from peergrad.debate.errors import EngineError
from peergrad.debate.play import Played, play_all
from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Ask, Message, Protocol, Question
from peergrad.measure.metrics import Metrics, answer_metrics
from peergrad.measure.steps import answers, form
from peergrad.reward.rewards import RewardRules, score
from peergrad.tasks.base import Task


async def direct(sampler: Sampler, task: Task, questions: Sequence[Question], max_tokens: int) -> Metrics:
    """One answer to each question, without debate, the likeliest words taken."""
    asks = [
        Ask(f"direct/{question.id}", 0, 0, 0, (Message("user", prompts.question(question)),), (), max_tokens, 0.0)
        for question in questions
    ]
    async with Batcher(sampler, max_calls=1, deadline_s=3600) as batcher:
        replies = await batcher.sample(asks)
    failed = [reply for reply in replies if isinstance(reply, EngineError)]
    if failed and len(failed) == len(replies):
        raise EngineError(f"no question of the evaluation was answered; the first because: {failed[0]}")
    grades = [
        [task.grade(question, reply.text)]
        for question, reply in zip(questions, replies, strict=True)
        if not isinstance(reply, EngineError)
    ]
    name = f"eval/direct/{task.name}"
    return answer_metrics(grades, name) | {f"{name}/dropped": float(len(failed))}


async def debated(
    sampler: Sampler, task: Task, questions: Sequence[Question], protocol: Protocol, rules: RewardRules, prefix: str
) -> tuple[Metrics, Played]:
    """The policy in debate with itself about each question."""
    async with Batcher(sampler, max_calls=1, deadline_s=3600) as batcher:
        played = await play_all(protocol, questions, batcher, prefix=prefix)
    batch = [score(debate, rules) for debate in played.debates]
    name = f"eval/debate/{task.name}"
    measured = form(batch) | answers(batch, task, name) | {"dropped": float(len(played.dropped))}
    return {key if key.startswith("eval/") else f"{name}/{key}": value for key, value in measured.items()}, played

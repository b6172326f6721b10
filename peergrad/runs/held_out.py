"""The evaluation inside a training run (SPEC 9.1): the policy on held-out questions, alone and in debate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Batcher, Sampler, Seats
from peergrad.engines.registry import engine_of
from peergrad.measure.counts import turn_grades
from peergrad.measure.metrics import DebateBatch, Metrics, answer_metrics, measure
from peergrad.measure.outcome import result, seat_outcome
from peergrad.reward.rewards import score
from peergrad.runs.folder import Progress, Run
from peergrad.runs.plan import Plan
from peergrad.runs.watch import Watcher
from peergrad.tasks.base import truth_of


async def evaluate(plan: Plan, run: Run, at: Progress, policy: Sampler, base: Sampler | None, watch: Watcher) -> Metrics:
    """Have the policy answer alone, the likeliest words taken, and debate: with itself, or in each seat with ``base``."""
    metrics, batching = Metrics(), engine_of(plan.config.engine).batching(plan.config.engine)
    batching["replied"] = watch.replied
    batching["deadline_s"] = max(3600.0, batching["deadline_s"])  # all held-out questions may be one call
    async with Batcher(policy, **batching) as sampler:
        if plan.held_out.known:
            metrics |= await _alone(plan, sampler, "direct")
        if plan.held_out.known and plan.config.held_out.eval_samples:
            metrics |= await _alone(plan, sampler, "sampled")
        if plan.eval_debates and base:
            async with Batcher(base, **batching) as others:
                metrics |= await _role_averaged(plan, run, at, sampler, others)
        elif plan.eval_debates:
            metrics |= await _debates(plan, run, at, sampler)
    return metrics


async def _alone(plan: Plan, sampler: Sampler, kind: Literal["direct", "sampled"]) -> Metrics:
    """Plain answers: one each by the likeliest words, or several each at the temperature of the debates."""
    debate = plan.config.debate
    protocol = Direct(max_tokens=debate.max_tokens, prompts=plan.protocol.prompts)
    if kind == "sampled":
        protocol = replace(protocol, agents=plan.config.held_out.eval_samples, temperature=debate.temperature)
    played = await _play(plan, protocol, len(plan.held_out), sampler, f"{kind}/")
    grades = await asyncio.to_thread(turn_grades, played.debates, plan.held_out.grade)
    name = f"eval/{kind}/{plan.held_out.name}"
    return answer_metrics(grades, name) | {f"{name}/dropped": float(len(played.dropped))}


async def _debates(plan: Plan, run: Run, at: Progress, sampler: Sampler) -> Metrics:
    played = await _play(plan, plan.protocol, plan.eval_debates, sampler, f"eval-{at.step}/")
    run.save_debates(at.eval_name, played)
    truth, name = truth_of(plan.held_out.grade), f"eval/debate/{plan.held_out.name}"

    def measured() -> Metrics:
        scored = [score(debate, plan.config.learn.reward_at(at.step), truth(debate)) for debate in played.debates]
        return measure(DebateBatch.of(scored, plan.held_out, name), plan.config.keep.own[0])

    metrics = await asyncio.to_thread(measured) | {"dropped": float(len(played.dropped))}
    return {key if key.startswith("eval/") else f"{name}/{key}": value for key, value in metrics.items()}


async def _role_averaged(plan: Plan, run: Run, at: Progress, policy: Sampler, base: Sampler) -> Metrics:
    """The policy in each seat in turn, with its base model in the others."""
    task, protocol = plan.held_out, plan.protocol
    by_seat = [
        await _play(plan, protocol, plan.eval_debates, Seats({seat: policy}, base), f"eval-{at.step}-seat-{seat}/")
        for seat in range(protocol.agents)
    ]
    dropped = {name: why for played in by_seat for name, why in played.dropped.items()}
    run.save_debates(at.eval_name, Played(tuple(debate for played in by_seat for debate in played.debates), dropped))
    found = [{debate.question.id: debate for debate in played.debates} for played in by_seat]
    asked = [question for question in map(task.__getitem__, range(plan.eval_debates)) if question.known or not task.known]
    ids = [question.id for question in asked if all(question.id in debates for debates in found)]
    debates, grade = [[one[name] for name in ids] for one in found], task.grade if task.known else None
    outcome = await asyncio.to_thread(seat_outcome, ids, debates, grade)
    measured = result(outcome, task.name, dict.fromkeys(ids, ""))
    name = f"eval/role-averaged/{task.name}"
    shares = {f"{name}/{key.removeprefix('role-averaged/')}": share for key, (share, *_) in measured["shares"].items()}
    counts = {f"{name}/questions": float(len(ids)), f"{name}/dropped": float(len(dropped))}
    return measured["metrics"] | shares | counts


async def _play(plan: Plan, protocol: BaseProtocol, count: int, sampler: Sampler, prefix: str) -> Played:
    questions = [plan.held_out[index] for index in range(count)]
    return (await play_all(protocol, questions, sampler, prefix=prefix)).usable("questions of the evaluation")

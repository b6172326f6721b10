"""A training run from its settings to its folder: start or resume, self-play, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peergrad.config import ApiConfig, TrainConfig
from peergrad.debate.play import Played
from peergrad.debate.sampler import Sampler
from peergrad.debate.settings import flat
from peergrad.engines.base import Setup
from peergrad.engines.registry import engine_of, open_trainer
from peergrad.learn.curriculum import Outcomes, curriculum_metrics, stage_of
from peergrad.learn.losses import LossName
from peergrad.learn.train import Step, Stopped, due, self_play, train, went_too_far
from peergrad.learn.trainer import StepStats, Trainer, Updates, retried
from peergrad.measure.alarms import Alarm, alarms, fallen_answers
from peergrad.measure.counts import share_of
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.runs import held_out
from peergrad.runs.folder import Progress, Run, metrics_line
from peergrad.runs.lessons import own_lessons, warm_start
from peergrad.runs.models import ModelPool, load_policy
from peergrad.runs.opponents import Opponents
from peergrad.runs.plan import Plan, plan_run, start_of
from peergrad.runs.skipped import save_skipped
from peergrad.runs.watch import Loggers, Printing, Watcher
from peergrad.tasks.base import truth_of

_BAD_IN_A_ROW = "optim/bad_in_a_row"


async def train_run(
    config: TrainConfig,
    watch: Watcher | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    load: Callable[[Setup], Trainer] = open_trainer,
) -> Run:
    """Train as the settings say, in their folder; a run that was interrupted is resumed.

    ``watch`` is told how it goes; unset, lines on stderr say so (``Watcher()`` is silent). ``stop`` is asked after every
    checkpoint; if it says so, ``Stopped`` is raised there.

    Example: ``asyncio.run(train_run(preset("demo")))``
    """
    watch = watch or Printing(config.learn.steps)
    plan = plan_run(config, watch.warn)
    for note in plan.notes:
        watch.warn(note)
    run, facts = Run(config.keep.folder, watch.warn), plan.facts
    with run.opened(config, facts, plan.fixed):
        newest = run.newest()
        if newest:
            run.check_metrics(*newest)
        if newest and plan.learns_from_own and not newest[0].step:
            plan = replace(plan, lessons=own_lessons(plan, run))
            # By whose weights they are sampled again.
            newest = newest if plan.lessons else (Progress(), run.folder(Progress()))
        if newest and newest[0] >= plan.end and not evaluation_due(plan, run, newest[0]):
            done = f"{newest[0].step} steps" if plan.end.step else f"{plan.end.warm} updates of the warm start"
            # Another number of steps would have been another run from the start.
            on = "--model with it trains on in another folder" if "steps" in plan.fixed else "Raise steps to train on"
            watch.say(f"{run.path} is finished: {done}. {on}, or give another folder to begin anew")
            return run
        # Nothing is written before it is known that there is such a model.
        checkpoint = newest[1] if newest else None
        start, about_start = start_of(config, run, checkpoint)
        models = (start, *(plan.opponents.models.values() if plan.opponents else ()))
        trainer = await load_policy(config, start, load, watch.say, checkpoint, models)
        loggers = Loggers(config.keep.log_to, run.path, flat(config), watch.warn)
        run.begin(config, facts | about_start)
        try:
            async with contextlib.AsyncExitStack() as opened:
                opponents = None
                if plan.asks_others:
                    pool = ModelPool(config.engine, ApiConfig(), config.keep.seed, watch.say, expected=models)
                    pool = await opened.enter_async_context(pool)
                    opponents = Opponents(plan.opponents, start.base, run, trainer, pool)
                await Training(plan, run, trainer, opponents, watch, loggers, stop).train(newest)
        finally:
            loggers.close()
            await trainer.close(failed=sys.exc_info()[0] is not None)
    return run


def evaluation_due(plan: Plan, run: Run, at: Progress) -> bool:
    """Whether an evaluation belongs here and has not been made: before anything and at the end; with ``eval_every`` also
    after the warm start, whose part in what was learned it shows, and every so many steps.
    """
    every = plan.config.keep.eval_every
    belongs = at in (Progress(), plan.end) or (every and at == plan.warmed) or (at.step > 0 and due(at.step - 1, every))
    if not plan.config.held_out.eval_questions or not belongs:
        return False
    return not any(line["phase"] == "eval" and Progress(line["step"], line["warm"]) == at for line in run.metrics())


@dataclass
class Training:
    """One run under way."""

    plan: Plan
    run: Run
    trainer: Trainer
    opponents: Opponents | None
    watch: Watcher
    loggers: Loggers
    stop: Callable[[], bool]
    updates: Updates = field(default_factory=Updates)
    """So far, those before the run was resumed included."""
    outcomes: list[Outcomes] = field(default_factory=list[Outcomes])
    """With a curriculum: the questions of each step so far, and what came of them."""

    @property
    def config(self) -> TrainConfig:
        return self.plan.config

    async def train(self, newest: tuple[Progress, Path] | None) -> None:
        """Train from the newest checkpoint, if there is one."""
        at, checkpoint = newest or (Progress(), None)
        if checkpoint:
            self.watch.say(f"resuming from {at.name} of {self.run.path}")
        self.run.forget_after(at, self.trainer.forget, self.config.learn.max_staleness if checkpoint else 0)
        if not checkpoint:
            await self.save(at)
        self.updates = Updates.of(self.run.metrics())
        self.watch.updates(self.updates)
        await self._evaluate(at)
        if at.step == 0 and self.config.warm.wanted:
            at = await warm_start(self, at)
            await self._evaluate(at)
        if at.step < self.config.learn.steps:
            await self._self_play(at)

    async def _self_play(self, at: Progress) -> None:
        """The loop itself, and around it what is saved of every step."""
        learn = self.config.learn
        self.outcomes = self.run.outcomes(at.step) if self.plan.has_curriculum else []
        history = [line for line in self.run.metrics() if line["phase"] == "train"]
        truth = truth_of(self.plan.task.grade)
        halved = sum(went_too_far(learn, line) for line in history)
        bad = int(min(history[-1].get(_BAD_IN_A_ROW) or 0, learn.stop_after_bad)) if history else 0
        rollout = self._rollout(at.step)
        loop = train(self.trainer, rollout, learn, first=at.step, halved=halved, bad_in_a_row=bad, truth=truth)
        async with contextlib.aclosing(loop) as steps:
            async for step in steps:
                at = Progress(step.index + 1)
                if step.stats:
                    await self.count_updates(at, step.stats, learn.loss, step.lr)
                # Comparing answers may take long, and signals must be heard.
                metrics, sounding = await asyncio.to_thread(self._measure, at, step, history)
                if self.plan.has_curriculum:
                    self.run.log_outcomes(at, self.outcomes[-1])
                self.log(at, "train", metrics)
                for alarm in sounding:
                    self.watch.alarm(alarm)
                await self.save(at)
                await self._evaluate(at)
                self._heed(sounding, at)

    def _heed(self, sounding: list[Alarm], at: Progress) -> None:
        if sounding and self.config.keep.stop_on_alarm:
            raise Stopped(f"an alarm sounded after step {at.step}. {sounding[0]}")

    def _measure(self, at: Progress, step: Step, history: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Alarm]]:
        """What a step was like, and what is wrong. The history gets its line as a resumed run would read it."""
        own_metrics, own_alarms = self.config.keep.own
        rules, tasks, ahead = self.config.curriculum, self.plan.tasks, self.config.learn.max_staleness
        task = self.plan.task
        if rules.curriculum == "in order":
            task = tasks[stage_of(rules, len(tasks), step.index, self.outcomes, ahead)[0]]
        batch = DebateBatch.of(step.scored, task, f"train_{task.name}", step)
        metrics: dict[str, Any] = dict(measure(batch, own_metrics))
        if self.plan.has_curriculum:
            grades = batch.grades or [None] * len(batch.scored)
            shares = {
                scored.debate.question.id: share_of(scored, known)
                for scored, known in zip(batch.scored, grades, strict=True)
            }
            self.outcomes.append({q.id: shares.get(q.id) for q in self.plan.batch(step.index, self.outcomes)})
            metrics |= curriculum_metrics(rules, [task.name for task in tasks], step.index, self.outcomes, ahead)
        if step.bad_in_a_row:
            metrics[_BAD_IN_A_ROW] = float(step.bad_in_a_row)
        history.append(metrics_line(at, "train", metrics))
        sounding = alarms(history, step, own_alarms)
        metrics["alarms"] = history[-1]["alarms"] = [alarm.name for alarm in sounding]
        return metrics, sounding

    def _rollout(self, resumed_at: int) -> Callable[[int, Sampler], Any]:
        """Self-play whose debates are saved before they are learned from, and used again if the step is repeated."""
        ahead = self.config.learn.max_staleness
        batching = engine_of(self.config.engine).batching(self.config.engine)
        batching["replied"] = self.watch.replied
        play = self_play(
            self.plan.protocol,
            lambda step: self.plan.batch(step, self.outcomes),
            done=self.watch.debate,
            judged=self.config.learn.judged,
            **batching,
        )

        async def rollout(index: int, sampler: Sampler) -> Played:
            at = Progress(index + 1)
            if saved := self.run.saved_debates(at.name):
                return saved
            self.watch.begin("sampling", self.config.learn.batch, at)
            if self.opponents and (asked_after := max(0, index - ahead)) < resumed_at:
                # Sampled ahead before the run was interrupted: by the policy of then.
                sampler = await self.opponents.policy_after(asked_after, otherwise=sampler)
            if self.opponents:
                sampler = await self.opponents.seated(index, sampler, judged=self.config.learn.judged(index))
            played = await play(index, sampler)
            self.run.save_debates(at.name, played)
            self.watch.begin("training", 0, at)
            return played

        return rollout

    async def _evaluate(self, at: Progress) -> None:
        """Evaluate the policy on held-out questions, if that is due."""
        if not evaluation_due(self.plan, self.run, at):
            return
        self.watch.begin("evaluating", self.plan.eval_debates, at)
        started = time.monotonic()
        role_averaged = self.config.held_out.eval_mode == "role-averaged"
        base = await self.opponents.base() if self.opponents and role_averaged else None
        metrics = await held_out.evaluate(self.plan, self.run, at, await self.trainer.sampler(), base, self.watch)
        evaluations = [line for line in self.run.metrics() if line["phase"] == "eval"]
        sounding = [alarm] if (alarm := fallen_answers([*evaluations, metrics])) else []
        named = {"alarms": [alarm.name for alarm in sounding]}
        self.log(at, "eval", metrics | named | {"time/eval_s": time.monotonic() - started})
        for alarm in sounding:
            self.watch.alarm(alarm)
        self._heed(sounding, at)

    async def count_updates(self, at: Progress, stats: StepStats, loss: LossName, lr: float) -> None:
        """Count the updates of a step, which are ``joined``, report those that were lost, and save what reproduces them."""
        lost_before, now = self.updates.skipped, Updates.of([{"phase": "train"} | dict(stats.metrics)])
        self.updates += now
        self.watch.updates(self.updates)
        step = f"step {at.step}" if at.step else f"warm start {at.warm}"
        for place, fault in enumerate(stats.faults, 1):
            sentence = f"{step}: update skipped: {fault.why} ({lost_before + place:,} of {self.updates.total:,} so far)"
            if fault.data:
                about = {"at": at.name, "why": fault.why, "loss": loss, "lr": lr}
                # Packing may take long, and signals must be heard.
                saved = await asyncio.to_thread(save_skipped, self.run, at, place, fault.data, about)
                sentence += f"; {saved}" if isinstance(saved, str) else f"; what reproduces it is in {saved}"
            self.watch.warn(sentence)
        if now.retried:
            self.watch.say(f"{step}: {retried(now.retried)} ({self.updates.retried:,} so far)")

    async def save(self, at: Progress) -> None:
        self.watch.begin("saving", 0, at)
        await self.run.checkpoint(at, self.trainer.save)
        # The one of this step, and that of the step before, should this be damaged; before them, older policies that answer.
        self.run.thin_checkpoints(self.config.keep.save_every, self.trainer.forget, 2 + self.plan.older_policies)
        if self.stop():
            raise Stopped(f"stopped after {at.name}, as asked")

    def log(self, at: Progress, phase: str, metrics: Mapping[str, Any]) -> None:
        self.run.log(at, phase, metrics)
        self.watch.line(phase, at, metrics)
        self.loggers.log(at.step, {name: value for name, value in metrics.items() if isinstance(value, float)})

"""A training run from its settings to its folder: start or resume, warm start, self-play, evaluation, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.config import ApiConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Batcher, Sampler, Seats
from peergrad.debate.types import Debate
from peergrad.engines.base import Setup
from peergrad.engines.registry import engine_of, open_trainer
from peergrad.learn.curriculum import Outcomes, curriculum_metrics, stage_of
from peergrad.learn.losses import LossName
from peergrad.learn.train import Step, Stopped, due, self_play, train, went_too_far
from peergrad.learn.trainer import RETRIED, StepStats, Trainer, joined
from peergrad.learn.warm import Lesson, lesson_batch, lesson_data, updates_per_epoch
from peergrad.measure.alarms import Alarm, alarms
from peergrad.measure.counts import share_of, truth_of, turn_grades
from peergrad.measure.history import Updates, retried
from peergrad.measure.metrics import DebateBatch, Metrics, answer_metrics, measure
from peergrad.measure.outcome import result, seat_outcome
from peergrad.reward.rewards import score
from peergrad.runs.folder import Loggers, Progress, Run, metrics_line, open_loggers
from peergrad.runs.lessons import OWN_DEBATES, chosen
from peergrad.runs.models import ModelPool, ModelRef, base_of, check_base, policy_of, weights_sha256
from peergrad.runs.opponents import Opponents, plan_opponents
from peergrad.runs.plan import Plan, plan_run
from peergrad.runs.skipped import save_skipped
from peergrad.runs.watch import Printing, WatchedSampler, Watcher
from peergrad.settings import changed, flat


def load_engine(config: TrainConfig, say: Callable[[str], None] = lambda _: None) -> Trainer:
    """The model a run trains. ``say`` hears what takes long, such as a download."""
    others = {ref.base for ref in plan_opponents(config).models.values() if ref.url is None} - {config.engine.model}
    share = 1 / (1 + len(others))
    return open_trainer(Setup(engine=config.engine, update=config.update, seed=config.keep.seed, say=say, share=share))


async def load_policy(
    config: TrainConfig,
    start: ModelRef,
    load: Callable[[TrainConfig, Callable[[str], None]], Trainer],
    say: Callable[[str], None],
    resumed: Path | None = None,
) -> Trainer:
    """The model a run trains: with the adapter that it starts with, if any, or as it was saved in a checkpoint."""
    say(f"loading {start.base}")
    if start.url is None:  # else the registry says that such a model can't learn
        config = changed(config, {"model": start.base}, "model")
    # Not on this thread, which must hear signals.
    trainer = await asyncio.to_thread(load, config, say)
    try:
        if resumed:
            await trainer.load(resumed)
        elif start.adapter:
            await trainer.load(start.adapter, optimizer=False)
    except BaseException:
        await trainer.close(failed=True)
        raise
    return trainer


def _start(config: TrainConfig, run: Run, resumed: Path | None) -> tuple[ModelRef, dict[str, Any]]:
    """The model that a run starts from, and what its folder is to say of it. A run with a checkpoint needs its base model
    alone, whatever became of the run or adapter that it started from.
    """
    engine, before = engine_of(config.engine), run.facts if run.exists else {}
    if resumed:
        start = ModelRef(base_of(run), resumed)
        if start.base != config.engine.model:
            check_base(start, engine)
        return start, {}
    start = policy_of(config.engine)
    sha256 = weights_sha256(start, engine)
    if before.get("adapter_sha256", sha256) != sha256:
        why = f"{config.engine.model} is gone, or has learned since the run in {run.path} began"
        raise UserError(f"model: {why}; give another folder (out)")
    return start, {"base": start.base, "start": start.adapter and str(start.adapter), "adapter_sha256": sha256}


async def train_run(
    config: TrainConfig,
    watch: Watcher | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    load: Callable[[TrainConfig, Callable[[str], None]], Trainer] = load_engine,
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
    run = Run(config.keep.folder, watch.warn)
    facts, fixed = plan.facts, ("steps",) if config.learn.lr_falls or config.learn.reward.fades else ()
    with run.opened(config, facts, fixed):
        newest, lessons = run.newest(), plan.lessons
        if newest and plan.learns_from_own and not newest[0].step:
            lessons = _own_lessons(plan, run)
            newest = newest if lessons else (Progress(), run.folder(Progress()))  # by whose weights they are sampled again
        end = plan.end(lessons)
        if newest and newest[0] >= end and not _eval_missing(plan, run, newest[0], end):
            done = f"{newest[0].step} steps" if end.step else f"{end.warm} updates of the warm start"
            watch.say(f"{run.path} is finished: {done}. Raise steps to train on, or give another folder")
            return run
        # Nothing is written before it is known that there is such a model.
        resumed = newest[1] if newest else None
        start, about_start = _start(config, run, resumed)
        trainer = await load_policy(config, start, load, watch.say, resumed)
        loggers = Loggers(open_loggers(config.keep.log_to, run.path, flat(config)), watch.warn)
        run.begin(config, facts | about_start)
        try:
            expected = (start, *plan.opponents.models.values())
            async with ModelPool(config.engine, ApiConfig(), config.keep.seed, watch.say, expected=expected) as pool:
                opponents = Opponents(plan.opponents, start.base, run, trainer, pool)
                await _Training(plan, run, trainer, opponents, watch, loggers, stop, lessons).train(newest)
        finally:
            loggers.close()
            await trainer.close(failed=sys.exc_info()[0] is not None)
    return run


def _own_lessons(plan: Plan, run: Run) -> Sequence[Lesson]:
    """What the model learns from in its own debates; nothing if they are still to be sampled."""
    saved = run.saved_debates(OWN_DEBATES)
    try:
        return chosen(saved.debates, plan.config.warm.warm_keep, plan.task) if saved else ()
    except UserError as error:
        raise Stopped(str(error)) from None


def _eval_missing(plan: Plan, run: Run, at: Progress, end: Progress) -> bool:
    """Whether an evaluation belongs here (before anything, every so many steps, and at the end) and has not been made."""
    belongs = at in (Progress(), end)
    belongs = belongs or (at.step > 0 and due(at.step - 1, plan.config.keep.eval_every))
    if not plan.config.held_out.eval_questions or not belongs:
        return False
    return not any(line["phase"] == "eval" and Progress(line["step"], line["warm"]) == at for line in run.metrics())


class _Training:
    """One run under way."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        trainer: Trainer,
        opponents: Opponents,
        watch: Watcher,
        loggers: Loggers,
        stop: Callable[[], bool],
        lessons: Sequence[Lesson],
    ) -> None:
        self.plan, self.config, self.opponents, self.lessons = plan, plan.config, opponents, lessons
        self.run, self.trainer, self.watch, self.loggers, self.stop = run, trainer, watch, loggers, stop
        self.updates = Updates()  # so far, those before the run was resumed included
        self.history: list[Outcomes] = []

    async def train(self, newest: tuple[Progress, Path] | None) -> None:
        """Train from the newest checkpoint, if there is one."""
        at, folder = newest or (Progress(), None)
        if folder:
            self.watch.say(f"resuming from {at.name} of {self.run.path}")
        self.run.forget_after(at, self.config.learn.max_staleness if folder else 0)
        if not folder:
            await self._save(at)
        self.updates = Updates.of(self.run.metrics())
        self.watch.updates(self.updates)
        await self._evaluate(at)
        if at.step == 0 and self.config.warm.wanted:
            at = await self._warm_start(at)
            await self._evaluate(at)
        if at.step < self.config.learn.steps:
            await self._self_play(at)

    async def _warm_start(self, at: Progress) -> Progress:
        """Have the policy learn from the lessons, a batch at a time."""
        warm, bad = self.config.warm, 0
        if not self.lessons:
            self.lessons = await self._learn_from_own(at)
        updates = warm.updates(len(self.lessons))
        for index in range(at.warm, updates):
            self.watch.begin("warm start", updates, at)
            started = time.monotonic()
            data, turns, tokens = lesson_data(self.trainer, lesson_batch(self.lessons, warm.warm_debates, index))
            if not turns:
                raise UserError(
                    "warm_from: no turn of its debates keeps to this run's contract and fits the model's context"
                )
            stats = joined([await self.trainer.step(data, "cross_entropy", warm.warm_lr)])
            assert stats is not None
            bad = bad + 1 if stats.skipped else 0
            at = Progress(0, index + 1)
            metrics = {"warm/loss": stats.loss, "warm/skipped": float(stats.skipped), "lr": warm.warm_lr}
            metrics |= {"time/train_s": time.monotonic() - started, "tokens/trained": float(sum(map(len, data)))}
            metrics |= {"warm/turns": float(turns), "warm/tokens": float(tokens)}
            metrics["warm/epoch"] = (index + 1) / updates_per_epoch(len(self.lessons), warm.warm_debates)
            if RETRIED in stats.metrics:
                metrics["warm/retried"] = stats.metrics[RETRIED]
            await self._count_updates(at, stats, "cross_entropy", warm.warm_lr)
            self._log(at, "warm", metrics)
            await self._save(at)
            if bad >= self.config.learn.stop_after_bad:
                raise Stopped(
                    f"{bad} updates of the warm start in a row were not finite; the last: {stats.faults[-1].why}. "
                    "Try a lower warm_lr"
                )
        return at

    async def _learn_from_own(self, at: Progress) -> Sequence[Lesson]:
        """Sample debates to learn from, and choose. They are saved first, so that a resumed run learns from the same."""
        questions = self.plan.first(self.config.warm.warm_sample)
        if not self.run.saved_debates(OWN_DEBATES):
            self.watch.begin("sampling", len(questions), at)
            batching = engine_of(self.config.engine).batching(self.config.engine)
            play = self_play(self.plan.protocol, lambda _: questions, done=self.watch.debate, **batching)
            self.run.save_debates(OWN_DEBATES, await play(-1, await self.trainer.sampler()))
        lessons = await asyncio.to_thread(_own_lessons, self.plan, self.run)
        turns = sum(len(lesson.turns or ()) for lesson in lessons)
        self.watch.say(f"warm start: {turns:,} turns of {len(lessons):,} debates to learn from (warm_keep)")
        return lessons

    async def _self_play(self, at: Progress) -> None:
        """The loop itself, and around it what is saved of every step."""
        learn = self.config.learn
        self.history = self.run.outcomes(at.step) if self.plan.has_curriculum else []
        history = [line for line in self.run.metrics() if line["phase"] == "train"]
        truth = truth_of(self.plan.task.grade)
        halved = sum(went_too_far(learn, line) for line in history)
        loop = train(self.trainer, self._rollout(), learn, first=at.step, halved=halved, truth=truth)
        async with contextlib.aclosing(loop) as steps:
            async for step in steps:
                at = Progress(step.index + 1)
                if step.stats:
                    await self._count_updates(at, step.stats, learn.loss, step.lr)
                # Comparing answers may take long, and signals must be heard.
                metrics, sounding = await asyncio.to_thread(self._measure, at, step, history)
                if self.plan.has_curriculum:
                    self.run.log_outcomes(at, self.history[-1])
                self._log(at, "train", metrics)
                for alarm in sounding:
                    self.watch.alarm(alarm)
                await self._save(at)
                await self._evaluate(at)
                if sounding and self.config.keep.stop_on_alarm:
                    raise Stopped(f"an alarm sounded after step {at.step}. {sounding[0]}")

    def _measure(self, at: Progress, step: Step, history: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Alarm]]:
        """What a step was like, and what is wrong. The history gets its line as a resumed run would read it."""
        own_metrics, own_alarms = self.config.keep.own
        rules, tasks, ahead = self.config.curriculum, self.plan.tasks, self.config.learn.max_staleness
        task = self.plan.task
        if rules.curriculum == "in order":
            task = tasks[stage_of(rules, len(tasks), step.index, self.history, ahead)[0]]
        batch = DebateBatch.of(step.scored, task, f"train_{task.name}", step)
        metrics: dict[str, Any] = dict(measure(batch, own_metrics))
        if self.plan.has_curriculum:
            grades = batch.grades or [None] * len(batch.scored)
            shares = {
                scored.debate.question.id: share_of(scored, known)
                for scored, known in zip(batch.scored, grades, strict=True)
            }
            self.history.append({q.id: shares.get(q.id) for q in self.plan.batch(step.index, self.history)})
            metrics |= curriculum_metrics(rules, [task.name for task in tasks], step.index, self.history, ahead)
        history.append(metrics_line(at, "train", metrics))
        sounding = alarms(history, step, own_alarms)
        metrics["alarms"] = history[-1]["alarms"] = [alarm.name for alarm in sounding]
        return metrics, sounding

    def _rollout(self) -> Callable[[int, Sampler], Any]:
        """Self-play whose debates are saved before they are learned from, and used again if the step is repeated."""
        batching = engine_of(self.config.engine).batching(self.config.engine)
        play = self_play(
            self.plan.protocol,
            lambda step: self.plan.batch(step, self.history),
            done=self.watch.debate,
            judged=self.config.learn.judged,
            **batching,
        )

        async def rollout(index: int, sampler: Sampler) -> Played:
            at = Progress(index + 1)
            if saved := self.run.saved_debates(at.name):
                return saved
            self.watch.begin("sampling", self.config.learn.batch, at)
            judged = self.config.learn.judged(index)
            seated = await self.opponents.seated(index, sampler, judged=judged)
            played = await play(index, WatchedSampler(seated, self.watch))
            self.run.save_debates(at.name, played)
            self.watch.begin("training", 0, at)
            return played

        return rollout

    async def _evaluate(self, at: Progress) -> None:
        """The policy on held-out questions: alone, the likeliest words taken, and in debate with itself (SPEC 9.1)."""
        if not _eval_missing(self.plan, self.run, at, self.plan.end(self.lessons)):
            return
        debates = min(self.config.held_out.eval_debates, len(self.plan.held_out))
        self.watch.begin("evaluating", debates, at)
        started, metrics = time.monotonic(), Metrics()
        batching = engine_of(self.config.engine).batching(self.config.engine)
        batching["deadline_s"] = max(3600.0, batching["deadline_s"])  # all held-out questions may be one call
        async with Batcher(await self.trainer.sampler(), **batching) as sampler:
            if self.plan.held_out.known:
                metrics |= await self._eval_direct(sampler)
            if debates and self.config.held_out.eval_mode == "role-averaged":
                async with Batcher(await self.opponents.base(), **batching) as base:
                    metrics |= await self._eval_seats(sampler, base, at, debates)
            elif debates:
                metrics |= await self._eval_debates(sampler, at, debates)
        self._log(at, "eval", metrics | {"time/eval_s": time.monotonic() - started})

    async def _eval_direct(self, sampler: Sampler) -> Metrics:
        task, prompts = self.plan.held_out, self.plan.protocol.prompts
        protocol = Direct(max_tokens=self.config.debate.max_tokens, prompts=prompts)
        played = await self._play_held_out(protocol, len(task), sampler, "direct/")
        grades = await asyncio.to_thread(turn_grades, played.debates, task.grade)
        name = f"eval/direct/{task.name}"
        return answer_metrics(grades, name) | {f"{name}/dropped": float(len(played.dropped))}

    async def _eval_debates(self, sampler: Sampler, at: Progress, count: int) -> Metrics:
        task = self.plan.held_out
        played = await self._play_held_out(self.plan.protocol, count, sampler, f"eval-{at.step}/")
        self.run.save_debates(f"eval_{at.name}" if at.warm else f"eval_{at.step:06}", played)
        truth, name = truth_of(task.grade), f"eval/debate/{task.name}"

        def measured() -> Metrics:
            scored = [score(debate, self.config.learn.reward_at(at.step), truth(debate)) for debate in played.debates]
            return measure(DebateBatch.of(scored, task, name), self.config.keep.own[0])

        metrics = await asyncio.to_thread(measured) | {"dropped": float(len(played.dropped))}
        return {key if key.startswith("eval/") else f"{name}/{key}": value for key, value in metrics.items()}

    async def _eval_seats(self, policy: Sampler, base: Sampler, at: Progress, count: int) -> Metrics:
        """The policy in each seat in turn, with its base model in the others."""
        task, protocol, by_seat = self.plan.held_out, self.plan.protocol, list[dict[str, Debate]]()
        dropped: dict[str, str] = {}
        for seat in range(protocol.agents):
            seats, prefix = Seats({seat: policy}, base), f"eval-{at.step}-seat-{seat}/"
            played = await self._play_held_out(protocol, count, seats, prefix)
            by_seat.append({debate.question.id: debate for debate in played.debates})
            dropped |= played.dropped
        every = tuple(debate for debates in by_seat for debate in debates.values())
        self.run.save_debates(f"eval_{at.name}" if at.warm else f"eval_{at.step:06}", Played(every, dropped))
        whole = [task[index] for index in range(count) if all(task[index].id in debates for debates in by_seat)]
        ids = [question.id for question in whole if question.known or not task.known]
        debates, grade = [[one[name] for name in ids] for one in by_seat], task.grade if task.known else None
        outcome = await asyncio.to_thread(seat_outcome, ids, debates, grade)
        measured = result(outcome, task.name, dict.fromkeys(ids, ""))
        name = f"eval/role-averaged/{task.name}"
        shares = {f"{name}/{key.removeprefix('role-averaged/')}": share for key, (share, *_) in measured["shares"].items()}
        return measured["metrics"] | shares | {f"{name}/dropped": float(len(dropped))}

    async def _play_held_out(self, protocol: BaseProtocol, count: int, sampler: Sampler, prefix: str) -> Played:
        questions = [self.plan.held_out[index] for index in range(count)]
        watched = WatchedSampler(sampler, self.watch)
        return (await play_all(protocol, questions, watched, prefix=prefix)).usable("questions of the evaluation")

    async def _count_updates(self, at: Progress, stats: StepStats, loss: LossName, lr: float) -> None:
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

    async def _save(self, at: Progress) -> None:
        self.watch.begin("saving", 0, at)
        await self.run.checkpoint(at, self.trainer.save)
        # Of opponents that are older policies: the one of this step, and that of the step before, should it be repeated.
        self.run.thin_checkpoints(self.config.keep.save_every, self.trainer.forget, 2 + self.plan.opponents.steps_ago)
        if self.stop():
            raise Stopped(f"stopped after {at.name}, as asked")

    def _log(self, at: Progress, phase: str, metrics: Mapping[str, Any]) -> None:
        self.run.log(at, phase, metrics)
        self.watch.line(phase, at, metrics)
        self.loggers.log(at.step, {name: value for name, value in metrics.items() if isinstance(value, float)})

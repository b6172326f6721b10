"""The check before training: play a sample as a run would, pass it through the gates, and say what the run takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from peergrad.config import ApiConfig, TrainConfig
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Batcher, Sampler
from peergrad.debate.types import Debate
from peergrad.engines.base import Setup
from peergrad.engines.registry import engine_of, open_trainer
from peergrad.learn.train import LearnRules, learning_rate
from peergrad.learn.trainer import StepStats, Trainer, joined, parts
from peergrad.measure.gates import Gate, Sample, finite, gates
from peergrad.reward.rewards import Truth
from peergrad.runs.lessons import chosen, lesson_update
from peergrad.runs.models import ModelPool, load_policy, policy_of, weights_of
from peergrad.runs.plan import Plan, plan_run
from peergrad.runs.watch import Watcher
from peergrad.tasks.base import truth_of


@dataclass(frozen=True)
class Forecast:
    """What the planned run takes, going by the sample."""

    steps: int
    sampled: float
    """Tokens sampled, in all steps together."""
    read: float
    """Tokens of prompts, each counted in full."""
    trained: float | None
    """Tokens trained on, those of debates without signal not among them; ``None`` where nothing can be trained."""
    sampling_s: float
    training_s: float
    usd: float = 0.0


@dataclass(frozen=True)
class Checked:
    """What the check found."""

    questions: int
    gates: tuple[Gate, ...]
    forecast: Forecast
    dropped: dict[str, str]

    @property
    def passed(self) -> bool:
        return all(gate.verdict != "fail" for gate in self.gates)


async def check(
    config: TrainConfig,
    questions: int,
    watch: Watcher,
    api: ApiConfig | None = None,
    *,
    load: Callable[[Setup], Trainer] = open_trainer,
) -> Checked:
    """Play debates about some of the questions a run would train on, and three answers to each without debate: after the
    warm start, if the run has one.

    A model that can't be trained, such as one behind an API, can be checked as well, though only its debates.
    """
    plan, learn = plan_run(config), config.learn
    for note in plan.notes:
        watch.warn(note)
    asked = plan.first(questions)
    api, truth = api or ApiConfig(), truth_of(plan.task.grade)
    engine, policy = engine_of(config.engine), policy_of(config.engine)
    trainer = None

    async def play(part: str, protocol: BaseProtocol) -> Played:
        watch.begin(part, len(asked))
        return (await play_all(protocol, asked, sampler, prefix=f"check-{part}/", done=watch.debate)).usable(part)

    async with ModelPool(config.engine, api, config.keep.seed, watch.say) as pool, contextlib.AsyncExitStack() as opened:
        if policy.url is None and engine.open_trainer:
            weights_of(policy, engine)
            trainer = await load_policy(config, policy, load, watch.say)
            opened.push_async_callback(trainer.close)
            if config.warm.wanted:
                await _warm_start(plan, trainer, watch)
            batcher = Batcher(await trainer.sampler(), **engine.batching(config.engine))
            sampler: Sampler = await opened.enter_async_context(batcher)
        else:
            sampler = await pool.sampler(policy)
        tokens, prompts = config.debate.max_tokens, plan.protocol.prompts
        # As hot as the debate is on average: else the gate would also measure that.
        temperature = fmean(ask.temperature for ask in plan.wave(plan.task[0], "first"))
        alone = Direct(agents=3, max_tokens=tokens, temperature=temperature, prompts=prompts)
        answers = await play("answers", alone) if plan.task.known else Played((), {}, 0.0)
        played = await play("debates", plan.protocol)
        context = trainer.context if trainer else None
        sample = Sample(answers.debates, played.debates, len(played.dropped), config.debate.max_tokens, context)
        results = await asyncio.to_thread(gates, sample, plan.task, learn)
        trained, training_s = None, 0.0
        runs = learn.steps * learn.batch / len(played.debates)  # how many such samples the run plays
        if trainer:  # last, for it changes the weights
            stats, per_token = await _update(learn, played.debates, truth, trainer)
            results.append(finite(stats))
            data = (await asyncio.to_thread(learn.training_data, played.debates, truth)).data
            trained = sum(map(len, data)) * runs
            training_s = trained * per_token
    used = [turn.used for debate in played.debates for turn in debate.turns if turn.used]
    sampled, read = sum(one.sampled for one in used) * runs, sum(one.prompt for one in used) * runs
    usd = (read * api.price_in + sampled * api.price_out) / 1e6
    forecast = Forecast(learn.steps, sampled, read, trained, (played.seconds or 0.0) * runs, training_s, usd)
    return Checked(len(asked), tuple(results), forecast, played.dropped)


async def _warm_start(plan: Plan, trainer: Trainer, watch: Watcher) -> None:
    """The warm start of the run; nothing of it is kept."""
    warm, lessons = plan.config.warm, plan.lessons
    if plan.learns_from_own:
        questions = plan.first(warm.warm_sample)
        watch.begin("debates to learn from", len(questions))
        async with Batcher(await trainer.sampler(), **engine_of(plan.config.engine).batching(plan.config.engine)) as sampler:
            played = await play_all(plan.protocol, questions, sampler, prefix="check-lessons/", done=watch.debate)
        lessons = await asyncio.to_thread(chosen, played.debates, warm.warm_keep, plan.task)
    updates = warm.updates(len(lessons))
    watch.say(f"first the warm start, as the run makes it: {updates:,} updates (none: --warm-steps 0 --warm-epochs 0)")
    watch.begin("warm start", updates)
    for index in range(updates):
        stats, _ = await lesson_update(trainer, lessons, warm, index)
        for fault in stats.faults:
            watch.warn(f"warm start {index + 1}: update skipped: {fault.why}")
        watch.debate(None)


async def _update(
    learn: LearnRules, debates: Sequence[Debate], truth: Callable[[Debate], Truth], trainer: Trainer
) -> tuple[StepStats | None, float]:
    """The updates of the run's first step, made of the sample, and how long a token of them takes."""
    data = (await asyncio.to_thread(learn.training_data, debates[: learn.batch], truth)).data
    if not data:
        return None, 0.0
    await trainer.step(data[:1], learn.loss, 0.0)  # the first one may have things to set up
    started = time.monotonic()
    lr = learning_rate(learn, 0)
    stats = joined([await trainer.step(part, learn.loss, lr) for part in parts(data, learn.updates)])
    return stats, (time.monotonic() - started) / sum(map(len, data))

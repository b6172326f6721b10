"""The check before training: play a sample as a run would, pass it through the gates, and say what the run takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peergrad.config import TrainConfig
from peergrad.debate.batch import Batcher
from peergrad.debate.errors import EngineError
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Debate, Protocol, Question
from peergrad.learn.advantages import advantages
from peergrad.learn.credit import credit
from peergrad.learn.datums import Datum, datums
from peergrad.learn.trainer import Trainer
from peergrad.measure.preflight import Gate, Sample, gates
from peergrad.reward.rewards import score
from peergrad.runs.evaluation import EvalWatcher
from peergrad.runs.training import Plan, load_engine, plan

_TRIED = 1  # debates that are trained on, at a learning rate of 0, to see how long it takes


@dataclass(frozen=True)
class Forecast:
    """What the planned run takes, going by the sample."""

    steps: int
    sampled: float
    """Tokens sampled, in all steps together."""
    trained: float
    """Tokens trained on."""
    sampling_s: float
    training_s: float


@dataclass(frozen=True)
class Checked:
    """What the check found."""

    gates: tuple[Gate, ...]
    forecast: Forecast
    dropped: dict[str, str]

    @property
    def passed(self) -> bool:
        return all(gate.verdict != "fail" for gate in self.gates)


async def check(
    config: TrainConfig,
    questions: int,
    watch: EvalWatcher,
    *,
    load: Callable[[TrainConfig, Callable[[str], None]], Trainer] = load_engine,
) -> Checked:
    """Play debates about some of the questions a run would train on, and three answers to each without debate."""
    made = plan(config)
    for note in made.notes:
        watch.warn(note)
    asked = _some(made, questions)
    watch.say(f"loading {config.engine.model}")
    trainer = await asyncio.to_thread(load, config, watch.say)
    sampler = await trainer.sampler()
    alone = Direct(agents=3, max_tokens=config.debate.max_tokens, temperature=0.7)
    answers = await _play("answers", alone, asked, sampler, watch, config) if made.task.known else Played((), {}, 0.0)
    debates = await _play("debates", made.protocol, asked, sampler, watch, config)
    sample = Sample(answers.debates, debates.debates, len(debates.dropped), config.debate.max_tokens, trainer.context)
    found = await asyncio.to_thread(gates, sample, made.task, config.learn)
    forecast = await _forecast(config, debates, trainer)
    return Checked(tuple(found), forecast, debates.dropped)


def _some(made: Plan, count: int) -> list[Question]:
    """The questions of the run's first steps."""
    asked: list[Question] = []
    for step in range(len(made.task) // made.config.learn.batch):
        asked += made.batch(step)
        if len(asked) >= count:
            break
    return asked[:count]


async def _play(
    part: str, protocol: Protocol, questions: Sequence[Question], sampler: Sampler, watch: EvalWatcher, config: TrainConfig
) -> Played:
    watch.begin(part, len(questions))
    async with Batcher(sampler, max_asks=100_000, max_calls=1, deadline_s=config.engine.deadline_s) as batcher:
        played = await play_all(protocol, questions, batcher, prefix=f"check-{part}/", done=watch.debate)
    if not played.debates:
        raise EngineError(
            f"all {len(questions)} {part} were dropped; the first because: {next(iter(played.dropped.values()))}"
        )
    return played


async def _forecast(config: TrainConfig, played: Played, trainer: Trainer) -> Forecast:
    learn, debates = config.learn, played.debates
    in_all = learn.steps * learn.batch / len(debates)
    sampled = sum(turn.used.sampled for debate in debates for turn in debate.turns if turn.used)
    every = _data(debates, config)
    few = _data(debates[:_TRIED], config)
    await trainer.step(few[:1], learn.loss, 0.0)  # the first one may have things to set up
    started = time.monotonic()
    await trainer.step(few, learn.loss, 0.0)
    per_token = (time.monotonic() - started) / max(1, sum(map(len, few)))
    trained = sum(map(len, every))
    return Forecast(
        learn.steps, sampled * in_all, trained * in_all, (played.seconds or 0.0) * in_all, trained * per_token * in_all
    )


def _data(debates: Sequence[Debate], config: TrainConfig) -> list[Datum]:
    scored = [score(debate, config.learn.reward) for debate in debates]
    centred = advantages(scored, center=config.learn.center)
    return [
        d for one, a in zip(scored, centred, strict=True) for d in datums(one.debate, credit(one.debate, one.streams, a))
    ]

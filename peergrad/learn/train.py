"""The loop: debate, score, learn, and again with the policy that learned (SPEC 7)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Unpack, cast

from peergrad.debate.errors import UserError
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.question import Question
from peergrad.debate.sampler import Batcher, Batching, Sampler
from peergrad.debate.settings import RESUMABLE, Above, Range
from peergrad.debate.types import Debate
from peergrad.learn.data import Batch, Center, Datum, Values, has_signal, training_data
from peergrad.learn.kl import penalised, token_scores, update_distance
from peergrad.learn.losses import LossName
from peergrad.learn.trainer import StepStats, Trainer, joined, parts
from peergrad.reward.rewards import RewardRules, Schedule, Scored, Truth, nobody_knows


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRules:
    """How the policy is updated."""

    steps: Annotated[int, Range(0), RESUMABLE]
    """Steps to make; each takes one batch of questions. 0: the warm start alone."""
    batch: Annotated[int, Range(1)] = 16
    """Questions debated in each of them."""
    updates: Annotated[int, Range(1)] = 1
    """Updates made of each batch, which is dealt out to them; above 1 the later ones learn from what older weights said."""
    lr: Annotated[float, Above(0)] = 3e-5
    """Learning rate, at its highest."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = "constant"
    """Keep the learning rate, let it fall to 0 along a line or half a cosine, or halve it after every update that goes too
    far (adaptive)."""
    lr_warmup: Annotated[int, Range(0)] = 0
    """Steps in which the learning rate first rises."""
    lr_max_kl: Annotated[float, Above(0)] = 0.02
    """Adaptive: too far is a divergence of the policy before and after the updates of a step above this."""
    lr_max_ratio: Annotated[float, Above(1)] = 10.0
    """Adaptive: and so is a token that the updates made more likely by more than this factor, or less likely."""
    kl: float = 0.0
    """Penalty on moving away from the base model: so much of the difference of log-probabilities, for every token."""
    loss: LossName = "importance_sampling"
    """What is minimised."""
    center: Center = "group"
    """What the baseline of an advantage is a mean over."""
    divide_by_std: bool = False
    """Also divide advantages by the standard deviation of the centring set."""
    max_staleness: Annotated[int, Range(0)] = 0
    """How many batches may be sampled ahead, by an older policy, while training continues; 0 is exactly on-policy."""
    opponents: tuple[str, ...] = ()
    """SEAT=WHO, for seats that the policy does not hold: 2=base, 2=-5 (itself five steps ago), any model. Not trained on."""
    judge: str | None = None
    """A model that does not debate: it sees the final answers and votes, and its votes count (judge_weight). Any model may
    be one, and what opponents may be."""
    stop_after_bad: Annotated[int, Range(1)] = 3
    """Stop when this many updates in a row had a loss or gradient that was not finite."""
    reward: RewardRules = field(default_factory=RewardRules)
    """How votes become reward."""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.reward), RewardRules):
            given = type(self.reward).__name__
            raise UserError(f"reward: is a {given}; give RewardRules, such as RewardRules(reward='module:name')")
        if self.kl < 0:
            raise UserError(f"kl: {self.kl:g} is not possible; give 0, for none, or a number above it")
        if self.lr_warmup >= max(1, self.steps):
            raise UserError(f"lr_warmup: {self.lr_warmup} leaves none of the {self.steps} steps after it; give fewer")

        if self.reward.judge_weight is not None and self.judge is None:
            raise UserError("judge_weight: there is no judge whose votes would count; give one (--judge)")

    @property
    def lr_falls(self) -> bool:
        """Whether the learning rate depends on how many steps there are."""
        return self.lr_schedule in ("linear", "cosine")

    @property
    def scores_tokens(self) -> str:
        """The setting for which the trainer must be a ``Scorer``, if there is one."""
        return "kl" if self.kl else "lr_schedule" if self.lr_schedule == "adaptive" else ""

    def in_force(self, step: int) -> dict[str, float]:
        """Weights of the reward that may change from step to step, if they are used: their values in one of them."""
        values = self.reward.in_force(step, self.steps)
        if self.judge is not None:
            values["judge_weight"] = self.reward.judge_weight_at(step, self.steps, unset=1.0)
        return values

    def judged(self, step: int) -> bool:
        """Whether a judge's votes count in a step, counted from 0."""
        return self.in_force(step).get("judge_weight", 0.0) > 0

    def reward_at(self, step: int) -> RewardRules:
        """How votes become reward in a step, counted from 0."""
        weights: dict[str, Any] = self.in_force(step)
        return replace(self.reward, **weights)

    def training_data(self, debates: Sequence[Debate], truth: Callable[[Debate], Truth], step: int = 0) -> Batch:
        """What a step of such debates trains on."""
        centring: Any = {"center": self.center, "divide_by_std": self.divide_by_std}
        return training_data(debates, self.reward_at(step), truth, whole=self.kl > 0, **centring)


@dataclass(frozen=True, slots=True)
class Step:
    """All that happened in one step, for whoever keeps, measures or shows it. ``stats`` is None if there was no signal."""

    index: int
    lr: float
    played: Played
    scored: tuple[Scored, ...]
    advantages: tuple[tuple[Values, ...], ...]
    data: tuple[Datum, ...]
    stats: StepStats | None
    trained_s: float
    in_force: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of the reward that may change from step to step, if they are used."""
    bad_in_a_row: int = 0
    """Updates whose loss or gradient was not finite, up to the last one of this step."""

    @property
    def without_signal(self) -> int:
        """Debates that taught nothing because all advantages were 0."""
        return sum(not has_signal(one.streams, a) for one, a in zip(self.scored, self.advantages, strict=True))


class Stopped(Exception):  # noqa: N818 (a decision, not a fault of the program)
    """Training was stopped by one of its guards; the message says which and what to try."""


# (step, sampler) → the debates of that step, every seat held by the sampler.
Rollout = Callable[[int, Sampler], Awaitable[Played]]


async def train(
    trainer: Trainer,
    rollout: Rollout,
    rules: LearnRules,
    *,
    first: int = 0,
    halved: int = 0,
    bad_in_a_row: int = 0,
    truth: Callable[[Debate], Truth] = lambda _: nobody_knows,
) -> AsyncGenerator[Step]:
    """Train by self-play, yielding each step once its update is done and before the next one begins.

    Before, an adaptive learning rate was ``halved`` so often, and the last so many updates were bad. ``truth`` is for
    rewards that ask what is right. Keeping, evaluating and showing are the caller's, between two steps: the trainer then
    holds exactly the weights after the step.
    """
    sampler = await trainer.sampler()
    ahead: deque[asyncio.Future[Played]] = deque()
    asked: list[asyncio.Future[Any]] = []
    try:
        for index in range(first, rules.steps):
            while len(ahead) <= min(rules.max_staleness, rules.steps - 1 - index):
                ahead.append(asyncio.ensure_future(rollout(index + len(ahead), sampler)))
            played = await ahead.popleft()

            # Not on this thread: a reward that asks for the truth waits until it is graded.
            scored, centred, data = await asyncio.to_thread(rules.training_data, played.debates, truth, index)

            lr = learning_rate(rules, index, halved)
            started, moved = time.monotonic(), dict[str, float]()
            if rules.kl and data:
                data, moved["optim/kl_base"] = penalised(data, await token_scores(trainer, data, base=True), rules.kl)
            # All is asked for before any of it is awaited: a service then never waits for us.
            updates = [asyncio.ensure_future(trainer.step(part, rules.loss, lr)) for part in parts(data, rules.updates)]
            adapts = updates and rules.lr_schedule == "adaptive"
            after = asyncio.ensure_future(token_scores(trainer, data)) if adapts else None
            fresh = asyncio.ensure_future(trainer.sampler()) if updates and index + 1 < rules.steps else None
            asked = [*updates, *(one for one in (after, fresh) if one)]
            stats = [await update for update in updates]
            if after:
                moved |= update_distance(data, await after)
                halved += went_too_far(rules, moved)
            trained_s = time.monotonic() - started
            sampler = await fresh if fresh else sampler
            together = joined(stats, moved)
            for one in stats:
                bad_in_a_row = bad_in_a_row + 1 if one.skipped else 0
            in_force = rules.in_force(index)
            yield Step(index, lr, played, scored, centred, data, together, trained_s, in_force, bad_in_a_row)

            if together and bad_in_a_row >= rules.stop_after_bad:
                raise Stopped(
                    f"{bad_in_a_row} updates in a row had a loss or gradient that was not finite; the weights are unchanged "
                    f"by them. The last: {together.faults[-1].why}. "
                    "Try a lower learning rate, or the loss 'ppo', which bounds the ratios"
                )
    finally:
        for task in (*ahead, *asked):
            task.cancel()
        await asyncio.gather(*ahead, *asked, return_exceptions=True)


def learning_rate(rules: LearnRules, step: int, halved: int = 0) -> float:
    """The learning rate of a step under the schedule (SPEC 7.6)."""
    highest = rules.lr * 0.5**halved
    if step < rules.lr_warmup:
        return highest * (step + 1) / (rules.lr_warmup + 1)
    fall = Schedule(highest, 0.0 if rules.lr_falls else highest, cosine=rules.lr_schedule == "cosine")
    return fall.at(step - rules.lr_warmup, rules.steps - rules.lr_warmup)


def went_too_far(rules: LearnRules, metrics: Mapping[str, Any]) -> bool:
    """Whether the updates of a step halve an adaptive learning rate, by its metrics; a number that is not finite is None."""
    if rules.lr_schedule != "adaptive" or "optim/kl_update" not in metrics:
        return False
    measured = metrics["optim/kl_update"], metrics.get("optim/ratio_update")
    bounds = rules.lr_max_kl, rules.lr_max_ratio
    return not all(isinstance(x, int | float) and x <= most for x, most in zip(measured, bounds, strict=True))


def epoch_order(task: Sequence[str], seed: int, epoch: int) -> list[str]:
    """The questions of a task, by their ids, in an order of the epoch's own."""
    order = list(task)
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def next_in_epoch(task: Sequence[str], count: int, seed: int, step: int) -> list[str]:
    """Every question at most once an epoch, each epoch in an order of its own; what is no whole batch is left out of it."""
    if count > len(task):
        raise UserError(f"batch: {count} is more than the {len(task)} questions there are; give at most that")
    epoch, place = divmod(step, len(task) // count)
    return epoch_order(task, seed, epoch)[place * count : (place + 1) * count]


def due(step: int, every: int) -> bool:
    """Whether something done ``every`` so many steps (0: never) is to be done after this one."""
    return every > 0 and (step + 1) % every == 0


def self_play(
    protocol: BaseProtocol,
    batch: Callable[[int], Sequence[Question]],
    *,
    done: Callable[[Debate | None], None] = lambda _: None,
    judged: Callable[[int], bool] = lambda _: False,
    **batching: Unpack[Batching],
) -> Rollout:
    """Debates of the policy with itself about each step's questions. A sampler slower than the deadline costs debates.

    In steps that are ``judged`` it also answers in the seat after the last, for a judge.
    """

    async def rollout(step: int, sampler: Sampler) -> Played:
        async with Batcher(sampler, **batching) as batcher:
            tokens, prefix = protocol.max_tokens if judged(step) else 0, f"step-{step + 1}/"
            played = await play_all(protocol, batch(step), batcher, prefix=prefix, judge_tokens=tokens, done=done)
        return played.usable("debates of a batch")

    return rollout

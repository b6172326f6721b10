"""SPEC 7: learning."""

import asyncio
import math
import re

import numpy as np
import pytest

from peergrad import EngineError, Parallel, Question, UserError
from peergrad.debate.sampler import answered
from peergrad.learn.losses import cispo, cross_entropy, importance_sampling, ppo
from peergrad.learn.train import LearnRules, Stopped, due, learning_rate, self_play, train, went_too_far
from peergrad.learn.trainer import Fault, StepStats, joined, optim_metrics, parts
from tests.bandit import Bandit

RNG = np.random.default_rng(0)
NEW, OLD, ADVANTAGE = RNG.normal(-1, 0.6, 40), RNG.normal(-1, 0.6, 40), RNG.normal(0, 1, 40)
MASK = (RNG.random(40) < 0.7).astype(float)


def slope(loss, x, step=1e-6):
    """The gradient by central differences."""
    steps = np.eye(len(x)) * step
    return np.array([(loss(x + s) - loss(x - s)) / (2 * step) for s in steps])


def test_7_1_importance_sampling():  # SPEC 7.1
    loss = importance_sampling(np.log([0.5, 0.2]), np.log([0.25, 0.4]), np.array([1.0, -2.0]), np.ones(2))
    assert loss.value == pytest.approx(-(2.0 * 1 + 0.5 * -2))
    assert loss.grad_T == pytest.approx([-2.0, 1.0])
    made = importance_sampling(NEW, OLD, ADVANTAGE, MASK)
    assert made.value == pytest.approx(-np.sum(np.exp(NEW - OLD) * ADVANTAGE * MASK))
    assert made.grad_T == pytest.approx(slope(lambda x: importance_sampling(x, OLD, ADVANTAGE, MASK).value, NEW), abs=1e-6)
    # What stands at observation tokens, be it infinite, is not looked at.
    wild = np.where(MASK > 0, NEW, np.inf)
    assert importance_sampling(wild, OLD, ADVANTAGE, MASK).value == made.value
    # On-policy the gradient is that of plain policy gradient.
    assert importance_sampling(OLD, OLD, ADVANTAGE, MASK).grad_T == pytest.approx(-ADVANTAGE * MASK)


def test_7_2_ppo_cispo_and_cross_entropy():  # SPEC 7.2
    ratios = np.array([0.5, 0.5, 1.0, 1.5, 1.5])
    advantages = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    made = ppo(np.log(ratios), np.zeros(5), advantages, np.ones(5))
    assert made.value == pytest.approx(-(0.5 - 0.8 + 1.0 + 1.2 - 1.5))
    assert made.grad_T == pytest.approx([-0.5, 0, -1, 0, 1.5])
    made = cispo(np.log(ratios), np.zeros(5), advantages, np.ones(5), bounds=(0.8, 1.2))
    clipped = np.clip(ratios, 0.8, 1.2)
    assert made.value == pytest.approx(-np.sum(clipped * advantages * np.log(ratios)))
    assert made.grad_T == pytest.approx(-clipped * advantages)
    made = cross_entropy(NEW, MASK)
    assert made.value == pytest.approx(-np.sum(NEW * MASK))
    assert made.grad_T == pytest.approx(-MASK)
    for options in ({}, {"bounds": (0.7, 1.1)}):
        made = ppo(NEW, OLD, ADVANTAGE, MASK, **options)
        assert made.grad_T == pytest.approx(
            slope(lambda x, o=options: ppo(x, OLD, ADVANTAGE, MASK, **o).value, NEW), abs=1e-5
        )
    # CISPO holds its ratio constant: its gradient is the slope of the loss with the ratio frozen.
    weights = np.clip(np.exp(NEW - OLD), 0, 4) * ADVANTAGE * MASK
    assert cispo(NEW, OLD, ADVANTAGE, MASK).grad_T == pytest.approx(slope(lambda x: -np.sum(weights * x), NEW), abs=1e-6)


def vote_for_right(ask):
    """Every agent prefers 'right' to 'wrong', whoever said it."""
    found = dict(re.findall(r"Agent (\d) said in round \d+:\n\| solution: (\w+)", ask.messages[-1].text))
    lines = [f"Agent {a} > Agent {b}" for a in found for b in found if found[a] == "right" and found[b] == "wrong"]
    return "\n".join(lines) or "N/A"


def batch(step):
    return [Question(f"{step}-{i}", "?") for i in range(8)]


def run(rules, trainer, protocol=None):
    async def steps():
        return [step async for step in train(trainer, self_play(protocol or Parallel(agents=3, max_rounds=2), batch), rules)]

    return asyncio.run(steps())


def test_7_3_a_fresh_sampler_after_every_update():  # SPEC 7.3
    trainer = Bandit(["right", "wrong"], vote_for_right)
    steps = run(LearnRules(steps=15, lr=0.5, loss="ppo"), trainer)
    assert [version for what, version in trainer.log if what == "sampler"] == list(range(trainer.updates))
    assert {version for what, version in trainer.log if what == "sampling"} == set(range(15))
    assert all(step.stats.metrics["optim/ratio/max"] == pytest.approx(1, abs=1e-5) for step in steps)  # on-policy
    right, wrong = trainer.logits
    assert right - wrong > 2  # the votes taught it
    assert [step for step in range(7) if due(step, 3)] == [2, 5]
    assert not any(due(step, 0) for step in range(7))


def test_7_6_learning_rates():  # SPEC 7.6
    def rates(schedule, warmup=0, halved=0):
        rules = LearnRules(steps=4 + warmup, lr=1.0, lr_schedule=schedule, lr_warmup=warmup)
        return [learning_rate(rules, step, halved) for step in range(rules.steps)]

    cosine = [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]
    assert rates("constant") == [1, 1, 1, 1]
    assert rates("linear") == [1, 0.75, 0.5, 0.25]
    assert rates("cosine") == pytest.approx(cosine)
    assert rates("cosine", warmup=3) == pytest.approx([0.25, 0.5, 0.75, *cosine])
    assert rates("adaptive", warmup=1, halved=2) == [0.125, 0.25, 0.25, 0.25, 0.25]


def test_7_6_too_far():  # SPEC 7.6
    rules = LearnRules(steps=1, lr_schedule="adaptive", lr_max_kl=0.1, lr_max_ratio=2.0)
    cases = [(0.1, 2.0, False), (0.11, 1.0, True), (0.0, 2.1, True), (None, 1.0, True), (0.0, math.inf, True)]
    for kl, ratio, too_far in cases:
        metrics = {"optim/kl_update": kl, "optim/ratio_update": ratio}
        assert went_too_far(rules, metrics) == too_far
        assert not went_too_far(LearnRules(steps=1), metrics)
    assert not went_too_far(rules, {})  # a step without an update
    trainer = Bandit(["right", "wrong"], vote_for_right)
    with pytest.raises(UserError, match="kl: Bandit can't say how likely tokens are"):
        run(LearnRules(steps=1, kl=0.1), trainer)


def test_7_4_sampling_ahead():  # SPEC 7.4
    def overlaps(staleness):
        trainer = Bandit(["right", "wrong"], vote_for_right)
        run(LearnRules(steps=6, lr=0.5, max_staleness=staleness), trainer)
        training, overlap, lag = False, 0, 0
        for what, version in trainer.log:
            training = what == "step begins" or (training and what != "step ends")
            overlap += what == "sampling" and training
            if what == "step begins":
                trained = version
            if what == "sampling" and training:
                lag = max(lag, trained + 1 - version)
        return overlap, lag

    assert overlaps(0) == (0, 0)
    overlap, lag = overlaps(1)
    assert overlap > 0
    assert lag == 1


def test_7_4_updates_are_queued():  # SPEC 7.4
    trainer = Bandit(["right", "wrong"], vote_for_right)
    steps = run(LearnRules(steps=2, lr=0.5, loss="ppo", updates=3), trainer)
    assert trainer.updates == 6
    first = [what for what, _ in trainer.log if what != "sampling"][1:11]
    assert first[: first.index("step ends")].count("step asked for") == 3
    assert [what for what in first if what != "step asked for"] == ["step begins", "step ends"] * 3 + ["sampler"]
    # The sampler is of the last update, and every datum is in one of them.
    assert [version for what, version in trainer.log if what == "sampler"] == [0, 3]
    for step in steps:
        dealt = parts(step.data, 3)
        assert [id(datum) for part in dealt for datum in part] == list(map(id, step.data))
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert step.stats.metrics["optim/ratio/min"] < 1 < step.stats.metrics["optim/ratio/max"]
    assert parts([], 3) == []
    assert len(parts(steps[0].data[:2], 3)) == 2
    metrics = [{"optim/ratio/max": 2.0, "optim/ratio/min": 0.5, "optim/entropy": 1.0}]
    metrics += [{"optim/ratio/max": 3.0, "optim/ratio/min": 0.7, "optim/entropy": 3.0}]
    one, other = StepStats(1.0, 2.0, False, metrics[0]), StepStats(2.0, 1.0, False, metrics[1])
    told = {"optim/ratio/max": 3.0, "optim/ratio/min": 0.5, "optim/entropy": 2.0, "optim/skipped": 0.0, "optim/updates": 2.0}
    assert joined([one, other]) == StepStats(3.0, 2.0, False, told)
    assert joined([one]) == StepStats(1.0, 2.0, False, metrics[0] | {"optim/skipped": 0.0, "optim/updates": 1.0})
    fault = Fault("the gradient is not finite", steps[0].data[:1])
    bad = StepStats(math.nan, math.nan, True, metrics[0], (fault,))
    half = metrics[1] | {"optim/skipped": 0.5, "optim/updates": 2.0}
    assert joined([bad, other]) == joined([other, bad]) == StepStats(2.0, 1.0, False, half, (fault,))
    assert joined([bad, bad]).skipped
    assert joined([bad, bad]).faults == (fault, fault)
    assert joined([]) is None


def test_7_4_what_was_computed_again_is_counted_over_all():  # SPEC 7.4
    bad = StepStats(math.nan, math.nan, True, {"optim/retried": 3.0})
    good = StepStats(1.0, 1.0, False, {"optim/retried": 2.0})
    silent = StepStats(1.0, 1.0, False, {})
    assert joined([bad, good, silent]).metrics["optim/retried"] == 5.0
    assert "optim/retried" not in joined([silent, silent]).metrics


def test_7_5_guards():  # SPEC 7.5
    trainer = Bandit(["right", "wrong"], vote_for_right)
    trainer.poison = True
    before = trainer.logits.copy()
    seen = []

    async def go():
        async for step in train(
            trainer, self_play(Parallel(agents=3, max_rounds=2), batch), LearnRules(steps=9, stop_after_bad=3)
        ):
            seen.append(step)

    with pytest.raises(Stopped, match=r"3 updates in a row .* The last: loss or gradient was not finite\. Try"):
        asyncio.run(go())
    assert [step.stats.skipped for step in seen] == [True] * 3
    assert [[fault.why for fault in step.stats.faults] for step in seen] == [["loss or gradient was not finite"]] * 3
    assert np.array_equal(trainer.logits, before)
    assert {version for what, version in trainer.log if what == "sampler"} == {0}
    stats = optim_metrics(np.log([0.5, 8.0, 99.0]), np.zeros(3), np.array([1, 1, 0]))
    assert stats["optim/ratio/max"] == pytest.approx(8)
    assert stats["optim/ratio/min"] == pytest.approx(0.5)
    assert stats["optim/ratio/mean"] == pytest.approx(4.25)
    assert stats["optim/ratio/p99"] == pytest.approx(0.5 + 0.99 * 7.5)
    assert optim_metrics(NEW, OLD, np.zeros(40)) == {}


def test_debates_without_signal_make_no_update():
    trainer = Bandit(["same"], lambda ask: "N/A")
    (step,) = run(LearnRules(steps=1), trainer, Parallel(agents=2, max_rounds=2))
    assert step.stats is None
    assert step.without_signal == 8
    assert trainer.updates == 0


@pytest.mark.parametrize("lost", [4, 5, 8])
def test_a_batch_of_which_most_is_dropped_stops_training(lost):
    trainer = Bandit(["right", "wrong"], lambda ask: 1 / (int(ask.debate[-1]) >= lost) and vote_for_right(ask))

    class OneByOne:  # so that each failure costs its own debate
        def __init__(self, sampler):
            self.sampler = sampler

        async def sample(self, asks):
            return [(await answered(self.sampler, [ask]))[0] for ask in asks]

    def rollout(step, sampler):
        return self_play(Parallel(agents=3, max_rounds=2), batch)(step, OneByOne(sampler))

    async def steps():
        return [step async for step in train(trainer, rollout, LearnRules(steps=1))]

    if lost == 4:
        (step,) = asyncio.run(steps())
        assert (len(step.played.debates), len(step.played.dropped)) == (4, 4)
        return
    with pytest.raises(EngineError, match=rf"{lost} of 8 debates of a batch were dropped; .*division by zero"):
        asyncio.run(steps())

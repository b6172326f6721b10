"""``peergrad check``: gates on debates whose worth is known, and the command on a real model."""

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
import torch

from peergrad import Batcher, Parallel, Sequential
from peergrad.config import preset
from peergrad.debate.play import play_all
from peergrad.debate.protocols import Direct
from peergrad.debate.question import Question
from peergrad.debate.settings import changed
from peergrad.engines.registry import open_trainer
from peergrad.engines.scripted import Scripted
from peergrad.learn.train import LearnRules
from peergrad.learn.trainer import Fault
from peergrad.measure.gates import Sample, gates
from peergrad.reward.rewards import RewardRules
from peergrad.reward.streams import Stream
from peergrad.runs.check import check
from peergrad.runs.plan import plan_run
from peergrad.runs.watch import Watcher
from peergrad.tasks.base import Questions
from peergrad.tasks.open import regrade
from tests.bandit import Bandit
from tests.commands import peergrad
from tests.helpers import full, short

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
QUESTIONS = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1), "boxed", "sums") for i in range(40)]


def sample(protocol, script, questions=QUESTIONS, dropped=0, context=100_000, tokens=True):
    def played(kind, prefix):
        async def all_of_them():
            async with Batcher(Scripted(script, tokens=tokens)) as sampler:
                return (await play_all(kind, questions, sampler, prefix=prefix)).debates

        return asyncio.run(all_of_them())

    answers = played(Direct(agents=3, temperature=0.7), "direct/")
    return Sample(answers, played(protocol, "debate/"), dropped, 256, context)


def checked(made, task=None, **rules):
    found = gates(made, task or Questions("sums", QUESTIONS, regrade), LearnRules(steps=1, reward=RewardRules(**rules)))
    return {gate.name.split(",")[0].split(" (")[0]: gate for gate in found}


def able(right=0.5, judge=1.0, form=short, votes=True, wrong=lambda agent: -1):
    """A debater who is right with a chance, and votes for the right one of two with another chance."""

    def say(ask):
        rng = random.Random(f"{ask.debate} {ask.agent} {ask.turn}")
        truth = int(ask.debate.rpartition("q")[2]) + 1
        knows = [random.Random(f"{ask.debate} {agent} {agent}").random() < right for agent in range(5)]
        said = f"\\boxed{{{truth if (knows[ask.agent] if ask.turn < 5 else rng.random() < right) else wrong(ask.agent)}}}"
        if not ask.stop:
            return said
        others = [agent for agent in range(5) if agent != ask.agent]
        rng.shuffle(others)
        a, b = others[:2]
        if (knows[b] > knows[a]) == (rng.random() < judge):
            a, b = b, a
        return form(f"Agent {a} > Agent {b}" if ask.seen and votes else "N/A", said)

    return say


def worse_in_debate(ask):
    return able(right=0.2 if ask.stop else 0.9)(ask)


def by_seat(ask):
    said = able()(ask)
    a, b = (ask.agent + 1) % 5, (ask.agent + 2) % 5
    return re.sub("Agent . > Agent .", f"Agent {a} > Agent {b}", said)


FIVE = Parallel(agents=5, max_rounds=2)


def test_a_model_that_can_debate_passes():
    found = checked(sample(FIVE, able()))
    assert {name: gate.verdict for name, gate in found.items()} == dict.fromkeys(found, "pass")
    assert list(found) == [
        "prompts fit the context",
        "solves alone",
        "first answers in debate",
        "right at least once in 5 agents of a debate",
        "turns with a valid vote",
        "votes that are copied from the prompt or the seats",
        "votes for the right one of a right and a wrong solution",
        "judges are held to somebody else's votes",
        "debates with signal",
    ]
    assert found["solves alone"].interval.value == pytest.approx(0.5, abs=0.12)
    assert not any(gate.advice for gate in found.values())


@pytest.mark.parametrize(
    ("made", "gate", "advice"),
    [
        (lambda: sample(FIVE, able(right=0.0)), "solves alone", "easier questions"),
        (lambda: sample(FIVE, able(right=0.0)), "right at least once in 5 agents of a debate", "warm-start"),
        (lambda: sample(FIVE, lambda _: ""), "turns with a valid vote", "Only 0% of the replies keep to the form: teach"),
        (lambda: sample(FIVE, able(votes=False)), "turns with a valid vote", "Replies can be read, but hold no valid votes"),
        (lambda: sample(FIVE, lambda _: "x" * 5000), "turns with a valid vote", "100% of the replies are cut off: raise"),
        (lambda: sample(FIVE, able(judge=0.2)), "votes for the right one of a right and a wrong solution", "teach noise"),
        (lambda: sample(FIVE, worse_in_debate), "first answers in debate", "--protocol ballot"),
        (lambda: sample(FIVE, by_seat), "votes that are copied from the prompt or the seats", "--protocol ballot"),
        (lambda: sample(FIVE, able(), context=300), "prompts fit the context", "Fewer rounds"),
        (lambda: sample(FIVE, able(), dropped=2), "prompts fit the context", "Fewer rounds"),
        (lambda: sample(FIVE, able(votes=False)), "judges are held to somebody else's votes", "In no debate"),
        (lambda: sample(Parallel(agents=5, max_rounds=1), able()), "turns with a valid vote", "2 rounds"),
    ],
)
def test_each_gate_can_fail_with_its_advice(made, gate, advice):
    found = checked(made())[gate]
    assert found.verdict == "fail"
    assert advice in found.advice


def test_three_agents_can_learn_to_answer_but_not_to_judge():
    made = sample(Parallel(agents=3, max_rounds=2), able())
    found = checked(made)["judges are held to somebody else's votes"]
    assert (found.verdict, "--agents 4" in found.advice) == ("warn", True)
    assert checked(made, lambda_gen=0.0)["judges are held to somebody else's votes"].verdict == "fail"


def test_nothing_varies_without_the_format_stream():
    found = checked(sample(FIVE, able(votes=False)), format_penalty=False)
    assert found["debates with signal"].verdict == "fail"
    assert found["debates with signal"].interval.value == 0


def test_what_can_not_be_measured_is_not_failed():
    found = checked(sample(FIVE, able(right=1.0)))["votes for the right one of a right and a wrong solution"]
    assert (found.verdict, found.measured) == ("unknown", "no such vote")
    open_ended = [Question(q.id, q.text) for q in QUESTIONS]
    names = checked(sample(FIVE, able(), open_ended), Questions("open", open_ended, regrade))
    assert list(names) == [
        "prompts fit the context",
        "turns with a valid vote",
        "votes that are copied from the prompt or the seats",
        "judges are held to somebody else's votes",
        "debates with signal",
    ]
    assert checked(sample(FIVE, able(), tokens=False))["prompts fit the context"].verdict == "unknown"


def test_9_4_debating_must_not_cost_what_can_be_done_alone():  # SPEC 9.4
    found = checked(sample(FIVE, worse_in_debate))["first answers in debate"]
    assert found.interval.value == pytest.approx(-0.7, abs=0.15)
    assert checked(sample(FIVE, able()))["first answers in debate"].interval.value == pytest.approx(0, abs=0.1)
    # Answers are right in debate alone: pass@k is measured there, and copied votes count.
    wrong_alone = checked(sample(FIVE, lambda ask: able()(ask) if ask.stop else "no"))
    assert wrong_alone["solves alone"].verdict == "fail"
    assert wrong_alone["right at least once in 5 agents of a debate"].verdict == "pass"
    copied = checked(sample(FIVE, by_seat))["votes that are copied from the prompt or the seats"]
    assert (copied.verdict, copied.interval.value) == ("fail", 1.0)
    own = checked(sample(FIVE, by_seat), reward="tests.runs.test_check:no_votes")
    assert own["votes that are copied from the prompt or the seats"].verdict == "warn"


def no_votes(debate, tally, truth):
    return [Stream("none", "turn", (None,) * len(debate.turns))]


def agreeing(ask):
    """Wrong in a way of its own, and then no judge of others."""
    own_is_right = random.Random(f"{ask.debate} {ask.agent} {ask.turn}").random() < 0.5
    return able(judge=1.0 if own_is_right else 0.5, wrong=lambda agent: -1 - agent)(ask)


def test_9_4_votes_that_are_agreement_are_told_of():  # SPEC 9.4
    name = "the same"
    knowing = checked(sample(FIVE, able(wrong=lambda agent: -1 - agent)))
    assert (knowing[name].verdict, knowing[name].interval.value) == ("pass", 1.0)
    found = checked(sample(FIVE, agreeing))
    assert found["votes for the right one of a right and a wrong solution"].verdict == "pass"
    assert found[name].interval.low < 0.5 < found[name].interval.high
    assert checked(sample(FIVE, able(judge=0.2, wrong=lambda agent: -1 - agent)))[name].verdict == "warn"


def test_few_questions_are_unsure():
    few = checked(sample(FIVE, able(judge=0.6), QUESTIONS[:6]))
    assert few["votes for the right one of a right and a wrong solution"].unsure
    assert not checked(sample(FIVE, able()))["solves alone"].unsure


def test_a_classic_run_has_no_judge_stream():
    made = sample(Sequential(agents=3, max_rounds=2), able(form=full, votes=False))
    found = checked(made, reward="win_rate")["judges are held to somebody else's votes"]
    assert (found.verdict, found.measured) == ("pass", "no judge stream")


def test_9_4_where_the_majority_decides_votes_are_not_looked_at():  # SPEC 9.4
    made = sample(Direct(agents=5, temperature=0.7), able(votes=False))
    assert "turns with a valid vote" in checked(made)
    found = checked(made, votes="majority")
    assert "turns with a valid vote" not in found
    assert {gate.verdict for gate in found.values()} == {"pass"}, found


# One update is really made


def bandit(votes=True):
    def vote(ask):
        first, second = (agent for agent in range(3) if agent != ask.agent)
        return f"Agent {first} > Agent {second}" if ask.seen and votes else "N/A"

    return Bandit(["one", "other"], vote)


def checked_with(trainer, questions=6, **more):
    config = changed(
        preset("demo-parallel"), {"model": "bandit", "batch": 4, "lr": 0.25, "loss": "ppo", "warm_steps": 0} | more, "test"
    )
    found = asyncio.run(check(config, questions, Watcher(), load=lambda *_: trainer))
    gate = found.gates[-1]
    assert gate.name == "update is finite"
    return found, gate


@pytest.mark.parametrize(("questions", "debates"), [(6, 4), (3, 3)])
def test_an_update_is_made_as_the_run_would_make_it(questions, debates):
    trainer = bandit()
    found, gate = checked_with(trainer, questions)
    assert gate.verdict == "pass"
    assert gate.measured.startswith("loss ")
    assert "gradient norm " in gate.measured
    (few, _, nothing), (data, loss, lr) = trainer.asked  # the first sets things up
    assert (len(few), nothing) == (1, 0.0)
    assert (loss, lr) == ("ppo", 0.25)
    assert len({datum.debate for datum in data}) == debates
    assert trainer.logits.any()  # it is a real one
    assert [what for what, _ in trainer.log if what == "sampler"] == ["sampler"]
    assert trainer.log.index(("step begins", 0)) > max(i for i, one in enumerate(trainer.log) if one[0] == "sampling")
    assert found.forecast.training_s > 0


def test_an_update_that_is_not_finite_fails_the_check():
    trainer = bandit()
    trainer.lost = lambda number, data: (Fault("the gradient is not finite, first in model.layers.3"),)
    trainer.again = lambda number: 2
    found, gate = checked_with(trainer)
    assert (gate.verdict, found.passed) == ("fail", False)
    assert gate.measured.startswith("loss nan, gradient norm nan; 2 micro-batches were computed again")
    assert "An update was skipped: the gradient is not finite, first in model.layers.3." in gate.advice
    assert "--dtype float32" in gate.advice
    assert found.forecast.trained > 0


def test_one_of_several_updates_that_is_not_finite_fails_it_too():
    trainer = bandit()
    trainer.lost = lambda number, data: () if number == 3 else None
    _, gate = checked_with(trainer, updates=3)
    assert len(trainer.asked) == 4
    assert gate.verdict == "fail"
    assert "An update was skipped: loss or gradient was not finite." in gate.advice


def test_where_nothing_has_signal_nothing_is_known_of_updates():
    trainer = bandit(votes=False)
    found, gate = checked_with(trainer, format_penalty=False)
    assert (gate.verdict, gate.measured) == ("unknown", "no debate with signal")
    assert trainer.asked == []
    assert (found.forecast.trained, found.forecast.training_s) == (0, 0)  # a run would train on nothing


def test_the_forecast_leaves_out_debates_without_signal():
    def some_vote(ask):
        first, second = (agent for agent in range(3) if agent != ask.agent)
        return f"Agent {first} > Agent {second}" if ask.seen and ask.debate in voting else "N/A"

    voting = set()
    rules = {"model": "bandit", "batch": 4, "center": "group", "format_penalty": False, "warm_steps": 0}
    config = changed(preset("demo-parallel"), rules, "test")
    voting |= {f"check-debates/{question.id}" for question in plan_run(config).batch(0, [])[:3]}
    trainer = Bandit(["one", "other"], some_vote)
    found = asyncio.run(check(config, 4, Watcher(), load=lambda *_: trainer))
    data = trainer.asked[-1][0]
    assert {datum.debate for datum in data} == voting
    assert found.forecast.trained == sum(map(len, data)) * config.learn.steps


def test_a_real_model_whose_weights_are_not_finite():
    class Broken:
        """The real engine; a weight of its adapter breaks once the debates are played."""

        def __init__(self, setup):
            self.local = open_trainer(setup)

        def __getattr__(self, name):
            return getattr(self.local, name)

        async def step(self, data, loss, lr):
            next(iter(self.local._lora.weights.values())).data.view(-1)[0] = torch.nan
            return await self.local.step(data, loss, lr)

    config = changed(preset("demo-parallel"), {"model": str(PARROT), "threads": 1, "batch": 2, "warm_steps": 0}, "test")
    for load, verdict in ((open_trainer, "pass"), (Broken, "fail")):
        found = asyncio.run(check(config, 2, Watcher(), load=load))
        assert found.gates[-1].verdict == verdict
    assert "skipped" in found.gates[-1].advice


@pytest.mark.parametrize(("warm_from", "known"), [(None, ["cross_entropy"] * 2), ("own", ["sampler", "cross_entropy"])])
def test_what_is_checked_is_the_model_after_the_warm_start(warm_from, known):
    done = []

    class Told:
        """The real engine; what is asked of it is written down."""

        def __init__(self, setup):
            self.local = open_trainer(setup)

        def __getattr__(self, name):
            return getattr(self.local, name)

        async def sampler(self):
            done.append("sampler")
            return await self.local.sampler()

        async def step(self, data, loss, lr):
            done.append(loss)
            return await self.local.step(data, loss, lr)

    rules = {"model": str(PARROT), "threads": 1, "batch": 2, "warm_steps": known.count("cross_entropy"), "warm_sample": 4}
    config = changed(preset("demo-parallel"), rules | ({"warm_from": warm_from} if warm_from else {}), "test")
    found = asyncio.run(check(config, 2, Watcher(), load=Told))
    assert found.gates
    assert done[: len(known) + 1] == [*known, "sampler"]
    assert "cross_entropy" not in done[len(known) :]


def test_the_command_fails_a_model_that_can_not_debate(tmp_path):
    command = ["check", "--preset", "demo-parallel", "--model", PARROT, "--threads", 1]
    made = peergrad(*command, "--agents", 4, "--questions", 4, cwd=tmp_path)
    assert made.returncode == 1, made.stderr
    assert "fail" in made.stdout
    assert "fail: turns with a valid vote, where one is due." in made.stdout
    assert "4 questions, 4 agents" in made.stdout
    assert "The planned run, 10 steps of 4 debates: about" in made.stdout
    assert "update is finite" in made.stdout
    assert not list(tmp_path.iterdir())
    made = peergrad(*command, "--questions", 2, "--json", cwd=tmp_path)
    found = json.loads(made.stdout)
    assert found["passed"] is False
    assert {gate["verdict"] for gate in found["gates"]} <= {"pass", "warn", "fail", "unknown"}
    assert found["forecast"]["trained"] > found["forecast"]["sampled"] > 0
    made = peergrad(*command, "--questions", 1, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (2, "peergrad: questions: 1 is not possible; give at least 2\n")

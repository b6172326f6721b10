"""``peergrad check``: gates on debates whose worth is known, and the command on a real model."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from peergrad import Batcher, Parallel, Sequential
from peergrad.debate.play import play_all
from peergrad.debate.protocols import Direct
from peergrad.debate.types import Question
from peergrad.engines.scripted import Scripted
from peergrad.learn.train import LearnRules
from peergrad.measure.preflight import Sample, gates
from peergrad.reward.rewards import RewardRules
from peergrad.tasks.files import Questions
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
    found = gates(made, task or Questions("sums", QUESTIONS), LearnRules(steps=1, reward=RewardRules(**rules)))
    return {gate.name.split(",")[0].split(" (")[0]: gate for gate in found}


def able(right=0.5, judge=1.0, form=short, votes=True):
    """A debater who is right with a chance, and votes for the right one of two with another chance."""

    def say(ask):
        rng = random.Random(f"{ask.debate} {ask.agent} {ask.turn}")
        truth = int(ask.debate.rpartition("q")[2]) + 1
        knows = [random.Random(f"{ask.debate} {agent} {agent}").random() < right for agent in range(5)]
        said = f"\\boxed{{{truth if (knows[ask.agent] if ask.turn < 5 else rng.random() < right) else -1}}}"
        if not ask.stop:
            return said
        others = [agent for agent in range(5) if agent != ask.agent]
        rng.shuffle(others)
        a, b = others[:2]
        if (knows[b] > knows[a]) == (rng.random() < judge):
            a, b = b, a
        return form(f"Agent {a} > Agent {b}" if ask.seen and votes else "N/A", said)

    return say


FIVE = Parallel(agents=5, max_rounds=2)


def test_a_model_that_can_debate_passes():
    found = checked(sample(FIVE, able()))
    assert {name: gate.verdict for name, gate in found.items()} == dict.fromkeys(found, "pass")
    assert list(found) == [
        "prompts fit the context",
        "solves alone",
        "right at least once in 3 answers",
        "turns with a valid vote",
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
        (lambda: sample(FIVE, able(right=0.0)), "right at least once in 3 answers", "warm-start"),
        (lambda: sample(FIVE, lambda _: "hm"), "turns with a valid vote", "Only 0% of the replies keep to the form: teach"),
        (lambda: sample(FIVE, able(votes=False)), "turns with a valid vote", "Replies can be read, but hold no valid votes"),
        (lambda: sample(FIVE, lambda _: "x" * 5000), "turns with a valid vote", "100% of the replies are cut off: raise"),
        (lambda: sample(FIVE, able(judge=0.2)), "votes for the right one of a right and a wrong solution", "teach noise"),
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
    names = checked(sample(FIVE, able(), open_ended), Questions("open", open_ended))
    assert list(names) == [
        "prompts fit the context",
        "turns with a valid vote",
        "judges are held to somebody else's votes",
        "debates with signal",
    ]
    assert checked(sample(FIVE, able(), tokens=False))["prompts fit the context"].verdict == "unknown"


def test_few_questions_are_unsure():
    few = checked(sample(FIVE, able(judge=0.6), QUESTIONS[:6]))
    assert few["votes for the right one of a right and a wrong solution"].unsure
    assert not checked(sample(FIVE, able()))["solves alone"].unsure


def test_a_classic_run_has_no_judge_stream():
    made = sample(Sequential(agents=3, max_rounds=2), able(form=full, votes=False))
    found = checked(made, reward="win_rate")["judges are held to somebody else's votes"]
    assert (found.verdict, found.measured) == ("pass", "no judge stream")


def test_the_command_fails_a_model_that_can_not_debate(tmp_path):
    command = [sys.executable, "-m", "peergrad", "check", "--preset", "demo", "--model", str(PARROT), "--threads", "1"]
    made = subprocess.run(
        [*command, "--agents", "4", "--questions", "4"], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert made.returncode == 1, made.stderr
    assert "fail" in made.stdout
    assert "fail: turns with a valid vote, where one is due." in made.stdout
    assert "4 questions, 4 agents" in made.stdout
    assert "The planned run, 10 steps of 4 debates: about" in made.stdout
    assert not list(tmp_path.iterdir())
    made = subprocess.run(
        [*command, "--questions", "2", "--json"], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    found = json.loads(made.stdout)
    assert found["passed"] is False
    assert {gate["verdict"] for gate in found["gates"]} <= {"pass", "warn", "fail", "unknown"}
    assert found["forecast"]["trained"] > found["forecast"]["sampled"] > 0
    made = subprocess.run([*command, "--questions", "1"], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (2, "peergrad: questions: 1 is not possible; give at least 2\n")

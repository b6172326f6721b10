"""``peergrad eval`` and ``compare``: what is measured, that it goes on, that it refuses what it must."""

import asyncio
import contextlib
import json
import math
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from peergrad import EngineError, UserError
from peergrad.config import EvalConfig, preset, with_protocol
from peergrad.debate.protocols import Ballot
from peergrad.debate.question import Question
from peergrad.debate.settings import changed
from peergrad.engines.scripted import Scripted
from peergrad.measure.outcome import compared
from peergrad.runs.evaluation import EvalFolder, evaluate, plan
from peergrad.runs.models import ModelRef, model_ref
from peergrad.runs.results import read_result
from peergrad.runs.training import train_run
from peergrad.runs.watch import Watcher
from peergrad.tasks.arithmetic import arithmetic
from peergrad.tasks.base import TIMED_OUT, Questions
from peergrad.tasks.open import regrade
from peergrad.terminal.tables import result_text
from tests.commands import peergrad
from tests.helpers import Choosing, short

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
PEERGRAD = [sys.executable, "-m", "peergrad"]
TASK = arithmetic(3, count=30, split="eval")  # two-digit sums: no two are alike
RIGHT = {TASK[index].id: int(TASK[index].answer) for index in range(30)}


class Nobody(Watcher):
    def __init__(self):
        self.begun, self.said = [], []

    def say(self, sentence):
        self.said.append(sentence)

    warn = say

    def begin(self, phase, debates, at=None):
        self.begun.append((phase, debates))


def knows(ask):
    """Right 4 times of 10 alone, and more often after hearing others; votes for those who are right, mostly."""
    question = ask.debate.rpartition("/")[2]
    rng = random.Random(f"{ask.debate} {ask.agent} {ask.turn}")
    answer = RIGHT[question] if rng.random() < (0.4 if ask.seen == 0 else 0.7) else RIGHT[question] + rng.randint(1, 3)
    said = f"It is {'well ' * rng.randint(0, 30)}\\boxed{{{answer}}}."
    if not ask.stop:
        return said
    a, b = [agent for agent in range(3) if agent != ask.agent][:2]
    return short(f"Agent {a} > Agent {b}" if ask.seen else "N/A", said)


def config(**more):
    return changed(EvalConfig(), {"model": "scripted", "questions": 20, "max_rounds": 2, "agents": 3} | more, "test")


def measured(out, sampler, watch=None, **more):
    made = plan(config(**more), TASK)

    async def sampler_of(_):
        sampler.task = asyncio.current_task()
        return sampler

    return asyncio.run(evaluate(made, out, watch or Nobody(), result_text, sampler_of))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("eval") / "out"
    return measured(out, Scripted(knows)), out


def test_all_that_is_promised_is_there(found):
    result, out = found
    assert len(result["questions"]) == 20
    ways = set(result["accuracy"])
    assert ways >= {"direct/correct", "direct/pass@3", "direct/avg@3", "direct/cons@3", "direct/majority", "alone/majority"}
    assert ways >= {"debate/vote_after_round_1", "debate/vote_after_round_2", "debate/correct", "debate/winner"}
    shares = set(result["shares"])
    assert shares >= {"votes/accuracy", "flips/right_to_wrong", "flips/wrong_to_right", "alone/flips/wrong_to_right"}
    assert shares >= {"bias/seat/0", "bias/persona/Devil's Advocate", "bias/longer", "bias/first", "replies/readable"}
    assert shares >= {"diversity/direct", "diversity/debate"}
    assert result["metrics"]["eval/direct/arithmetic/correct"] == result["accuracy"]["direct/correct"][0]
    assert result["metrics"]["eval/debate/arithmetic/cons@3"] == result["accuracy"]["debate/vote_after_round_2"][0]
    for value, low, high in result["accuracy"].values():
        assert 0 <= low <= value <= high <= 1
    assert result == json.loads((out / "result.json").read_text())
    table = (out / "result.txt").read_text()
    for title in ("majority vote, equal cost", "self-correction, equal cost", "winner by peer votes", "vote after round 2"):
        assert title in table
    assert "took 100" in table or "took 99" in table


def test_the_majority_vote_costs_what_the_debate_costs(found):
    result, _ = found
    tokens = result["tokens"]
    assert tokens["direct/majority"] == pytest.approx(tokens["debate/correct"], rel=0.05)
    assert tokens["alone/majority"] == pytest.approx(tokens["debate/correct"], rel=0.05)
    # As many answers as it takes: a debate's prompts are long.
    assert tokens["debate/correct"] > 5 * tokens["direct/correct"]


def test_cost_may_mean_sampled_tokens(tmp_path):
    result = measured(tmp_path / "out", Scripted(knows), cost="sampled")
    tokens = result["tokens"]
    assert tokens["direct/majority"] == pytest.approx(tokens["debate/correct"], rel=0.05)
    assert tokens["debate/correct"] < 6 * 400
    assert len((tmp_path / "out" / "debates" / "samples.jsonl").read_text().splitlines()) < 20 * 20


def test_numbers_are_those_of_the_kept_debates(found):
    """Everything is recomputed here from the files, by other code."""
    result, out = found
    debates = EvalFolder(out).debates("debate")
    final, winners = [], []
    for name in result["questions"]:
        debate = debates[f"debate/{name}"]
        answers = [int(turn.text.split("boxed{")[1].split("}")[0]) for turn in debate.turns]
        right = [answer == RIGHT[name] for answer in answers]
        final.append(sum(right[3:]) / 3)
        wins = [0, 0, 0]
        for turn in debate.turns[3:]:
            wins[next(agent for agent in range(3) if agent != turn.agent)] += 1
        # 0 is voted for by 1 and 2, 1 by 0: win rates 1, 1/2, 0
        assert wins == [2, 1, 0]
        winners.append(right[3])
    assert result["accuracy"]["debate/correct"][0] == pytest.approx(sum(final) / 20)
    assert result["accuracy"]["debate/winner"][0] == pytest.approx(sum(winners) / 20)
    gained = result["difference"]["debate/correct"][0]
    both = result["accuracy"]["debate/correct"][0] - result["accuracy"]["direct/majority"][0]
    assert gained == pytest.approx(both)


class Mortal:
    """Answers so many asks, then ends the evaluation as a signal would."""

    def __init__(self, life):
        self.life, self.inner = life, Scripted(knows)

    async def sample(self, asks):
        self.life -= len(asks)
        if self.life < 0:
            self.task.cancel()
            await asyncio.sleep(60)
        return await self.inner.sample(asks)


@pytest.mark.parametrize("life", [0, 20, 90, 150, 300, 700])
def test_it_goes_on_where_it_was(found, tmp_path, life):
    out, sampler = tmp_path / "out", Mortal(life)
    with contextlib.suppress(asyncio.CancelledError):
        measured(out, sampler)
    part = next(iter(sorted((out / "debates").glob("*.jsonl"))), None)
    if part:  # and the last line is torn
        part.write_bytes(part.read_bytes()[:-7])
    watch, rest = Nobody(), Scripted(knows)
    result = measured(out, rest, watch)
    whole = found[0]
    assert result["values"] == whole["values"]
    assert result["counts"] == whole["counts"]
    if life >= 300:
        assert ("direct", 20) not in watch.begun
    assert measured(out, Mortal(0)) == result  # finished: nothing is asked


def test_what_the_world_drops_is_left_out_and_counted(tmp_path):
    class Flaky(Scripted):
        async def sample(self, asks):
            answers = await super().sample(asks)
            return [
                EngineError("no answer") if ask.debate.endswith(("/eval-3", "/eval-7")) else answer
                for ask, answer in zip(asks, answers, strict=True)
            ]

    result = measured(tmp_path / "out", Flaky(knows))
    assert len(result["questions"]) == 18
    assert {name.rpartition("/")[2] for name in result["dropped"]} == {"eval-3", "eval-7"}
    assert "2 of 20 questions are left out" in (tmp_path / "out" / "result.txt").read_text()

    class Silent:
        async def sample(self, asks):
            raise ConnectionError("gone")

    with pytest.raises(EngineError, match="20 of 20 debates were dropped; the first because: Silent failed"):
        measured(tmp_path / "other", Silent())


def test_other_modes(tmp_path):
    direct = measured(tmp_path / "direct", Scripted(knows), mode="direct", samples=5)
    assert set(direct["accuracy"]) == {
        "direct/correct",
        "direct/format",
        "direct/pass@5",
        "direct/avg@5",
        "direct/cons@5",
        "direct/strict_cons@5",
    }
    assert not (tmp_path / "direct" / "debates" / "debate.jsonl").exists()

    made = plan(config(mode="role-averaged", opponent="other"), TASK)
    wrong = Scripted(lambda ask: short("Agent 0 = Agent 1", "\\boxed{-1}"))

    async def sampler_of(who):
        return wrong if who == ModelRef("other") else Scripted(knows)

    result = asyncio.run(evaluate(made, tmp_path / "roles", Nobody(), result_text, sampler_of))
    assert result["accuracy"]["role-averaged/opponents"][0] == 0
    assert 0.4 < result["accuracy"]["role-averaged/correct"][0] < 0.95
    assert len((tmp_path / "roles" / "debates" / "seats.jsonl").read_text().splitlines()) == 60
    with pytest.raises(UserError, match="opponent: base is the model itself"):
        plan(config(mode="role-averaged"), TASK)


def test_a_ballot_has_one_round_of_answers_and_nobody_corrects_itself(tmp_path):
    ballot = with_protocol(config(), Ballot(agents=3))
    made = plan(ballot, TASK)
    sampler = Choosing(knows, lambda ask, options: (0.6, 0.4))

    async def sampler_of(_):
        return sampler

    result = asyncio.run(evaluate(made, tmp_path / "out", Nobody(), result_text, sampler_of))
    ways = set(result["accuracy"])
    assert {"direct/majority", "debate/vote_after_round_1", "debate/winner"} <= ways
    assert not ways & {"debate/vote_after_round_2", "alone/majority"}
    assert "ballot debate of 3 agents, 2 rounds" in (tmp_path / "out" / "result.txt").read_text()


def test_an_engine_that_counts_nothing(tmp_path):
    result = measured(tmp_path / "out", Scripted(knows, tokens=False))
    assert "direct/majority" not in result["accuracy"]
    assert "debate/winner" in result["accuracy"]
    assert "nothing is said about equal cost" in (tmp_path / "out" / "result.txt").read_text()


def test_it_refuses_what_is_not_its_own(found, tmp_path):
    out = tmp_path / "out"
    measured(out, Scripted(knows), questions=5)
    with pytest.raises(UserError, match="has other questions"):
        measured(out, Scripted(knows), questions=6)
    with pytest.raises(UserError, match=r"max_tokens: the evaluation in .* has 1024, not 9"):
        measured(out, Scripted(knows), questions=5, max_tokens=9)
    measured(out, Scripted(knows), questions=5, threads=3)  # how fast is not what
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(UserError, match=r"holds something else \(thesis.txt\)"):
        measured(tmp_path / "mine", Scripted(knows))
    (out / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json: is damaged"):
        measured(out, Scripted(knows), questions=5)
    copied = tmp_path / "copied"  # another evaluation's debates are not taken for one's own
    shutil.copytree(out, copied)
    for name in ("eval.json", "result.json", "result.txt", "time.jsonl"):
        (copied / name).unlink()
    with pytest.raises(UserError, match=r"holds something else"):
        measured(copied, Scripted(knows), questions=5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("hashes"),
        lambda r: r["values"].update({"x/y": [1]}),
        lambda r: r["values"].update({"x/y": ["a"] * 20}),
        lambda r: r.update(questions=[{}] * 20),
        lambda r: r.update(settings={}),
        lambda r: r["accuracy"].update({"x/[/b]": "no"}),
        lambda r: r.update(times={"x": {}}),
    ],
)
def test_a_damaged_result_is_a_sentence(found, tmp_path, damage):
    result = json.loads(json.dumps(found[0]))
    damage(result)
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="is no result of `peergrad eval`, or damaged"):
        read_result(tmp_path)


def test_what_a_result_says_is_no_markup(found, tmp_path):
    result = json.loads(json.dumps(found[0]))
    for part in ("accuracy", "values"):
        result[part]["x/[/b] [bold]\x1b[31m"] = result[part]["direct/correct"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    text = result_text(read_result(tmp_path))
    assert "[/b] [bold]" in text
    assert "\x1b" not in text


def test_only_the_same_questions_are_compared(found, tmp_path):
    first, second = found[0], json.loads(json.dumps(found[0]))
    assert len(compared(first, second)["questions"]) == 20
    second["hashes"][0] = "another question of the same name"
    assert compared(first, second)["questions"] == first["questions"][1:]


def test_one_that_always_fails_does_not_hold_up_the_others_when_gone_on_with(tmp_path):
    class Flaky(Scripted):
        async def sample(self, asks):
            answers = await super().sample(asks)
            return [EngineError("too long") if "/eval-3" in a.debate else b for a, b in zip(asks, answers, strict=True)]

    out = tmp_path / "out"
    whole = measured(out, Flaky(knows))
    (out / "result.json").unlink()
    (out / "debates" / "alone.jsonl").unlink()
    assert measured(out, Flaky(knows))["values"] == whole["values"]


def test_questions_without_an_answer_or_twice_are_left_out():
    questions = [Question(f"q{i}", f"What is {i}?", None if i == 1 else str(i % 3), "boxed", "x") for i in range(4)]
    questions.append(Question("again", "What is 2?", "2", "boxed", "x"))
    made = plan(config(questions=10), Questions("x", questions, regrade))
    assert [question.id for question in made.questions] == ["q0", "q2", "q3"]
    assert made.notes == (
        "1 questions have no answer and are left out",
        "1 questions repeat others and are left out",
        "there are 3 questions to ask, not 10",
    )
    made = plan(config(questions=10), Questions("x", questions, regrade), {("What is 0?", "0")})
    assert [question.id for question in made.questions] == ["q2", "q3"]
    with pytest.raises(UserError, match="have no answers"):
        plan(config(), Questions("x", questions[1:2], regrade))
    with pytest.raises(UserError, match="were all trained on"):
        plan(config(), Questions("x", questions[:1], regrade), {("What is 0?", "0")})


def test_a_time_out_is_neither_right_nor_wrong(tmp_path):
    task = Questions("arithmetic", TASK.questions[:5], lambda question, solution: TIMED_OUT)
    made = plan(config(questions=5), task)

    async def sampler_of(_):
        return Scripted(knows)

    result = asyncio.run(evaluate(made, tmp_path / "out", Nobody(), result_text, sampler_of))
    assert result["accuracy"] == {}
    late, of = result["shares"]["grading/timed_out"][0], result["shares"]["grading/timed_out"][3]
    assert late == 1
    assert of > 5 * (1 + 6 + 3)  # direct answers, debates, and all that was bought
    assert "could not be graded in time" in (tmp_path / "out" / "result.txt").read_text()


def test_a_disk_that_refuses_is_a_sentence(tmp_path, monkeypatch):
    def full(path, line, **_):
        raise EngineError(f"{path}: can't be written (No space left on device)")

    monkeypatch.setattr("peergrad.runs.files.append", full)
    with pytest.raises(EngineError, match="No space left"):
        measured(tmp_path / "out", Scripted(knows))


EVAL = ("eval", "--model", PARROT, "--threads", 1, "--max-rounds", 2, "--max-tokens", 24, "--level", 3, "--questions", 4)


def test_the_commands_on_a_real_model(tmp_path):
    """Killed for good while it plays, and gone on with; then compared with itself under another seed."""
    first = tmp_path / "a"
    killed = peergrad(*EVAL, "--out", first, killed_at=first / "debates" / "debate.jsonl")
    assert killed.returncode == -signal.SIGKILL
    assert not (first / "result.json").exists()
    done = peergrad(*EVAL, "--out", first)
    assert done.returncode == 0, done.stderr
    assert "majority vote, equal cost" in done.stdout
    assert "direct: 4 to play" not in done.stdout
    other = peergrad(*EVAL, "--out", tmp_path / "b", "--seed", 1)
    assert other.returncode == 0, other.stderr
    again = peergrad(*EVAL, "--out", tmp_path / "c")
    assert again.returncode == 0
    assert read_result(tmp_path / "c")["values"] == read_result(first)["values"]
    table = peergrad("compare", first, tmp_path / "b")
    assert (table.returncode, table.stderr) == (0, "")
    assert "4 questions in both" in table.stdout
    rows = json.loads(peergrad("compare", first, tmp_path / "b", "--json").stdout)["rows"]
    assert set(rows) == set(read_result(first)["values"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("eval", "--model", "no-such-model", "--questions", "2"), "no-such-model"),
        (("eval", "--task", "nowhere.jsonl"), "nowhere.jsonl"),
        (("eval", "--questions", "-1"), "questions: -1"),
        (("eval", "--sample-temperature", "0"), "sample_temperature"),
        (("eval", "--samples", "0"), "samples: 0"),
        (("compare", "a", "b"), "there is no result"),
        (
            ("rescore", str(Path(__file__).parent.parent / "golden" / "worked.jsonl"), "--lambda-gen", "nan"),
            "lambda_gen: nan",
        ),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, arguments, says):
    made = peergrad(*arguments, cwd=tmp_path)
    assert made.returncode == 2
    assert says in made.stderr
    assert "Traceback" not in made.stderr
    assert len(made.stderr.strip().splitlines()) == 1


def test_players(tmp_path):
    small = {"model": str(PARROT), "steps": 1, "batch": 3, "rank": 4, "threads": 1, "warm_steps": 0, "max_tokens": 16}
    settings = changed(
        preset("demo-parallel"), small | {"out": tmp_path / "run", "eval_questions": 0, "eval_debates": 0}, "test"
    )
    run = asyncio.run(train_run(settings))
    newest = run.path / "checkpoints" / "step_000001"
    assert model_ref(str(run.path)) == ModelRef(str(PARROT), newest)
    assert model_ref(str(newest)) == ModelRef(str(PARROT), newest)
    assert model_ref("smollm2") == ModelRef("smollm2")
    shown = peergrad("export", run.path, "--to", tmp_path / "adapter")
    assert shown.returncode == 0, shown.stderr
    assert model_ref(str(tmp_path / "adapter")) == ModelRef(str(PARROT), tmp_path / "adapter")
    made = peergrad("eval", "--model", run.path, "--mode", "role-averaged", "--questions", 2, "--threads", 1)
    assert made.returncode == 0, made.stderr
    assert "policy, over all seats" in made.stdout
    (where,) = (run.path / "evals").iterdir()
    result = read_result(where)
    assert result["base"] == str(PARROT)
    assert len(result["adapter_sha256"]) == 64
    assert not math.isnan(result["accuracy"]["role-averaged/correct"][0])
    assert result["settings"]["max_tokens"] == 16  # as the run was trained
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="does not say what its base model is"):
        model_ref(str(tmp_path / "adapter"))

"""A run on a real, small model: what is kept, that it repeats, that it learns, that it refuses what it must."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from peergrad import UserError
from peergrad.config import preset
from peergrad.debate.errors import EngineError
from peergrad.debate.settings import changed
from peergrad.debate.transcript import read_file
from peergrad.debate.types import Reply
from peergrad.engines.local import engine
from peergrad.engines.local.train import backward
from peergrad.engines.registry import open_trainer
from peergrad.learn import data
from peergrad.learn.train import Stopped
from peergrad.runs.export import export
from peergrad.runs.folder import Progress, Run
from peergrad.runs.training import train_run
from peergrad.runs.watch import Watcher

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
SMALL = {"model": str(PARROT), "steps": 3, "batch": 3, "rank": 4, "threads": 1, "lr": 3e-3, "warm_debates": 2}
SMALL |= {"eval_questions": 2, "eval_debates": 1}


def settings(out, **more):
    return changed(preset("demo-parallel"), SMALL | {"out": out} | more, "test")


def run(out, watch=None, load=open_trainer, **more):
    return asyncio.run(train_run(settings(out, **more), watch, load=load))


def adapter(made, step=3):
    return hashlib.sha256((made.folder(Progress(step)) / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run")


def test_a_run_is_a_folder_of_plain_files(whole):
    assert {path.name for path in whole.path.iterdir()} >= {
        "config.toml",
        "run.json",
        "metrics.jsonl",
        "debates",
        "checkpoints",
    }
    assert whole.facts["seed"] == 0
    assert whole.facts["versions"]["torch"] == metadata.version("torch")
    assert len(whole.facts["questions_sha256"]) == len(whole.facts["prompts_sha256"]) == 64
    lines = [json.loads(line) for line in (whole.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["step"]) for line in lines] == [
        ("eval", 0),
        ("warm", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("eval", 3),
    ]
    names = ("eval_000000", "eval_000003", *(f"step_00000{step}" for step in (1, 2, 3)))
    debates = {path.name for path in (whole.path / "debates").iterdir()}
    assert debates == {f"{name}.{kind}" for name in names for kind in ("jsonl", "sha256")}
    assert len(list(read_file(whole.path / "debates" / "step_000001.jsonl"))) == 3
    assert whole.checkpoints() == [Progress(0), Progress(2), Progress(3)]


def test_a_step_says_everything_it_must(whole):  # SPEC 8, 7.5
    line = whole.metrics()[2]
    names = ["replies/readable", "votes/per_due_turn", "debates/without_signal", "debates/dropped", "tokens/sampled", "lr"]
    names += ["pairwise_total_votes", "parse_error", "round", "env/all/ac_tokens_per_turn", "env/all/by_group/frac_mixed"]
    names += ["v2/total_votes", "optim/kl_sample_train_v1", "optim/kl_sample_train_v2", "optim/entropy", "optim/loss"]
    names += ["optim/ratio/max", "train_arithmetic/correct", "train_arithmetic/pass@3", "reward/format/seat/0", "alarms"]
    assert [name for name in names if name not in line] == []
    assert abs(line["optim/kl_sample_train_v1"]) < 1e-3
    assert line["optim/ratio/max"] == pytest.approx(1, abs=1e-3)


def test_the_same_seed_gives_the_same_bytes(whole, tmp_path):
    again = run(tmp_path / "run")
    assert adapter(again) == adapter(whole)
    for path in sorted((whole.path / "debates").iterdir()):
        assert (again.path / "debates" / path.name).read_bytes() == path.read_bytes()
    assert adapter(run(tmp_path / "other", seed=1)) != adapter(whole)


def test_a_finished_run_is_left_alone_and_can_be_made_longer(whole, tmp_path):
    class Said(Watcher):
        def __init__(self):
            self.sentences = []

        def say(self, sentence):
            self.sentences.append(sentence)

    said = Said()
    run(whole.path, said, kv_gb=1.0, max_rows=100, train_tokens=1000)  # sizes may be those of another machine
    assert "is finished: 3 steps" in said.sentences[0]
    short = run(tmp_path / "run", steps=2)
    longer = run(tmp_path / "run", steps=3)
    assert short.path == longer.path
    assert adapter(longer) == adapter(whole)


def test_a_finished_run_says_what_can_be_done_with_it(tmp_path, capsys):
    small = {"steps": 1, "warm_steps": 0, "eval_questions": 0, "eval_debates": 0, "max_tokens": 8}
    for schedule, said in (
        ("constant", "Raise steps to train on"),
        ("linear", "--model with it trains on in another folder"),
    ):
        for _ in range(2):
            run(tmp_path / schedule, None, lr_schedule=schedule, **small)
        assert said in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match=r"steps: the run in .* has 1, not 2"):
        run(tmp_path / "linear", lr_schedule="linear", **small | {"steps": 2})


def test_a_model_card_says_what_stood_in_place_of_votes(tmp_path):
    made = run(tmp_path / "run", protocol="direct", votes="majority", steps=1, warm_steps=0, max_tokens=8)
    card = " ".join((export(made, tmp_path / "adapter") / "README.md").read_text().split())
    assert "answered questions alone, and the most frequent answer stood in place of votes." in card


def test_checkpoints_kept_for_good(tmp_path):
    made = run(tmp_path / "run", steps=6, save_every=2, warm_steps=0, eval_questions=0, eval_debates=0, max_tokens=8)
    assert made.checkpoints() == [Progress(step) for step in (0, 2, 4, 5, 6)]


def test_staleness_overlaps_and_still_finishes(tmp_path):
    made = run(tmp_path / "run", max_staleness=1)
    assert [line["step"] for line in made.metrics() if line["phase"] == "train"] == [1, 2, 3]


def test_sequential_debates_train_too(tmp_path):
    made = run(tmp_path / "run", protocol="sequential", reward="win_rate", steps=1, warm_steps=0, max_rounds=1)
    assert [line["phase"] for line in made.metrics()] == ["eval", "train", "eval"]


def test_learning_from_recorded_debates(whole, tmp_path):
    recorded = whole.path / "debates" / "step_000001.jsonl"
    made = run(tmp_path / "run", warm_from=recorded, warm_steps=3, steps=1)
    losses = [line["warm/loss"] for line in made.metrics() if line["phase"] == "warm"]
    assert losses[-1] < losses[0]
    with pytest.raises(UserError, match="has 3 agents, not 4"):
        run(tmp_path / "other", warm_from=recorded, agents=4)


def test_an_exported_adapter_loads_in_peft(whole, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = export(whole, tmp_path / "adapter")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(str(PARROT)), str(folder))
    weights = {name for name, _ in model.named_parameters() if "lora_B" in name}
    assert weights
    assert any(parameter.abs().sum() > 0 for name, parameter in model.named_parameters() if "lora_B" in name)
    card = (folder / "README.md").read_text()
    assert "step 3 of 3" in card
    assert "library_name: peft" in card
    with pytest.raises(UserError, match="is not empty"):
        export(whole, folder)
    with pytest.raises(UserError, match="no checkpoint of step 1; there are 0, 2, 3"):
        export(whole, tmp_path / "other", 1)


def test_other_settings_or_questions_are_refused(whole, tmp_path):
    for name, value in (("lr", 1e-4), ("seed", 5), ("rank", 8), ("batch", 2)):
        with pytest.raises(UserError, match=f"^({name}: the run in|out: the run in .* has other questions)"):
            run(whole.path, **{name: value})
    with pytest.raises(UserError, match="has other prompts"):
        run(whole.path, wording="full")


@pytest.mark.parametrize(
    "name", ["thesis.tex", "config.toml", "checkpoints/step_000100/weights", "debates/step_000001.jsonl"]
)
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("x")
    with pytest.raises(UserError, match=rf"holds something else \({name.split('/')[0]}\); give a new folder"):
        run(tmp_path / "out")
    assert [found for found in (tmp_path / "out").rglob("*") if found.is_file()] == [path]
    assert path.read_text() == "x"


def test_a_model_that_can_not_be_loaded_leaves_no_run(whole, tmp_path):
    with pytest.raises(UserError, match="model"):
        run(tmp_path / "run", model=str(tmp_path / "nothing"))
    for broken in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copytree(PARROT, tmp_path / broken)
        (tmp_path / broken / broken).write_text("{")
        with pytest.raises(UserError, match=r"^model: "):
            run(tmp_path / "run", model=str(tmp_path / broken))
    with pytest.raises(UserError, match="device: 'quantum' can't be used"):
        run(tmp_path / "run", device="quantum")
    assert not (tmp_path / "run").exists()
    assert adapter(run(tmp_path / "run")) == adapter(whole)


def test_damaged_checkpoints_are_not_in_the_way(tmp_path):
    made = run(tmp_path / "run", eval_questions=0, eval_debates=0)
    good = adapter(made)
    for at in made.checkpoints()[-2:]:
        (made.path / "checkpoints" / at.name / "state.json").write_text("")
    again = run(tmp_path / "run", eval_questions=0, eval_debates=0)
    assert again.checkpoints() == [Progress(0), Progress(2), Progress(3)]
    assert adapter(again) == good


def test_debates_used_again_have_no_speed(tmp_path):
    made = run(tmp_path / "run", steps=1, eval_questions=0, eval_debates=0)
    shutil.copy(made.path / "debates" / "step_000001.jsonl", made.path / "debates" / "step_000002.jsonl")
    run(tmp_path / "run", steps=2, eval_questions=0, eval_debates=0)
    first, second = (line for line in made.metrics() if line["phase"] == "train")
    assert "tokens/sampled_per_s" in first
    assert "tokens/sampled_per_s" not in second
    assert "steps = 2" in (made.path / "config.toml").read_text()


def test_the_teacher_of_sequential_debates(tmp_path):
    made = run(tmp_path / "run", protocol="sequential", steps=1, eval_questions=0, eval_debates=0)
    assert made.metrics()[0]["phase"] == "warm"
    alone = run(tmp_path / "alone", agents=1, steps=1, eval_questions=0, eval_debates=0)
    assert alone.metrics()[0]["phase"] == "warm"


def test_two_processes_do_not_share_a_run(whole):
    with whole.locked(), pytest.raises(UserError, match="another process is working on"):
        run(whole.path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="can't be written; give a folder you may write to"):
        run(tmp_path / "run")


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(UserError, match="can't be used"):
        run(tmp_path / "run")


def test_a_full_disk_loses_nothing(whole, tmp_path):
    """A limit on the size of files, set by the operating system, half-way through: real writes that really fail."""
    script = (
        "import resource, sys\n"
        "from tests.runs import test_run as t\n"
        "class Full(t.Watcher):\n"
        "    def line(self, phase, at, metrics):\n"
        "        if at.step == 2: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try: t.run(sys.argv[1], Full())\n"
        "except t.EngineError as error: print(error); sys.exit(1)\n"
    )
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "can't be written" in done.stdout
    assert "run the same command again" in done.stdout
    assert adapter(run(tmp_path / "run")) == adapter(whole)


# What is not a number


class Poisoned:
    """The real engine, one of its numbers made NaN from step 2 on."""

    def __init__(self, setup, where):
        self.local, self.where, self.steps = open_trainer(setup), where, 0

    def __getattr__(self, name):
        return getattr(self.local, name)

    async def step(self, data, loss, lr):
        self.steps += 1
        return await self.local.step(data, loss, lr)

    async def sampler(self):
        sampler = await self.local.sampler()
        return PoisonedSampler(sampler) if self.where == "logprob" and self.steps >= 2 else sampler


class PoisonedSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    async def sample(self, asks):
        answers = list(await self.sampler.sample(asks))
        first = answers[0]
        assert isinstance(first, Reply)
        first.tokens.logprobs_T[0] = np.nan
        return answers


@pytest.mark.parametrize("where", ["loss", "gradient", "reward"])
def test_what_is_not_a_number_changes_no_weight(tmp_path, monkeypatch, where):  # SPEC 7.5
    made = []

    def load(setup):
        made.append(Poisoned(setup, where))
        return made[0]

    def poisoned():
        return bool(made) and made[0].steps >= 3  # the warm start and one step were good

    real_gradient, real_score = backward.gradient, data.score

    def gradient(*args):
        found = real_gradient(*args)
        if poisoned() and where == "gradient":
            next(iter(found.by_name.values())).view(-1)[0] = torch.nan
        return backward.Gradient(float("nan"), found.by_name, found.logprobs) if poisoned() and where == "loss" else found

    def score(debate, rules, truth):
        from dataclasses import replace

        scored = real_score(debate, rules, truth)
        if not (made and made[0].steps >= 2 and where == "reward"):
            return scored
        first, *rest = scored.streams
        return replace(scored, streams=(replace(first, values=(float("nan"), *first.values[1:])), *rest))

    class Warned(Watcher):
        def __init__(self):
            self.sentences = []

        def warn(self, sentence):
            self.sentences.append(sentence)

    monkeypatch.setattr(engine, "gradient", gradient)
    monkeypatch.setattr(data, "score", score)
    warned = Warned()
    with pytest.raises(Stopped, match="3 updates in a row had a loss or gradient that was not finite"):
        run(tmp_path / "run", warned, load=load, steps=9)
    for sentence, step, count in zip(warned.sentences, (2, 3, 4), ("1 of 3", "2 of 4", "3 of 5"), strict=True):
        assert sentence.startswith(f"step {step}: update skipped: ")
        assert "not finite" in sentence
        assert f"({count} so far)" in sentence  # the warm start made one
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    skipped = [line["optim/skipped"] for line in lines if line["phase"] == "train"]
    assert skipped == [0.0, 1.0, 1.0, 1.0]
    kept = Run(tmp_path / "run")
    newest, before = (kept.folder(at) / "adapter_model.safetensors" for at in kept.checkpoints()[-2:])
    assert newest.read_bytes() == before.read_bytes()


def test_a_logprob_that_is_not_a_number_costs_its_debate(tmp_path):
    made = run(tmp_path / "run", load=lambda setup: Poisoned(setup, "logprob"), batch=5, eval_debates=0)
    dropped = [line["debates/dropped"] for line in made.metrics() if line["phase"] == "train"]
    assert dropped == [0.0, 2.0, 2.0]  # one in each wave
    reasons = json.loads((made.path / "debates" / "step_000002.dropped.json").read_text())
    assert "a logprob is not finite" in next(iter(reasons.values()))


@pytest.mark.parametrize("what", ["questions", "debates"])
def test_an_evaluation_of_which_most_was_lost_is_no_result(tmp_path, what):
    class Failing(Poisoned):
        async def sampler(self):
            real = await super().sampler()

            class Most:
                async def sample(self, asks):
                    lost = {ask.debate for ask in asks if ask.debate.startswith(prefix) and not ask.debate.endswith("-2")}
                    answers = zip(asks, await real.sample(asks), strict=True)
                    return [EngineError("the cable is out") if ask.debate in lost else answer for ask, answer in answers]

            return Most()

    prefix = "direct/" if what == "questions" else "eval-0/"
    settings = {"eval_questions": 4, "eval_debates": 4, "steps": 1}
    with pytest.raises(EngineError, match=r"[34] of 4 questions of the evaluation were dropped; .*the cable is out"):
        run(tmp_path / "run", load=lambda setup: Failing(setup, ""), **settings)
    made = run(tmp_path / "run", **settings)  # and it is made when the run goes on
    assert [line["step"] for line in made.metrics() if line["phase"] == "eval"] == [0, 1]


def test_when_every_debate_is_dropped_the_run_stops_with_the_reason(tmp_path):
    class Dead(Poisoned):
        async def sampler(self):
            class Nothing:
                async def sample(self, asks):
                    raise EngineError("the cable is out")

            return Nothing()

    with pytest.raises(EngineError, match="3 of 3 debates of a batch were dropped; the first because: the cable is out"):
        run(tmp_path / "run", load=lambda setup: Dead(setup, ""), eval_questions=0, eval_debates=0)
    assert adapter(run(tmp_path / "run", eval_questions=0, eval_debates=0, steps=3))


def test_a_task_with_fewer_questions_than_are_held_out(tmp_path):  # SPEC 10
    rows = [{"question": f"{n} + {n} = ?", "answer": str(2 * n)} for n in range(6)]
    (tmp_path / "six.jsonl").write_text("\n".join(map(json.dumps, rows)))
    small = {"task": str(tmp_path / "six.jsonl"), "batch": 2, "warm_steps": 0, "eval_questions": 64, "eval_debates": 5}
    run(tmp_path / "run", steps=1, **small)
    made = run(tmp_path / "run", steps=2, **small)
    assert len(list(read_file(made.path / "debates" / "eval_000002.jsonl"))) == 4
    assert [line["step"] for line in made.metrics() if line["phase"] == "train"] == [1, 2]

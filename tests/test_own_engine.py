"""An engine of one's own by its import path: through every command that plays debates; what does not fit is a sentence."""

import asyncio
import json
import os
import sys

import pytest

from peergrad import UserError
from peergrad.cli.eval import base_settings
from peergrad.config import EngineConfig
from peergrad.engines.base import Setup
from peergrad.engines.registry import engine_of, open_engine, open_trainer
from tests import commands
from tests.runs.test_run import run
from tests.test_own_rewards import EXAMPLES, here  # noqa: F401 (a fixture)

OWN = ["--engine", "my_engine:CALCULATOR"]


def peergrad(*args):
    return commands.peergrad(*args, cwd=EXAMPLES)


def test_it_debates(tmp_path):
    out = tmp_path / "debates.jsonl"
    done = peergrad("debate", "What is 2 + 3?", *OWN, "--model", "careful", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert {turn["text"].count("boxed{5}") for turn in json.loads(out.read_text())["turns"]} == {1}
    other = peergrad("debate", "What is 2 + 3?", *OWN, "--model", "careless", "--out", out)
    assert (other.returncode, "Traceback" in other.stderr) == (2, False)


def test_without_choose_soft_votes_are_refused_by_a_sentence(tmp_path):
    ballot = ["--protocol", "ballot", "--ballot-form", "soft-verdict"]
    done = peergrad("debate", "What is 2 + 3?", *OWN, "--model", "careful", "--out", tmp_path / "debates.jsonl", *ballot)
    assert done.returncode == 2
    assert "peergrad: ballot_form: Calculator can't say how likely words are" in done.stderr
    assert "take verdicts, ranking or pairs" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_evaluated_and_checked(tmp_path):
    for model, right in (("careful", 1.0), ("careless", 0.0)):
        settings = ["--model", model, "--task", "arithmetic", "--questions", 4, "--out", tmp_path / model]
        done = peergrad("eval", *OWN, *settings, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["metrics"]["eval/direct/arithmetic/correct"] == right
    done = peergrad("check", *OWN, "--model", "careful", "--questions", 4, "--json")
    assert json.loads(done.stdout)["forecast"]["trained"] is None, done.stderr


def test_it_can_not_learn_and_says_so(tmp_path):
    done = peergrad("train", *OWN, "--model", "careful", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "engine: calculator can debate, but not learn; give one that can, such as local" in done.stderr
    assert not (tmp_path / "run").exists()


WRONG = {
    "1 / 0": r"can't be imported \(ZeroDivisionError",
    "X = 7": "has no 'E'",
    "E = 7": "is int, not a peergrad.engines.base.Engine",
    "E = Engine(name='mine', open=lambda setup: 1 / 0)": r"failed \(ZeroDivisionError: .*wrong_engine3.py, line 2",
    "E = Engine(name='mine', open=lambda setup: 7)": "mine opened a int, which is no Model",
}


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_does_not_fit_is_a_sentence(here, number):  # noqa: F811
    code, why = list(WRONG.items())[number]
    (here / f"wrong_engine{number}.py").write_text(f"from peergrad.engines.base import Engine\n{code}\n")
    with pytest.raises(UserError, match=f"^engine: .*{why}"):
        open_engine(Setup(engine=EngineConfig(engine=f"wrong_engine{number}:E")))


def test_a_trainer_that_is_none_is_a_sentence(here):  # noqa: F811
    code = "E = Engine(name='mine', open=lambda _: 7, open_trainer=lambda _: 7)"
    (here / "no_trainer.py").write_text(f"from peergrad.engines.base import Engine\n{code}\n")
    with pytest.raises(UserError, match="mine opened a int, which is no Trainer"):
        open_trainer(Setup(engine=EngineConfig(engine="no_trainer:E")))


LATE = {
    "step": "raise ValueError('no gradient today')",
    "step gives nothing": "return None",
    "sampler": "return {}['weights']",
    "sample": "return [ask.colour for ask in asks]",
    "save": "raise RuntimeError('no room for ' + path.name)",
    "sampler_with": "raise KeyError('no such model')",
    "close": "raise RuntimeError('it is stuck')",
}
"""What a method of somebody's engine does, long after it was opened."""

LEARNER = """
from peergrad.engines.base import Engine, StepStats
from peergrad.engines.scripted import Scripted

def speak(ask):
    votes = "Agent 1 > Agent 2" if ask.seen else "N/A"
    return f"<solution>5</solution><evaluation>yes</evaluation><comparison>{{votes}}</comparison>"

class Learner:
    context = 4096
    def __init__(self): self.player = Scripted(speak)
    async def sampler(self): return self
    async def sampler_with(self, checkpoint): return self
    async def sample(self, asks): return await self.player.sample(asks)
    async def step(self, data, loss, lr): return StepStats(0.0, 1.0)
    async def save(self, path): pass
    async def load(self, path): pass
    async def close(self, *, failed=False): pass
    def tokens(self, ask, text): pass
    def forget(self, path): pass
    async def {head}: {body}

OWN = Engine(name="learner", open=lambda _: Learner(), open_trainer=lambda _: Learner())
"""
HEADS = {
    "step": "step(self, data, loss, lr)",
    "sampler": "sampler(self)",
    "sample": "sample(self, asks)",
    "save": "save(self, path)",
    "sampler_with": "sampler_with(self, checkpoint)",
    "close": "close(self, *, failed=False)",
}
SMALL = [
    "--max-tokens",
    "200",
    "--batch",
    "2",
    "--steps",
    "1",
    "--warm-steps",
    "0",
    "--eval-questions",
    "0",
    "--eval-debates",
    "0",
]


@pytest.mark.parametrize("fails", LATE)
def test_what_fails_later_is_a_sentence(fails, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(tmp_path)]))
    (tmp_path / "late_engine.py").write_text(LEARNER.format(head=HEADS[fails.split()[0]], body=LATE[fails]))
    command = ["train", *SMALL, "--out", tmp_path / "run"]
    if fails in ("sampler_with", "close"):
        command = ["debate", "What is 2 + 3?", "--model", "m", "--out", tmp_path / "debates.jsonl"]
    done = peergrad(*command, "--engine", "late_engine:OWN")
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    if fails == "step gives nothing":
        assert "engine: learner: step must give StepStats, but gave NoneType" in done.stderr
    elif fails == "sample":  # a sampler's mistake costs its debate; too many of them end the run
        assert "AttributeError: 'Ask' object has no attribute 'colour'" in done.stderr
    else:
        assert "engine: learner: failed (" in done.stderr
        assert "late_engine.py, line " in done.stderr


def test_an_unknown_name_is_a_sentence():
    with pytest.raises(UserError, match="engine: 'tinkr' is not known; did you mean 'tinker'"):
        engine_of(EngineConfig(engine="tinkr"))


def test_nothing_is_imported_that_a_folder_names(here):  # noqa: F811
    trained = run(here / "run", steps=1)
    (here / "sent_engine.py").write_text("raise SystemExit('it was run')\n")
    config = trained.path / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('engine = "local"', 'engine = "sent_engine:E"'))
    with pytest.raises(UserError, match=r"engine: the run was trained by sent_engine:E, .*give it"):
        base_settings(["--model", str(trained.path)])
    assert base_settings(["--model", str(trained.path), "--engine", "local"]).engine.engine == "local"
    config.write_text(text.replace("# base_url is not set", 'base_url = "https://elsewhere.example/v1"'))
    assert base_settings(["--model", str(trained.path)]).engine.base_url is None  # an address is never a folder's to choose
    assert "sent_engine" not in sys.modules


def test_a_model_is_opened_in_python(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    model = open_engine(Setup(engine=EngineConfig(engine="my_engine:CALCULATOR", model="careful")))
    assert asyncio.run(model.close()) is None

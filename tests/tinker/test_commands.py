"""``train``, ``eval``, ``check`` and ``debate`` on a service, by the real commands, where neither torch nor weights are."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from peergrad.cli import debate as debate_command
from peergrad.cli import eval as eval_command
from peergrad.config import ApiConfig, EngineConfig, preset
from peergrad.debate.errors import UserError
from peergrad.debate.settings import changed
from peergrad.debate.transcript import read_file
from peergrad.debate.types import Debate
from peergrad.engines.tinker.engine import Tinker
from peergrad.runs.folder import Run
from peergrad.runs.models import ModelPool, model_ref
from peergrad.runs.plan import plan_run
from tests.runs.killing import PARROT
from tests.tinker.processes import ROOT

# One process for all, which is killed by nothing it imports: what is not installed can't be found.
WITHOUT_TORCH = """
import importlib.util, json, sys
MISSING = {"torch", "peft", "gguf", "safetensors", "accelerate"}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in MISSING else found(name, package)
from peergrad.cli import main as cli
codes = []
for argv in json.loads(sys.argv[1]):
    sys.argv = ["peergrad", *argv]
    try:
        cli.main()
        codes.append(0)
    except SystemExit as leaving:
        codes.append(leaving.code or 0)
print(json.dumps(codes))
"""


SOFT = ["--protocol", "ballot", "--ballot-form", "soft-verdict", "--agents", "4", "--shown", "2"]


def commands(folder, *argvs):
    """Their exit codes, and all they said."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TINKER_API_KEY": "tml-x", "COLUMNS": "200"}
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(argvs)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    *said, codes = done.stdout.splitlines()
    return json.loads(codes), "\n".join(said), done.stderr


@pytest.fixture(scope="module")
def done(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    there = ["--engine", "tinker", "--base-url", server.url, "--model", str(PARROT), "--deadline-s", "30"]
    small = ["--batch", "3", "--rank", "4", "--lr", "3e-3", "--warm-debates", "2"]
    none = ["--eval-questions", "0", "--eval-debates", "0"]
    codes, said, complaints = commands(
        folder,
        ["train", "--preset", "demo-parallel", "--steps", "3", "--updates", "2", "--out", "run", *there, *small, *none],
        ["eval", "--model", "run", "--mode", "role-averaged", "--questions", "2", "--max-tokens", "24", "--out", "result"],
        ["check", "--preset", "demo-parallel", "--questions", "2", *there],
        ["debate", "What is 3 + 4?", "--out", "one.jsonl", "--max-tokens", "24", "--wording", "brief", *there],
        ["debate", "What is 3 + 4?", "--out", "two.jsonl", "--max-tokens", "24", "--model", "run"],
        ["train", "--preset", "demo-parallel", "--alpha", "64", "--dry-run", *there],
        ["export", "run", "--to", "adapter"],
        ["debate", "What is 3 + 4?", "--out", "soft.jsonl", "--max-tokens", "24", *SOFT, *there],
        ["check", "--preset", "demo-parallel", "--questions", "2", *SOFT, *there],
    )
    return folder, codes, said, complaints


def test_all_commands_work_without_torch(done):
    folder, codes, said, complaints = done
    assert codes[:2] == [0, 0], complaints
    assert codes[2] in (0, 1)  # what it finds is the model's affair
    assert codes[3:5] == [0, 0], complaints
    assert "policy, over all seats" in said
    assert "solves alone" in said
    assert "peergrad eval --model run" in said  # there is nothing to export here
    for name, rounds in (("one", 3), ("two", 2)):
        (debate,) = read_file(folder / f"{name}.jsonl")
        assert len(debate.turns) == 3 * rounds


def test_votes_are_log_probabilities_of_the_service(done):
    folder, codes, _, complaints = done
    assert codes[7] == 0, complaints
    assert codes[8] in (0, 1)
    (debate,) = read_file(folder / "soft.jsonl")
    votes = [vote for turn in debate.turns for vote in turn.parsed.votes]
    assert len(votes) == 4
    assert all(-1 < verdict < 1 for _, verdict, _ in votes)


def test_mistakes_are_found_before_the_service_is_asked(done):
    _, codes, _, complaints = done
    assert codes[5:7] == [2, 2]
    assert "alpha: 64.0 is not possible with engine tinker" in complaints
    assert "its weights are with the service" in complaints
    assert "Traceback" not in complaints


def test_other_mistakes(done, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UserError, match=r"TINKER_API_KEY: is not set; put the key of tinker\.thinkingmachines\.dev into it"):
        plan_run(changed(preset("demo-parallel"), {"engine": "tinker"}, "test"))
    run = tmp_path / "run"
    shutil.copytree(done[0] / "run", run)
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r'base_url = ".*"', 'base_url = "https://elsewhere.example"', settings))
    for base_settings in (eval_command.base_settings, debate_command.base_settings):
        with pytest.raises(UserError, match="if your key may go there"):
            base_settings(["--model", str(run)])
        here = base_settings(["--model", str(run), "--base-url=https://here.example", "--json"])
        assert here.engine.base_url == "https://here.example"
        monkeypatch.setenv("TINKER_BASE_URL", "https://elsewhere.example/")
        assert base_settings(["--model", str(run)]).engine.base_url == "https://elsewhere.example"
        monkeypatch.delenv("TINKER_BASE_URL")
    here = ModelPool(EngineConfig(), ApiConfig(), 0)
    with pytest.raises(UserError, match="are of the engine tinker; give engine tinker"):
        asyncio.run(here.sampler(model_ref(str(done[0] / "run"))))


def test_a_frozen_opponent_holds_the_other_seats(done, server):
    folder = done[0]
    run, debates = Run(folder / "run"), list(read_file(folder / "result" / "debates" / "seats.jsonl"))
    assert len(debates) == 6  # two questions, each with the policy in one of three seats
    engine = Tinker(EngineConfig(model=str(PARROT), base_url=server.url, deadline_s=20))

    async def said():
        trained, base = await engine.sampler_with(run.newest()[1]), await engine.sampler_with(None)
        for debate in debates:
            wave = debate.protocol.wave(Debate(debate.id, debate.question, debate.protocol))
            yield debate, [[reply.text for reply in await one.sample(wave)] for one in (trained, base)]

    async def compare():
        async for debate, (trained, base) in said():
            seat = int(debate.id[len("seat-")])
            assert trained[seat] != base[seat]
            assert [turn.text for turn in debate.turns[:3]] == [*base[:seat], trained[seat], *base[seat + 1 :]]

    asyncio.run(compare())

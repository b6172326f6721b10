"""``peergrad eval --mode head-to-head``: two models on questions without answers, through the command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peergrad.config import preset
from peergrad.debate.settings import changed
from peergrad.runs.results import read_result
from peergrad.runs.training import train_run
from tests import commands

ROOT = Path(__file__).parent.parent.parent
PARROT = ROOT / "tests" / "fixtures" / "parrot"
PEERGRAD = [sys.executable, "-m", "peergrad"]
QUESTIONS = "\n".join(json.dumps({"question": f"Write about {what}."}) for what in ("one", "two", "three"))

# The model "good" finds its own answers better, more so where they come first; "bad" and, on question two, the judge go by
# the order alone. On question three the judge finds both equal, and then says nothing.
WRITERS = r"""
from peergrad.debate.sampler import Likely
from peergrad.debate.types import Reply, Usage
from peergrad.engines.base import Engine

GOOD = {"one": "alpha beta", "two": "same words", "three": "x"}
BAD = {"one": "alpha gamma delta", "two": "same words", "three": "y y y"}

class Writer:
    def __init__(self, model):
        self.model = model

    async def sample(self, asks):
        return [Reply(self.reply(ask), usage=Usage(10, 3)) for ask in asks]

    def reply(self, ask):
        text = ask.messages[-1].text
        about = text.partition("Write about ")[2].partition(".")[0]
        if not ask.candidates:
            return (GOOD if self.model == "good" else BAD)[about]
        first = first_shown(ask) in GOOD.values()
        if self.model != "umpire":
            return "A > B" if first or self.model == "bad" else "B > A"
        return {"one": "A > B" if first else "B > A", "two": "A > B", "three": "A = B" if first else "hm"}[about]

    async def choose(self, asks, options):
        assert tuple(options) == ("A", "B")
        likely = [0.7 if self.model == "bad" else 0.8 if first_shown(ask) in GOOD.values() else 0.4 for ask in asks]
        return [Likely((p, 1 - p), 10) for p in likely]

    async def sampler_with(self, checkpoint):
        return self

    async def close(self):
        pass

def first_shown(ask):
    return ask.messages[-1].text.partition("Answer A:\n| ")[2].partition("\n")[0]

ENGINE = Engine(name="writers", open=lambda setup: Writer(setup.engine.model), max_asks=100)
"""


def peergrad(*args: object, cwd: Path, **more: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(cwd)]), "COLUMNS": "120"}
    return commands.peergrad(*args, cwd=cwd, env=environ, **more)


@pytest.fixture
def writers(tmp_path):
    (tmp_path / "writers.py").write_text(WRITERS)
    (tmp_path / "open.jsonl").write_text(QUESTIONS)
    return ["eval", "--engine", "writers:ENGINE", "--task", "open.jsonl", "--model", "good"]


def test_9_10_the_numbers_of_a_case_by_hand(tmp_path, writers):  # SPEC 9.10
    duel = [*writers, "--mode", "head-to-head", "--opponent", "bad", "--judge", "umpire", "--out", "out"]
    done = peergrad(*duel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    assert result["values"] == {
        "head-to-head/votes": [0.75, 0.5, 0.75],
        "head-to-head/votes_of_model": [1.0, 0.5, 1.0],
        "head-to-head/votes_of_opponent": [0.5, 0.5, 0.5],
        "head-to-head/judge": [1.0, 0.5, None],
    }
    assert result["metrics"]["eval/head-to-head/open/votes"] == pytest.approx(2 / 3)
    assert result["metrics"]["eval/head-to-head/open/judge"] == 0.75
    value, low, high = result["accuracy"]["head-to-head/votes"]
    assert low < value < high
    counts = {name: tuple(map(sum, zip(*rows, strict=True))) for name, rows in result["counts"].items()}
    assert counts == {
        "votes/read": (12, 12),
        "votes/order_decided": (4, 6),  # always those of "bad", and both where the answers are the same
        "bias/first": (10, 12),
        "bias/longer": (2, 8),
        "bias/own": (4, 6),
        "judge/votes/read": (5, 6),
        "judge/votes/order_decided": (1, 2),
        "judge/bias/first": (3.5, 5),  # a tie is half
        "judge/bias/longer": (0, 2),
        "replies/truncated": (0, 6),
        "diversity/pair": (1.75, 3),  # 3 of 4 words are one's alone, none of 2, and all
    }
    for words in ("good against bad on open: 3 questions", "their own votes", "66.7%", "the judge", "75.0%"):
        assert words in done.stdout
    again = peergrad(*duel[:-2], "--out", "words", "--vote-form", "words", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert read_result(tmp_path / "words")["values"] == result["values"]


def test_9_1_seats_on_open_questions(tmp_path, writers):  # SPEC 9.1
    """Opponents vote for the answer that stands first; the policy for the second, but where the first is as its own."""
    more = ["--mode", "role-averaged", "--opponent", "bad", "--protocol", "ballot", "--agents", "3", "--shown", "2"]
    done = peergrad(*writers, *more, "--ballot-form", "pairs", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    counts = {name: tuple(map(sum, zip(*rows, strict=True))) for name, rows in result["counts"].items()}
    # In each of 3 questions x 3 seats the policy is shown to both others, once in either place.
    assert result["values"] == {"role-averaged/win_rate": [0.5, 0.5, 0.5]}
    assert counts["role-averaged/votes_won"] == (9, 18)
    assert sum(counts[f"bias/seat/{seat}"][1] for seat in range(3)) == 2 * 27
    assert counts["bias/first"] == (18 + 3, 27)
    assert counts["diversity/debate"] == (3 * (2 * 0.75 + 0 + 2 * 1), 27)
    assert "votes of the opponents about the policy" in done.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--mode", "debate"],
            "have no answers, so there is nothing to measure; name others, or --mode head-to-head",
        ),
        (["--mode", "head-to-head"], "opponent: base is the model itself"),
        (["--judge", "umpire"], "judge: is only asked in mode head-to-head"),
    ],
)
def test_what_can_not_be_is_one_sentence(tmp_path, writers, more, says):
    done = peergrad(*writers, *more, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert says in done.stderr


@pytest.mark.slow
def test_a_trained_model_against_its_base_killed_and_resumed(tmp_path):
    small = {"model": str(PARROT), "steps": 1, "batch": 2, "rank": 4, "threads": 1, "warm_steps": 2, "max_tokens": 16}
    small |= {"warm_lr": 0.05, "eval_questions": 0, "eval_debates": 0, "out": tmp_path / "run"}
    asyncio.run(train_run(changed(preset("demo-parallel"), small, "test")))
    (tmp_path / "open.jsonl").write_text(QUESTIONS)
    duel = ["eval", "--model", "run", "--mode", "head-to-head", "--task", "open.jsonl", "--threads", 1, "--judge", PARROT]
    duel += ["--judge-form", "soft", "--out"]
    pairs = tmp_path / "killed" / "debates" / "pairs.jsonl"
    assert peergrad(*duel, "killed", cwd=tmp_path, killed_at=pairs).returncode == -signal.SIGKILL
    pairs.write_bytes(pairs.read_bytes()[:-7])  # and the last line is torn
    for out in ("killed", "whole"):
        done = peergrad(*duel, out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    killed, whole = (read_result(tmp_path / out) for out in ("killed", "whole"))
    assert killed["values"] == whole["values"]
    assert killed["counts"] == whole["counts"]

    # By other code, from what was said: of each voter the probability of the model's answer in both orders.
    for name, voter in (("votes_of_model", 0), ("votes_of_opponent", 1), ("judge", 2)):
        for line in pairs.read_text().splitlines():
            debate = json.loads(line)
            asked = whole["questions"].index(debate["question_id"])
            texts = [turn["text"].split() for turn in debate["turns"][2:] if turn["agent"] == voter]
            lead = float(texts[0][1]) - float(texts[0][3]) + float(texts[1][3]) - float(texts[1][1])
            expected = 0.5 if abs(lead) < 1e-9 else float(lead > 0)
            assert whole["values"][f"head-to-head/{name}"][asked] == expected
    assert whole["values"]["head-to-head/judge"] == whole["values"]["head-to-head/votes_of_opponent"]  # the same weights
    compared = peergrad("compare", "killed", "whole", cwd=tmp_path)
    assert "votes of the opponent" in compared.stdout, compared.stderr

    # The same weights under another name give the same answers, and nobody wins.
    shutil.copytree(PARROT, tmp_path / "other")
    done = peergrad(*duel[:2], PARROT, *duel[3:-1], "--opponent", "other", "--out", "same", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same = read_result(tmp_path / "same")
    assert {value for values in same["values"].values() for value in values} == {0.5}
    assert same["shares"]["diversity/pair"][0] == 0


@pytest.mark.slow
def test_9_1_seats_while_training(tmp_path):  # SPEC 9.1
    """The numbers are those of the debates, and the same in a run that is killed and resumed."""
    (tmp_path / "open.jsonl").write_text(QUESTIONS)
    train = ["train", "--model", PARROT, "--task", "open.jsonl", "--eval-task", "open.jsonl", "--eval-questions", 2]
    train += ["--eval-debates", 2, "--eval-mode", "role-averaged", "--eval-every", 1, "--threads", 1, "--rank", 4]
    train += ["--protocol", "ballot", "--ballot-form", "soft-choice", "--agents", 3, "--shown", 2, "--max-tokens", 12]
    train += ["--batch", 2, "--steps", 2, "--warm-steps", 0, "--lr", 0.05, "--out"]
    assert peergrad(*train, "whole", cwd=tmp_path).returncode == 0
    played = tmp_path / "again" / "debates" / "eval_000001.jsonl"
    assert peergrad(*train, "again", cwd=tmp_path, killed_at=played).returncode == -signal.SIGKILL
    resumed = peergrad(*train, "again", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "Votes won against the base model, held out" in resumed.stdout
    lines = [[json.loads(line) for line in (tmp_path / out / "metrics.jsonl").open()] for out in ("whole", "again")]
    whole, again = ([line for line in run if line["phase"] == "eval"] for run in lines)
    assert [line["step"] for line in whole] == [0, 1, 2]
    name = "eval/role-averaged/open"
    assert whole[0][f"{name}/win_rate"] == pytest.approx(0.5, abs=0.5)
    assert f"{name}/bias/first" in whole[0]
    for line, same in zip(whole, again, strict=True):
        assert {key: line[key] for key in line if key.startswith(name)} == {
            key: same[key] for key in same if key.startswith(name)
        }
    won, about = dict[str, float](), dict[str, int]()
    for text in (tmp_path / "whole" / "debates" / "eval_000002.jsonl").read_text().splitlines():
        debate = json.loads(text)
        (seat,) = {turn["agent"] for turn in debate["turns"] if "by" not in turn}
        assert debate["id"] == f"eval-2-seat-{seat}/{debate['question_id']}"
        for turn in debate["turns"][3:]:
            shown = [agent for (agent,) in turn["candidates"]]
            if turn["agent"] != seat:
                _, first, _, second = turn["text"].split()
                lead = float(first) - float(second)
                share = (1 + (lead if shown[0] == seat else -lead)) / 2
                won[debate["question_id"]] = won.get(debate["question_id"], 0) + share
                about[debate["question_id"]] = about.get(debate["question_id"], 0) + 1
    assert set(about.values()) == {6}
    assert whole[2][f"{name}/win_rate"] == pytest.approx(sum(won[one] / about[one] for one in won) / 2, abs=1e-5)

"""The benchmark of votes, through its command: a case worked out by hand, a resumed run, and the small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARROT = Path(__file__).parent / "fixtures" / "parrot"
ROWS = {"alone", "(agreement)", "(same as own)", "(likelihood)", "(shorter)"}

# The first two agents are right. The model "liar" votes for them, but in seat 3 against them; the model "first" votes for
# whom it is shown first.
VOTERS = r"""
from pathlib import Path
from peergrad.debate.sampler import Likely
from peergrad.debate.types import Reply, Usage
from peergrad.engines.base import Engine

LENGTHS = (70, 70, 60, 40, 40)

def answer(agent):
    value = 4444 if agent < 2 else 50 + agent
    return f"\\boxed{{{value}}}".rjust(LENGTHS[agent], ".")

class Voters:
    def __init__(self, model):
        self.model = model

    async def sample(self, asks):
        with Path("asked").open("a") as log:
            log.write(f"{len(asks)}\n")
        return [Reply(self.reply(ask), usage=Usage(10, 3)) for ask in asks]

    def reply(self, ask):
        if ask.candidates:
            right = [(agent < 2) != (ask.agent == 3) for (agent,) in ask.candidates]
            if self.model == "first":
                right = [True, False, False]
            return "\n".join(f"{letter}: {'right' if good else 'wrong'}" for letter, good in zip("ABC", right))
        if not ask.contract:
            return answer(ask.agent)
        vote = f"Agent {(ask.agent + 1) % 5} > Agent {(ask.agent + 2) % 5}" if ask.round else "N/A"
        return f"<solution>{answer(ask.agent)}</solution><evaluation>-</evaluation><comparison>{vote}</comparison>"

    async def choose(self, asks, options):
        right = [("4444" in ask.messages[-1].text) != (ask.agent == 3) for ask in asks]
        return [Likely((0.75, 0.25) if good else (0.25, 0.75), 10) for good in right]

    async def sampler_with(self, checkpoint):
        return self

    async def close(self):
        pass

ENGINE = Engine(name="voters", open=lambda setup: Voters(setup.engine.model), max_asks=100)
"""


def judging(folder: Path, *args: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "judging.py"), *map(str, args), "--out", "table.json"]
    paths = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, done.stderr
    return done


def rows(folder: Path) -> dict:
    return json.loads((folder / "table.json").read_text())["rows"]


@pytest.fixture
def voters(tmp_path):
    (tmp_path / "voters.py").write_text(VOTERS)
    lines = [json.dumps({"question": f"How much is {name}?", "answer": "4444"}) for name in ("this", "that")]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    return ["--engine", "voters:ENGINE", "--task", "two.jsonl", "--questions", 2, "--answers", 4]


def test_the_numbers_of_a_case_by_hand(tmp_path, voters):
    done = judging(tmp_path, *voters, "--model", "liar", "--forms", "verdicts,soft-verdict", "--only", "ballot")
    table = rows(tmp_path)
    forms = [f"{form}-{own}" for form in ("verdicts", "soft-verdict") for own in ("in-view", "hidden")]
    assert set(table) == {*ROWS, *forms}
    for name in forms:
        row = table[name]
        assert row["right"][0] == 0.5
        assert row["against_alone"][0] == 0.0
        assert row["majority"][0] == 1.0  # two of four agree
        assert (row["valid"], row["complete"], row["decided"]) == (1.0, 1.0, 1.0)
        assert row["right_of_decided"] == 0.75  # every voter sees two pairs of right and wrong; one voter of four lies
        # Of wins less losses the answers have 1/3, 1/3, 0 and -2/3 (soft: half of it); their lengths follow these.
        assert row["right_over_wrong"][0] == row["pooled"][0] == row["best_voted"][0] == 1.0
        assert row["with_length"][0] == pytest.approx(1.0)
        assert sum(row["places"]) == pytest.approx(0.0)
        soft = name.startswith("soft")
        assert (row["sampled"], row["read"]) == ((0, 240) if soft else (24, 80))
        assert "copied" not in row or row["copied"] == 0.0
    assert table["alone"]["pass"] == 1.0
    assert table["(agreement)"]["right_over_wrong"][0] == 1.0
    assert table["(shorter)"]["right_over_wrong"][0] == 0.0
    assert table["(shorter)"]["with_length"][0] == pytest.approx(-1.0)
    # The right ones vote for each other alone, and the wrong ones for nobody.
    assert table["(same as own)"]["decided"] == 0.5
    assert table["(same as own)"]["right_of_decided"] == 1.0
    assert "| verdicts-hidden | 50.0" in done.stdout


def test_votes_by_place_alone_say_nothing(tmp_path, voters):
    judging(tmp_path, *voters, "--model", "first", "--forms", "verdicts", "--only", "verdicts-in-view,parallel")
    ballot, parallel = (rows(tmp_path)[name] for name in ("verdicts-in-view", "parallel"))
    assert ballot["places"] == [2.0, -1.0, -1.0]
    assert parallel["places"] == [1.0, -1.0, 0.0, 0.0]  # each of five votes for the next of the four others, against another
    for row in (ballot, parallel):
        assert row["right_over_wrong"][0] == 0.5  # everybody is shown first to somebody: all scores are 0
        assert row["right_of_decided"] == 0.5
    assert ballot["best_voted"][0] == 0.5
    assert parallel["best_voted"][0] == parallel["right"][0] == parallel["first_round"][0] == 0.4
    assert parallel["against_alone"][0] == pytest.approx(0.4 - 0.5)
    assert parallel["decided"] == pytest.approx(2 / 18)  # voters see 3, 3, 4, 4 and 4 pairs of right and wrong
    assert (parallel["readable"], parallel["valid"], parallel["complete"]) == (1.0, 1.0, 0.0)
    assert (parallel["sampled"], parallel["read"]) == (60, 200)


def test_an_interrupted_run_plays_only_what_is_missing(tmp_path, voters):
    chosen = [*voters, "--model", "liar", "--forms", "verdicts", "--only"]
    judging(tmp_path, *chosen, "verdicts-hidden")
    assert (tmp_path / "asked").read_text().split() == ["8", "8"]  # the answers, then the ballots, each in one call
    before = rows(tmp_path)
    judging(tmp_path, *chosen, "ballot")
    assert (tmp_path / "asked").read_text().split() == ["8", "8", "8"]
    after = rows(tmp_path)
    assert set(after) == {*before, "verdicts-in-view"}
    assert {name: after[name] for name in before} == before
    assert "give another --out" in judging(tmp_path, *chosen, "ballot", "--max-tokens", 7, expect=1).stderr
    assert "--only: verdict is not known" in judging(tmp_path, *chosen, "verdict", expect=2).stderr


def test_every_row_with_a_model(tmp_path):
    judging(tmp_path, "--model", PARROT, "--task", "arithmetic", "--questions", 2, "--answers", 3, "--max-tokens", 24)
    table = rows(tmp_path)
    forms = ("soft-verdict", "soft-choice", "soft", "verdicts", "ranking", "pairs")
    names = {f"{form}-{own}" for form in forms for own in ("in-view", "hidden")} | {"parallel", "sequential"}
    assert set(table) == ROWS | names
    for name in names:
        assert table[name]["questions"] == 2
        assert table[name]["read"] > 0
        assert table[name]["seconds"] > 0
        assert table[name]["dropped"] == {}
        if name.startswith("soft"):
            assert (table[name]["valid"], table[name]["complete"], table[name]["sampled"]) == (1.0, 1.0, 0)
    assert len(table["parallel"]["first_round"]) == 3

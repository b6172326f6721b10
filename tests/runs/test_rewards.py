"""Rewards beside votes, as a person trains with them: what is in the metrics is what the saved debates give by hand."""

import json
import os
from collections import Counter

import pytest

from peergrad import UserError, score
from peergrad.debate.transcript import read_file
from peergrad.runs.folder import Run
from peergrad.runs.plan import plan_run
from peergrad.tasks.open import regrade
from tests.commands import peergrad
from tests.runs.test_run import PARROT, adapter, run, settings

QUICK = {"model": PARROT, "steps": 2, "batch": 3, "rank": 4, "threads": 1, "lr": 3e-3, "warm_steps": 2, "warm_debates": 8}
QUICK |= {"eval_questions": 0, "eval_debates": 0, "max_tokens": 40}


def train(out, codes=(0,), **more):
    flags = [
        f"--{name.replace('_', '-')}" + (f"={value}" if value is not True else "") for name, value in (QUICK | more).items()
    ]
    result = peergrad("train", "--preset", "demo-parallel", "--out", out, *flags, env=os.environ | {"COLUMNS": "200"})
    assert result.returncode in codes, result.stderr
    return [line for line in Run(out).metrics() if line["phase"] == "train"]


def saved(out, step):
    return list(read_file(out / "debates" / f"step_{step:06}.jsonl"))


def is_right(debate, turn):
    return turn.solution is not None and regrade(debate.question, turn.solution).correct


def mean(values):
    return sum(values) / len(values)


def test_truth_alone_needs_no_votes(tmp_path):  # SPEC 4.14
    """The ceiling: plain answers, and whether they are right."""
    lines = train(tmp_path / "run", protocol="direct", agents=4, truth_weight=1, wording="full")
    for step, line in enumerate(lines, 1):
        debates = saved(tmp_path / "run", step)
        assert {len(debate.turns) for debate in debates} == {4}
        right = [1 if is_right(debate, turn) else -1 for debate in debates for turn in debate.turns]
        assert line["reward/gen/mean"] == pytest.approx(mean(right))
        assert line["train_arithmetic/correct"] == pytest.approx((mean(right) + 1) / 2)
        assert (line["truth_weight"], line["v2/total_votes"]) == (1, 0)
        assert "outcome_bonus" not in line


def test_a_fade_in_the_metrics(tmp_path):  # SPEC 4.14, 4.15
    lines = train(tmp_path / "run", steps=3, truth_weight="1.0 -> 0.4", outcome_bonus="0.5 -> 0 over 2 cosine")
    assert [line["truth_weight"] for line in lines] == pytest.approx([1, 0.8, 0.6])
    assert [line["outcome_bonus"] for line in lines] == pytest.approx([0.5, 0.25, 0])
    for step, line in enumerate(lines, 1):
        by_hand = []
        for debate in saved(tmp_path / "run", step):
            peer = score(debate).streams[0].values
            for index, turn in enumerate(debate.turns):
                grade = 1 if is_right(debate, turn) else -1
                bonus = line["outcome_bonus"] if turn.round == debate.rounds - 1 and grade == 1 else 0
                by_hand.append((1 - line["truth_weight"]) * (peer[index] or 0) + line["truth_weight"] * grade + bonus)
        assert line["reward/gen/mean"] == pytest.approx(mean(by_hand))


@pytest.mark.slow
def test_controls_in_the_metrics(tmp_path):  # SPEC 4.13
    ballot = {
        "protocol": "ballot",
        "agents": 4,
        "shown": 2,
        "reward": "borda",
        "steps": 1,
        "warm_steps": 0,
        "center": "group",
    }
    first = {votes: train(tmp_path / votes, votes=votes, **ballot)[0] for votes in ("peer", "shuffled", "majority", "none")}
    debates = {votes: saved(tmp_path / votes, 1) for votes in first}
    assert all(of == debates["peer"] for of in debates.values())  # the first step's words depend on no reward
    names = [f"reward/{stream}/{number}" for stream in ("borda", "format") for number in ("mean", "std")]
    assert [first["shuffled"][name] for name in names] == pytest.approx([first["peer"][name] for name in names])
    seats = [name for name in first["peer"] if name.startswith("reward/borda/seat/")]
    assert [first["shuffled"][name] for name in seats] != pytest.approx([first["peer"][name] for name in seats])
    by_hand = []
    for debate in debates["majority"]:
        given = [debate.question.style.value(turn.text) for turn in debate.turns[:4]]
        times = Counter(answer for answer in given if answer is not None).most_common()
        ties = [answer for answer, count in times if count == times[0][1]]
        by_hand += [2 / len(ties) - 1 if answer in ties else -1 for answer in given] if times else []
    assert first["majority"].get("reward/borda/mean") == (pytest.approx(mean(by_hand)) if by_hand else None)
    assert {name.split("/")[1] for name in first["none"] if name.startswith("reward/")} == {"format"}


def test_a_run_resumed_within_a_fade_ends_with_the_same_bytes(tmp_path):  # SPEC 4.15
    fade = {"truth_weight": "1.0 -> 0.0 cosine", "outcome_bonus": "0.5 -> 0 over 2"}
    whole = run(tmp_path / "whole", **fade)
    kept = run(tmp_path / "parts", save_every=1, **fade)
    for folder in sorted((kept.path / "checkpoints").iterdir())[2:]:
        for path in folder.iterdir():
            path.unlink()
    resumed = run(tmp_path / "parts", save_every=1, **fade)
    assert adapter(resumed) == adapter(whole)
    lines = [
        [{k: v for k, v in line.items() if "time" not in k and "per_s" not in k} for line in made.metrics()]
        for made in (whole, resumed)
    ]
    assert lines[0] == lines[1]
    with pytest.raises(UserError, match="steps"):  # else the numbers of steps that are made already would be others
        run(tmp_path / "parts", steps=5, save_every=1, **fade)


def test_what_leaves_nothing_to_learn_from_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "open.jsonl").write_text("".join(json.dumps({"question": f"Write {i} lines."}) + "\n" for i in range(9)))
    task = {"task": str(tmp_path / "open.jsonl"), "warm_steps": 0, "model": "nowhere"}
    for rules, sentence in (
        (task | {"truth_weight": 0.3}, "truth_weight: nobody knows what is right in open"),
        (task | {"outcome_bonus": "0 -> 1"}, "outcome_bonus: nobody knows what is right in open"),
        ({"protocol": "direct", "agents": 4}, "protocol: in direct of 4 nobody votes"),
        ({"votes": "shuffled", "center": "batch"}, "center: with batch shuffled votes still tell"),
        ({"protocol": "ballot", "agents": 2}, "protocol: in ballot of 2 nobody votes"),
        ({"protocol": "direct", "votes": "none", "agents": 4}, "protocol: in direct of 4 nobody votes"),
    ):
        with pytest.raises(UserError, match=sentence):
            plan_run(settings(tmp_path / "run", **rules))
    for rules in ({"votes": "majority"}, {"truth_weight": "1 -> 0"}, {"outcome_bonus": 1}):
        plan_run(settings(tmp_path / "run", protocol="direct", **rules))

"""The arms of the experiment are settings that can be run, and differ in nothing but where the reward comes from."""

import gzip
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from experiments.votes_teach import run, table, voters
from peergrad.cli.main import train_settings
from peergrad.config import PRESETS
from peergrad.debate.settings import flat
from peergrad.measure.statistics import student_t

FOLDER = Path(run.__file__).parent
PARROT = Path(__file__).parent / "fixtures" / "parrot"


@pytest.mark.parametrize("arm", run.ARMS)
def test_an_arm_can_be_run(arm):
    config = train_settings(["--config", str(FOLDER / f"{arm}.toml"), "--task", "gsm8k:x.jsonl"])
    given = tomllib.loads((FOLDER / f"{arm}.toml").read_text())
    settings = flat(config)
    assert all(settings[name] == value for section in given.values() for name, value in section.items())
    assert f"({arm}.toml)" in (FOLDER / "README.md").read_text()


def test_arms_differ_in_the_reward_alone():
    arms = {arm: tomllib.loads((FOLDER / f"{arm}.toml").read_text()) for arm in run.ARMS if arm != "parallel"}
    for given in arms.values():
        given["debate"].pop("protocol")
        assert {given["learn"].pop(name, None) for name in ("votes", "truth_weight")} - {None}
    assert all(given == arms["peer"] for given in arms.values())


def test_the_recommended_preset_is_the_arm_of_peer_votes():
    given = tomllib.loads((FOLDER / "peer.toml").read_text())
    of_the_arm = {name: value for section in given.values() for name, value in section.items()}
    chosen = PRESETS["recommended"][1]
    assert {name: value for name, value in chosen.items() if name not in ("model", "task")} == of_the_arm


def test_an_arm_and_its_evaluation_are_run_and_resumed(tmp_path, capsys):
    rows = [{"question": f"What is {n} plus {n}?", "answer": f"#### {2 * n}"} for n in range(12)]
    for name in ("gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz"):
        with gzip.open(tmp_path / name, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    sizes = ["batch=2", "agents=3", "max_tokens=16", "eval_questions=2", "eval_every=1", "rank=2", "dtype=float32"]
    given = ["--model", str(PARROT), "--data", str(tmp_path), "--out", str(tmp_path / "runs"), "--arms", "peer,majority"]
    given += ["--seeds", "0,1", "--steps", "1", "--questions", "3", "--samples", "2", "--set", *sizes]
    assert run.main(given) == 0
    adapters = {}
    for name in ("peer-0", "majority-0", "peer-1", "majority-1"):
        folder = tmp_path / "runs" / name
        assert [json.loads(line)["phase"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
            "eval",
            "train",
            "eval",
        ]
        (newest,) = (folder / "checkpoints").glob("*0001")
        adapters[name] = (newest / "adapter_model.safetensors").read_bytes()
        result = json.loads((folder / "evals" / "gsm8k" / "result.json").read_text())
        assert result["asked"] == 3
        assert result["model"] == str(folder)
    assert len({*adapters.values()}) == 4  # each seed has its own weights
    assert (tmp_path / "runs" / "base" / "evals" / "gsm8k" / "result.json").exists()
    capsys.readouterr()
    assert run.main(given) == 0
    assert capsys.readouterr().err.count("is finished") == 9


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--arms", "peer,pear"], "pear is not known"),
        (["--tests", "gsm9k"], "gsm9k is not known"),
        (["--set", "stepz=1"], "no setting is called stepz"),
        (["--set", "steps"], "is not NAME=VALUE"),
        (["--data", "nowhere"], "nowhere has no gsm8k_train.jsonl.gz"),
    ],
)
def test_a_mistake_is_said_before_a_model_is_loaded(given, why, capsys):
    with pytest.raises(SystemExit):
        run.arguments(["--model", "m", *given])
    assert why in capsys.readouterr().err


def test_the_table_is_made_of_folders_alone(tmp_path, capsys, monkeypatch):
    def arm(name, right):
        folder = tmp_path / name
        (folder / "evals" / "gsm8k").mkdir(parents=True)
        correct = [float(n < right) for n in range(100)]
        result = {"questions": [f"q{n}" for n in range(100)], "values": {"direct/correct": correct}}
        (folder / "evals" / "gsm8k" / "result.json").write_text(json.dumps(result))
        if name == "base":
            return
        lines = [{"phase": "eval", "step": step, "eval/direct/gsm8k/correct": right / 100} for step in (0, 10)]
        lines.append({"phase": "train", "step": 1, "votes/accuracy": 0.75})
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    arm("base", 60)
    for seed, right in enumerate((70, 72)):
        arm(f"peer-{seed}", right)
        arm(f"shuffled-{seed}", 60)
    monkeypatch.setattr("sys.argv", ["table", str(tmp_path), "--figure", str(tmp_path / "f.svg")])
    assert table.main() == 0
    printed = capsys.readouterr().out
    peer = next(line for line in printed.splitlines() if line.startswith("| peer |"))
    assert peer.startswith("| peer | 70.0, 72.0 | 71.0 | +11.0 (")
    assert "0.75 → 0.75" in printed
    assert (tmp_path / "f.svg").read_text().count("<polyline") == 4


def test_differences_by_hand():
    ours, others = ({seed: np.array(values, float) for seed, values in arm.items()} for arm in (OURS, OTHERS))
    # Of questions: the means of the differences are 1, 1/2, 0, 1/2, their variance 1/6, of their mean 1/24, free 3.
    # Of seeds: 1/2 and 1/2, no variance: 1/2 is left, by t with 3 degrees of freedom 3.182 * sqrt(1/24).
    assert table.change_in_pairs(ours, others) == "+50.0 (-15.0 to +115.0)"
    # All seeds: 3/4 of ours is right, and of the others 1/4, 1/4 and 1; by question 1, 1, 0, 1 less 1/3, 2/3, 1/3, 2/3.
    parts = [(np.var([2 / 3, 1 / 3, -1 / 3, 1 / 3], ddof=1) / 4, 3), (0.0, 1), (np.var([0.25, 0.25, 1], ddof=1) / 3, 2)]
    variance = sum(part for part, _ in parts)
    half = student_t(int(variance**2 / sum(part**2 / free for part, free in parts))) * variance**0.5
    middle = 0.75 - 0.5
    low, high = 100 * (middle - half), 100 * (middle + half)
    assert table.change(ours, others) == f"+25.0 ({low:+.1f} to {high:+.1f})"
    assert table.change_in_pairs(ours, {"-7": others["-7"]}) == ""


OURS = {"-0": [1, 1, 0, 1], "-1": [1, 1, 0, 1]}
OTHERS = {"-0": [0, 0, 0, 1], "-1": [0, 1, 0, 0], "-7": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("folder", "drawn", "rows", "runs"), [("", "votes_teach", 12, 15), ("thirty", "thirty_steps", 6, 2)]
)
def test_the_results_that_are_kept_make_the_tables_of_the_docs(folder, drawn, rows, runs, capsys, monkeypatch, tmp_path):
    figure, docs = tmp_path / "figure.svg", FOLDER.parents[1] / "docs"
    monkeypatch.setattr("sys.argv", ["table", str(FOLDER / "results" / folder), "--figure", str(figure)])
    assert table.main() == 0
    printed = [cells(line) for line in capsys.readouterr().out.splitlines()]
    page = [cells(line) for line in (docs / "results.md").read_text().splitlines()]
    kept = [row for row in printed if row and re.sub(r"-\d+$", "", row[0]) in table.ORDER]
    assert [len([row for row in kept if (row[0] in table.ORDER) == arm]) for arm in (True, False)] == [rows, runs]
    assert [row for row in kept if row not in page] == []
    assert figure.read_text() == (docs / f"{drawn}.svg").read_text()


def cells(line):
    return [cell.strip() for cell in line.replace("*", "").replace(" (sees the labels)", "").strip().strip("|").split("|")]


def test_what_voters_know_is_read_from_kept_debates(capsys):
    assert voters.main(map(str, sorted((FOLDER / "results" / "peer-0" / "debates").glob("*.gz")))) == 0
    printed = capsys.readouterr().out
    page = (FOLDER.parents[1] / "docs" / "results.md").read_text()
    rows = [cells(line) for line in printed.splitlines() if re.match(r"\| (the voter's own|another), ", line)]
    assert len(rows) == 8
    for name, mean, of in rows:
        assert re.search(rf"\| {name} \|.* {mean} \({of}\)", page)
    assert "votes/accuracy_beyond_own: 48% (38% to 59%), 302 votes on 33 questions" in printed

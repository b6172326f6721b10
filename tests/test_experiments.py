"""The arms of the experiment are settings that can be run, and differ in nothing but where the reward comes from."""

import argparse
import json
import tomllib
from pathlib import Path

import pytest

from experiments.votes_teach import run, table
from peergrad.cli.main import train_settings
from peergrad.settings import flat

FOLDER = Path(run.__file__).parent


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


def test_commands_of_an_arm(tmp_path):
    names = ("gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz", "svamp.jsonl.gz")
    for name in names:
        (tmp_path / name).touch()
    given = {"model": "m", "data": tmp_path, "out": Path("o"), "arms": "peer,truth", "seeds": "0,1", "steps": 2}
    args = argparse.Namespace(**given, questions=0, base=True)
    made = run.commands(args, ["--kv-gb", "1"])
    assert list(made) == ["base", "peer-0", "peer-1", "truth-0", "truth-1"]
    training, *evaluations = made["peer-1"]
    assert training[:2] == ["train", "--config"]
    assert training[-4:] == ["--kv-gb", "1", "--out", "o/peer-1"]
    assert [part[-1] for part in evaluations] == ["o/peer-1/evals/gsm8k", "o/peer-1/evals/svamp"]


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
    assert peer.startswith("| peer | 2 | 71.0 | +11.0 (+")
    assert "0.75 → 0.75" in printed
    assert (tmp_path / "f.svg").read_text().count("<polyline") == 4

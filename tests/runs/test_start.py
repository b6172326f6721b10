"""Where training starts: with the weights of a run, of one of its checkpoints, or of an adapter, and fresh settings."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from peergrad.cli import main as cli
from peergrad.runs.folder import Progress, Run
from tests.runs.test_run import PARROT, adapter, run

SMALL = ["--batch", "2", "--rank", "4", "--threads", "1", "--lr", "3e-3", "--max-tokens", "48", "--warm-steps", "0"]
SMALL += ["--eval-questions", "0", "--eval-debates", "0", "--preset", "demo-parallel"]


def peergrad(*args):
    """The command, in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["peergrad", *map(str, args)])
        patch.setattr(os, "_exit", sys.exit)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code


def train(model, out, *more):
    assert peergrad("train", "--model", model, "--out", out, *SMALL, *more) == 0
    return Run(Path(out))


def refused(capsys, *args):
    assert peergrad(*args) == 2
    shown = capsys.readouterr()
    return " ".join(f"{shown.out} {shown.err}".split())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of three steps, all its checkpoints kept, and its adapter exported."""
    made = run(tmp_path_factory.mktemp("source") / "run", save_every=1, eval_questions=0, eval_debates=0)
    assert peergrad("export", made.path, "--to", made.path.parent / "adapter") == 0
    return made


@pytest.mark.parametrize("name", ["{run}", "{run}@1", "{run}/checkpoints/step_000002", "{run}/../adapter"])
def test_a_run_starts_with_what_another_learned(source, tmp_path, name):
    model = name.format(run=source.path)
    made = train(model, tmp_path / "new", "--steps", "1", "--lr", "1e-4", "--seed", "5")
    step = 1 if name.endswith("@1") else 2 if name.endswith("2") else 3
    assert adapter(made, 0) == adapter(source, step)  # before its first step
    assert load_file(made.folder(Progress(0)) / "optimizer.safetensors") == {}
    assert adapter(made, 1) != adapter(source, step)
    assert made.metrics()[0]["step"] == 1
    assert made.facts["model"] == model
    assert made.facts["base"] == str(PARROT)
    assert made.facts["adapter_sha256"] == adapter(source, step)
    expected = Path(model) if step == 2 or "adapter" in name else source.path / "checkpoints" / f"step_{step:06}"
    assert made.facts["start"] == str(expected)


def test_another_step_than_the_runs_own_seed_and_settings_would_make(source, tmp_path):
    """Seed and optimizer are the new run's: two seeds play other debates from the same weights."""
    one, two = (train(source.path, tmp_path / seed, "--steps", "1", "--seed", seed) for seed in ("5", "6"))
    assert adapter(one, 0) == adapter(two, 0)
    assert adapter(one, 1) != adapter(two, 1)


@pytest.mark.parametrize("fate", ["moved", "trained on"])
def test_a_run_goes_on_whatever_became_of_what_it_started_from(source, tmp_path, fate):
    shutil.copytree(source.path, tmp_path / "source")
    whole = train(tmp_path / "source", tmp_path / "whole", "--steps", "2")
    train(tmp_path / "source", tmp_path / "half", "--steps", "1")
    if fate == "moved":
        (tmp_path / "source").rename(tmp_path / "elsewhere")
    else:
        run(tmp_path / "source", save_every=1, eval_questions=0, eval_debates=0, steps=4)
    half = train(tmp_path / "source", tmp_path / "half", "--steps", "2")
    assert adapter(half, 2) == adapter(whole, 2)
    assert half.facts == half.facts | {"adapter_sha256": adapter(source), "base": str(PARROT)}


def test_without_a_checkpoint_of_its_own_it_needs_the_same_start(source, tmp_path, capsys):
    shutil.copytree(source.path, tmp_path / "source")
    made = train(tmp_path / "source", tmp_path / "new", "--steps", "1")
    (made.path / "checkpoints" / "step_000001" / "state.json").write_text("")
    (made.path / "checkpoints" / "step_000000" / "state.json").write_text("")
    run(tmp_path / "source", save_every=1, eval_questions=0, eval_debates=0, steps=4)
    sentence = refused(capsys, "train", "--model", tmp_path / "source", "--out", made.path, *SMALL, "--steps", "2")
    assert "is gone, or has learned since the run in" in sentence
    shutil.rmtree(tmp_path / "source")
    shutil.copytree(source.path, tmp_path / "source")
    assert adapter(train(tmp_path / "source", made.path, "--steps", "1"), 0) == adapter(source)


def test_the_base_model_is_known_through_a_chain_of_runs(source, tmp_path):
    second = train(source.path, tmp_path / "second", "--steps", "1")
    third = train(second.path, tmp_path / "third", "--steps", "1")
    assert third.facts["base"] == str(PARROT)
    assert adapter(third, 0) == adapter(second, 1)
    assert peergrad("export", third.path, "--to", tmp_path / "adapter") == 0
    assert f"base_model: {PARROT}" in (tmp_path / "adapter" / "README.md").read_text()
    assert peergrad("eval", "--model", f"{third.path}@0", "--questions", 2, "--mode", "direct", "--threads", 1) == 0
    result = json.loads(next((third.path / "evals").glob("third-0-*/result.json")).read_text())
    assert result["adapter_sha256"] == adapter(second, 1)


def test_check_plays_and_updates_what_a_run_learned(source, tmp_path, capsys):
    peergrad("check", "--model", source.path, "--questions", "2", "--json", *SMALL)
    other = capsys.readouterr().out
    peergrad("check", "--model", PARROT, "--questions", "2", "--json", *SMALL)
    assert json.loads(other)["gates"] != json.loads(capsys.readouterr().out)["gates"]


def test_what_does_not_fit_is_refused_and_leaves_no_folder(source, tmp_path, capsys):
    new = tmp_path / "new"

    def sentence(model, *more):
        return refused(capsys, "train", "--model", model, "--out", new, *SMALL, "--steps", "1", *more)

    assert "rank: the adapter in" in (error := sentence(source.path, "--rank", "8"))
    assert "has 4, not 8; give rank 4" in error
    assert "has 32, not 16; give alpha 32" in sentence(source.path, "--alpha", "16")
    assert "has no checkpoint of step 9; there are 0, 1, 2, 3" in sentence(f"{source.path}@9")
    shutil.copytree(source.path.parent / "adapter", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "adapter_config.json").read_text())
    (tmp_path / "other" / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    assert "no plain LoRA" in sentence(tmp_path / "other")
    (tmp_path / "other" / "adapter_config.json").write_text(json.dumps(config))
    raw = bytearray((tmp_path / "other" / "adapter_model.safetensors").read_bytes())
    (tmp_path / "other" / "adapter_model.safetensors").write_bytes(raw.replace(b"q_proj", b"z_proj"))
    assert "adds to other matrices than are trained here" in sentence(tmp_path / "other")
    assert not new.exists()


def test_a_base_model_that_only_a_folder_names_is_not_fetched(source, tmp_path, capsys, monkeypatch):
    def fetch(*args, **more):
        raise AssertionError(f"fetched {args}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    shutil.copytree(source.path, tmp_path / "sent")
    facts = json.loads((tmp_path / "sent" / "run.json").read_text())
    (tmp_path / "sent" / "run.json").write_text(json.dumps(facts | {"base": "somebody/evil"}))
    shutil.copytree(source.path.parent / "adapter", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": "somebody/evil"})
    )
    new = ["--out", tmp_path / "new"]
    for model in (tmp_path / "sent", tmp_path / "adapter"):
        for command in (["train", *new, *SMALL], ["check", *SMALL], ["eval", *new], ["debate", "2 + 2?"]):
            sentence = refused(capsys, *command, "--model", model)
            assert "belongs to somebody/evil, which is not on this machine, and is not fetched" in sentence
            assert "peergrad models --get somebody/evil" in sentence
    # Nor by resuming it, unless the person names it too.
    resume = [
        "train",
        "--preset",
        "demo-parallel",
        "--config",
        tmp_path / "sent" / "config.toml",
        "--out",
        tmp_path / "sent",
    ]
    assert "is not fetched because a folder names it" in refused(capsys, *resume, "--steps", "4")


def test_the_hash_is_of_the_weights_file(source, tmp_path):
    made = train(source.path, tmp_path / "new", "--steps", "1")
    file = source.folder(Progress(3)) / "adapter_model.safetensors"
    assert made.facts["adapter_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_dry_run_refuses_what_the_run_would(source, tmp_path, capsys):
    def sentence(out, *more):
        return refused(capsys, "train", "--dry-run", "--model", PARROT, "--out", out, *SMALL, *more)

    (tmp_path / "file").write_text("")
    assert "file/run can't be written" in sentence(tmp_path / "file" / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert "holds something else (thesis.txt)" in sentence(tmp_path / "mine")
    assert "the run in" in (conflict := sentence(source.path, "--lr", "0.5"))
    assert "give the same, or another out" in conflict
    (tmp_path / "empty.jsonl").write_text("")
    assert "has nothing to learn from" in sentence(
        tmp_path / "new", "--warm-from", tmp_path / "empty.jsonl", "--warm-epochs", 1
    )
    assert "has no checkpoint of step 9" in sentence(tmp_path / "new", "--model", f"{source.path}@9")
    assert not (tmp_path / "new").exists()


def test_a_run_whose_debates_teach_nothing_ends_with_an_error(tmp_path, capsys):
    nothing = ["--no-format-penalty", "--max-tokens", "2", "--steps", "1"]  # nobody gets as far as a vote
    assert peergrad("train", "--model", PARROT, "--out", tmp_path / "run", *SMALL, *nothing) == 1
    assert "nothing was learned: no step made an update" in " ".join(capsys.readouterr().err.split())

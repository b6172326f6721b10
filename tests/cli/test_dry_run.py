"""``peergrad train --dry-run``: what it refuses, what it says, and what it says it did not check."""

import sys

import pytest

from peergrad.cli import main as cli
from tests.cli.answers import ROOT

PARROT = str(ROOT / "tests" / "fixtures" / "parrot")


DEBATES = ["--preset", "demo-parallel"]


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["peergrad", "train", "--dry-run", *args])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not (tmp_path / "runs").exists()
        return left.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "smolm2"], "model: 'smolm2' is not known; did you mean 'smollm2'?"),
        (["--model", "/no/such/folder"], "model: '/no/such/folder' does not exist"),
        (["--device", "cuda:99"], "device: 'cuda:99' can't be used here"),
        (["--device", "coda"], "device: 'coda' can't be used here"),
        (["--model", PARROT, "--max-tokens", "100000"], "do not fit the context of"),
    ],
)
def test_what_can_not_work_is_refused(args, says, dry_run):
    code, out, err = dry_run(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--preset", "demo", "--agents", "2"], "# agents: of two answers that differ neither is the most frequent"),
        ([*DEBATES, "--agents", "2"], "# agents: nobody is shown two others, so nobody can vote"),
        ([*DEBATES, "--agents", "1"], "# agents: nobody is shown two others, so nobody can vote"),
        ([*DEBATES, "--max-rounds", "1"], "so nobody can vote, and form alone is rewarded; give max_rounds 2 or more"),
        (["--max-tokens", "1000"], "# max_tokens: prompts outgrow the context of 2,048 tokens where replies have more than"),
        (["--kv-gb", "2"], "(weights 0.0, keys and values up to 2.0, training about 0.0)"),
        (["--kv-gb", "1e6"], "--kv-gb and --train-tokens make it less"),
    ],
)
def test_what_disappoints_is_said(args, says, dry_run):
    code, out, _ = dry_run("--model", PARROT, *args)
    assert code == 0
    assert says in out
    assert "can vote" not in dry_run("--model", PARROT)[1]


def test_what_is_not_checked_is_said(dry_run, monkeypatch, tmp_path):
    monkeypatch.setenv("PEERGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for model in ("smollm2", "nobody/nothing"):
        code, out, _ = dry_run("--model", model)
        assert code == 0
        assert f"# Not checked: {model} is not on this machine yet" in out


def test_every_setting_says_where_it_is_from(dry_run, tmp_path):
    (tmp_path / "mine.toml").write_text("steps = 7\n")
    _, out, _ = dry_run("--model", PARROT, "--lr", "0.5", "--config", "mine.toml", "--preset", "demo-parallel")
    assert "steps = 7  # mine.toml" in out
    assert "lr = 0.5  # given" in out
    assert "batch = 4  # preset demo-parallel" in out
    assert "agents = 3\n" in out
    assert "# Settings: preset demo-parallel, then mine.toml." in out
    _, out, _ = dry_run("--model", PARROT, "--config", "mine.toml")
    assert "batch = 16\n" in out
    assert (
        "# Settings: mine.toml, without a preset: what it does not name has the usual value, not that of demo-parallel."
        in out
    )

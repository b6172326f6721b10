"""``peergrad train --dry-run``: what it refuses, what it says, and what it says it did not check."""

import json
import re
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
        (["--kv-gb", "2"], "(weights 0.0, keys and values up to 2.0, training about 0.0,"),
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


def test_a_file_that_is_there_but_not_converted(dry_run, monkeypatch, tmp_path):
    monkeypatch.setenv("PEERGRAD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF" + bytes(100))
    code, out, _ = dry_run("--model", "tiny.gguf")
    assert code == 0
    assert "# Not checked: tiny.gguf has not been converted yet, which the first run does, so its context" in out
    (tmp_path / "none.gguf").write_bytes(bytes(100))
    code, _, err = dry_run("--model", "none.gguf")
    assert code == 2
    assert "'none.gguf' is not a GGUF file" in err


def test_memory_by_hand(dry_run, tmp_path):
    """4 layers of 100 to 1,000, 1,000 words, and weights of three sizes."""
    shape = {"hidden_size": 100, "num_hidden_layers": 4, "intermediate_size": 1000, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 8192, "dtype": "float32"}))

    def memory(gib, tokens):
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(int(gib * 2**30))  # nothing reads it
        _, out, _ = dry_run("--model", str(tmp_path), "--device", "cpu", "--kv-gb", "1", "--train-tokens", str(tokens))
        line = next(line for line in out.splitlines() if line.startswith("# Memory"))
        return [float(number) for number in re.findall(r"\d+\.\d", line)][:5]

    # A token: 4 bytes in 4 layers of 10 · 100 + 3 · 1,000, so 64,000; 65,536 of them 3.906 GiB. 256 · 1,000 logits of 12
    # bytes: 0.003. Weights of 0.5 are packed twice: 1.2 (1 + 1 + 3.909) + 0.5 = 7.591, of which 1.682 is not listed.
    assert memory(0.5, 65536) == [7.6, 1.0, 1.0, 3.9, 1.7]
    # More than 2 are not packed: 1.2 (2.5 + 1 + 3.909) + 0.5 = 9.391.
    assert memory(2.5, 65536) == [9.4, 2.5, 1.0, 3.9, 2.0]
    # Training on fewer tokens, 0.064, is less than the copy to sample with, 1: 1.2 (2 + 1 + 1) + 0.5 = 5.3.
    assert memory(1, 1024) == [5.3, 2.0, 1.0, 0.1, 2.2]


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

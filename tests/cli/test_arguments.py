"""Whatever stands on the command line: one clean sentence, never a traceback, and what a reader that leaves may cost."""

import os
import random
import re
import subprocess
import sys

import pytest

from peergrad.cli import main as cli
from tests.cli.answers import PEERGRAD, ROOT

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)
PIECES = [
    "\x1b]52;c;aGk=\x07",
    "\x1b[2J",
    "\x9b31m",
    "\u202e",
    "\u061c",
    "\u180e",
    "\r",
    "\n",
    "\0",
    "\udce9",
    "[red]",
    "{}",
]
PIECES += ["--", "-", "=", "@", "http://u:p@h", "%s", "'", '"', " ", "1e999", "-1", "nan", "é", "😀", "x" * 300, "math", "3"]
OPTIONS = ["--preset", "--config", "--model", "--agents", "--task", "--seat", "--lr", "--json", "--engine", "--help-all"]
OPTIONS += ["--protocol", "--base-url", "--out", "--steps", "--no-json", "--dry-run", "--log-to", "--tyro-print-completion"]


def argument_lists(count, seed=0):
    chance = random.Random(seed)
    for _ in range(count):
        command = chance.choice([*cli.COMMANDS, *["score", "models", "compare", "export"] * 6, *PIECES])
        words = [
            "".join(chance.choices([*OPTIONS, *PIECES], k=chance.choice((1, 1, 2, 3)))) for _ in range(chance.randrange(5))
        ]
        yield [command, *words]


def run(args, monkeypatch, capsys):
    """What the command line makes of arguments, without doing the work."""
    monkeypatch.setattr(sys, "argv", ["peergrad", *args])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code, *capsys.readouterr()


def test_no_argument_reaches_the_terminal_raw_or_ends_in_a_traceback(monkeypatch, capsys, tmp_path):
    parsed = cli.parsed
    monkeypatch.setattr(cli, "parsed", lambda name, args: parsed(name, args) and (lambda: None))
    monkeypatch.chdir(tmp_path)
    codes = set()
    for args in argument_lists(500):
        code, out, err = run(args, monkeypatch, capsys)
        assert code in (0, 2, None), args
        assert not UNSAFE.search(out + err), args
        assert err.count("\n") <= 1, args
        assert "Traceback" not in out + err, args
        codes.add(code)
    assert codes >= {0, 2}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["tran"], "'tran' is no command; did you mean 'train'?"),
        (["train", "--agens", "3"], "--agents"),
        (["debate", "?", "--modle", "x"], "--model"),
        (["train", "--\x1b]52;c;aGk=\x07"], "Unrecognized options"),
    ],
)
def test_a_mistake_gets_the_nearest_that_there_is(args, says, monkeypatch, capsys):
    code, out, err = run(args, monkeypatch, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_the_version(monkeypatch, capsys):
    import peergrad

    assert run(["--version"], monkeypatch, capsys) == (0, f"{peergrad.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["train", "--dry-run"], ["score", "GOLDEN"]])
def test_a_full_disk_is_a_sentence(arguments):
    golden = str(ROOT / "tests" / "golden" / "worked.jsonl")
    with open("/dev/full", "w") as full:
        command = [*PEERGRAD, *(golden if one == "GOLDEN" else one for one in arguments)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "peergrad: the output can't be written (No space left on device)\n")


def test_a_training_outlives_its_reader(tmp_path):
    model, out = ROOT / "tests" / "fixtures" / "parrot", tmp_path / "run"
    settings = [
        "--preset=demo-parallel",
        "--steps=1",
        "--warm-steps=0",
        "--eval-questions=0",
        "--eval-debates=0",
        "--batch=2",
        "--max-tokens=64",
    ]
    command = [*PEERGRAD, "train", "--model", str(model), "--out", str(out), *settings]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(300) == 0
    assert (out / "report.html").exists()


@pytest.mark.parametrize("name", ["train", "check", "eval", "debate"])
def test_help_is_examples_and_a_dozen_options_and_all_are_one_word_away(name, monkeypatch, capsys):
    code, short, _ = run([name, "--help"], monkeypatch, capsys)
    assert code == 0
    assert f"  peergrad {name}" in short
    assert 10 <= len(re.findall(r"^  --[a-z]", short, re.MULTILINE)) <= 14
    code, every, _ = run([name, "--help-all"], monkeypatch, capsys)
    assert code == 0
    assert f"peergrad {name} --help-all" in short
    assert every.count("--") > 3 * short.count("--")


def test_help_says_where_values_come_from(monkeypatch, capsys):
    _, demo, _ = run(["train", "--help"], monkeypatch, capsys)
    _, math, _ = run(["train", "--preset", "math", "-h"], monkeypatch, capsys)
    assert "as the preset demo-parallel has it" in demo
    assert "--max-tokens 64 " in demo
    assert "as the preset math has it" in math
    assert "--max-tokens 8196 " in math


@pytest.mark.parametrize("name", ["train", "check", "eval", "debate"])
def test_every_setting_has_a_sentence(name, monkeypatch, capsys):
    """Those of a ballot too, which are there where ballots are asked for."""
    monkeypatch.setenv("COLUMNS", "100")
    _, shown, _ = run([name, "--protocol", "ballot", "--help-all"], monkeypatch, capsys)
    options = re.split(r"^\W+(?=--[a-z])", re.sub("\x1b\\[[0-9;]*m", "", shown), flags=re.MULTILINE)[1:]
    assert any(option.startswith("--ballot-form") for option in options)
    assert [one for one in options if not re.search(r"  [A-Z].*\.", one.partition("(default")[0], re.DOTALL)] == []

"""Files that somebody made to hang or fill the machine: each is one sentence, in little time and memory."""

import gzip
import json
import os
import resource
import subprocess
import sys

import pytest

from peergrad import UserError, read_file
from peergrad.debate.fields import read_toml
from peergrad.debate.settings import read_settings
from peergrad.tasks.open import TaskConfig, open_questions

MEMORY = 3 << 30  # of address space: what the command takes anyway, and little more


def bomb(piece, size=10 << 30):
    """A small file that unpacks to so many bytes: one packed piece again and again."""
    return gzip.compress(piece) * (size // len(piece))


def train(folder, *args):
    """The real command, which must come to an end by itself within little memory."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # noqa: E731
    command = [sys.executable, "-m", "peergrad", "train", "--preset", "demo-parallel", "--dry-run", *args]
    few = {"cwd": folder, "env": os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}, "preexec_fn": limit}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **few)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "piece", "says"),
    [
        ("a.jsonl.gz", b"\0" * (16 << 20), "line 1: has more than 16 MiB"),
        ("a.jsonl.gz", b"\n" * (16 << 20), "has more than 5,000,000 lines; give a part of it"),
        ("a.csv.gz", b"question\n" * (2 << 20), "holds more than 256 MiB; give a part of it, or a .jsonl file"),
    ],
)
def test_10_gb_in_a_small_file(tmp_path, name, piece, says):
    (tmp_path / name).write_bytes(bomb(piece))
    assert (tmp_path / name).stat().st_size < 64 << 20
    error = train(tmp_path, "--task", name)
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv.gz", "a.json"])
def test_pipes_and_devices_are_no_files(tmp_path, name):
    os.mkfifo(tmp_path / name)
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    for path in (tmp_path / name, tmp_path / f"zero-{name}"):
        with pytest.raises(UserError, match=r"can't be read \(not a plain file\)"):
            open_questions(TaskConfig(task=str(path)))
        with pytest.raises(UserError, match=r"can't be read \(not a plain file\)"):
            list(read_file(str(path)))
        with pytest.raises(UserError, match=r"can't be read \(not a plain file\)"):
            read_settings(path)
    with pytest.raises(UserError, match="is of no kind that can be read"):
        open_questions(TaskConfig(task="/dev/zero"))
    assert "not a plain file" in train(tmp_path, "--task", name)


@pytest.mark.parametrize("deep", [1000, 100_000])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_that_is_nested_without_end(tmp_path, deep, name):
    nested = f'{{"question": {"[" * deep}{"]" * deep}}}'
    (tmp_path / name).write_text(f"[{nested}]" if name == "a.json" else nested)
    with pytest.raises(UserError, match=r"a\.json") as refused:
        open_questions(TaskConfig(task=str(tmp_path / name)))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 200_000) + " = 1",
        "x = {" + ".".join("a" * 200_000) + " = 1}",
        "[" + '"b" . ' * 100_000 + "c]",
        "steps = 0x" + "f" * 100_000,
        "steps = 1" + "0" * 100_000,
        "steps = " + "[" * 100_000,
        "# " + "x" * (1 << 20),
    ],
)
def test_toml_that_would_take_for_ever(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    for read in (read_settings, lambda path: read_toml(path, "personas")):
        with pytest.raises(UserError, match=r"a\.toml") as refused:
            read(tmp_path / "a.toml")
        assert len(str(refused.value)) < 300


def test_toml_as_people_write_it(tmp_path):
    words = "Yes. No. " * 20 + "www." + ".".join("abc") + " 0xff"
    (tmp_path / "a.toml").write_text(f"[learn]\nsteps = 3\ntask = {json.dumps(words)}\n")
    assert read_settings(tmp_path / "a.toml") == {"steps": 3, "task": words}

"""docs/tutorial.md as a person follows it: its files are written, and its commands run, with the smallest model there is."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import peergrad
from peergrad import Parallel, score
from peergrad.runs.folder import Run
from tests.helpers import played, short

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
PARROT = ROOT / "tests" / "fixtures" / "parrot"
SMALL = {"model": PARROT, "steps": 1, "batch": 2, "rank": 2, "threads": 1, "warm-steps": 0, "max-tokens": 40}


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def small(command):
    """A command with less to do; what it says itself stays."""
    given = {f"--{name}": str(value) for name, value in SMALL.items() if f"--{name}" not in command}
    given |= {f"--{name}": "0" for name in ("eval-questions", "eval-debates") if f"--{name}" not in command}
    return [*command, *(part for item in given.items() for part in item)]


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path):
    files = {block.partition("\n")[0].removeprefix("# "): block for block in blocks("python")}
    assert set(files) == {"look.py", "my_reward.py", "my_task.py", "my_protocol.py"}
    for name, text in files.items():
        assert text.count("\n") < 40
        (tmp_path / name).write_text(text)
    commands = [shlex.split(line) for block in blocks("") for line in block.splitlines()]
    for command in commands:
        command = small(command) if command[1] == "train" else command
        command = [sys.executable, *(["-m", "peergrad"] if command[0] == "peergrad" else []), *command[1:]]
        env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout
    logged = {run.name: Run(run).metrics()[-1] for run in (tmp_path / "runs").iterdir()}
    assert set(logged) == {"demo-parallel", "brief", "palindromes", "one-judge", "all"}
    assert "reward/brief/mean" in logged["brief"]
    assert "eval/direct/palindromes/correct" in logged["palindromes"]
    assert logged["one-judge"]["env/all/total_turns"] == 2 * 4
    assert {"reward/brief/mean", "train_palindromes/correct"} <= logged["all"].keys()
    # The last run has a protocol, a task and a reward of one's own.
    for line in done.stdout.partition("next:\n")[2].splitlines():
        said = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
        assert said.returncode == 0, (line, said.stderr)


def test_its_reward_pays_nobody_for_no_solution():
    """The shortest solution is none at all."""
    (code,) = (block for block in blocks("python") if block.startswith("# my_reward.py"))
    names: dict[str, Any] = {}
    exec(code, names)
    said = [short(solution="a"), short(solution="abcd"), "<solution></solution>"]
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: said[ask.agent])
    assert names["brief"](debate, score(debate).tally, None)[-1].values == (0.75, 0.0, None) * 2


def test_everything_it_imports_is_in_the_package():
    names = [
        name for line in re.findall(r"^from peergrad import (.*)$", TUTORIAL, re.MULTILINE) for name in line.split(", ")
    ]
    assert names
    assert set(names) <= set(peergrad.__all__)

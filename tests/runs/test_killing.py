"""Runs that are killed, interrupted or damaged go on with the same command and end with the same adapter, byte for byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("kills", "damages"), [(1, 5), pytest.param(9, 10, marks=pytest.mark.slow)], ids=["some damage", "all damage"]
)
def test_a_run_survives(kills, damages):
    many = ["--kills", str(kills), "--saves", "2", "--damages", str(damages), "--seed", str(kills)]
    command = [sys.executable, "-m", "tests.runs.killing", *many]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    assert result["slowest_to_leave_s"] < 30
    assert done.returncode == 0

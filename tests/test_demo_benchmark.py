"""The benchmark of the demo, through its command, with a small model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARROT = ROOT / "tests" / "fixtures" / "parrot"
SMALL = (
    "--model",
    PARROT,
    "--threads",
    1,
    "--steps",
    1,
    "--batch",
    2,
    "--rank",
    2,
    "--eval-questions",
    4,
    "--eval-every",
    0,
)


def sweep(folder, votes):
    flags = ("--seeds", "0-1", "--runs", votes, "--at-once", 2, "--out", folder, "--", *SMALL)
    command = [sys.executable, "benchmarks/demo.py", *map(str, flags)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_says_what_every_seed_came_to_and_resumes(tmp_path):
    done = sweep(tmp_path, "majority")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((row["seed"], row["run"]) for row in rows[:-1]) == [(0, "majority"), (1, "majority")]
    for row in rows[:-1]:
        lines = [
            json.loads(line) for line in (tmp_path / f"majority-{row['seed']}" / "metrics.jsonl").read_text().splitlines()
        ]
        evals = [line for line in lines if line["phase"] == "eval"]
        right = [value for line in evals for name, value in line.items() if re.fullmatch("eval/sampled/.*/correct", name)]
        assert row["curve"][0][1] == row["before"] == right[0]
        assert row["after"] == right[-1]
    assert rows[-1]["rose"] == {"majority": sum(row["after"] > row["before"] for row in rows[:-1])}

    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("majority-*/*.jsonl")}
    again = sweep(tmp_path, "majority,none-unpacked")
    assert again.returncode == 0, again.stderr
    assert written == {path: path.stat().st_mtime_ns for path in written}, "what is finished is only read"
    assert "| seed | majority | none-unpacked |" in again.stdout
    assert json.loads((again.stdout.splitlines())[-1])["rose"].keys() == {"majority", "none-unpacked"}

    (tmp_path / "majority-1").rename(tmp_path / "kept")
    (tmp_path / "majority-1").write_text("no folder")
    failed = sweep(tmp_path, "majority")
    assert failed.returncode == 1
    assert "majority, seed 1, ended with 2; see" in failed.stderr

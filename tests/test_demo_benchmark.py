"""The benchmark of the demo, through its command, with a small model."""

from __future__ import annotations

import json
import os
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
    "--eval-debates",
    0,
)


def sweep(folder, votes):
    flags = ("--seeds", "0-1", "--votes", votes, "--at-once", 2, "--out", folder, "--", *SMALL, "--center", "group")
    command = [sys.executable, "benchmarks/demo.py", *map(str, flags)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_says_what_every_seed_came_to_and_resumes(tmp_path):
    done = sweep(tmp_path, "peer")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((row["seed"], row["votes"]) for row in rows[:-1]) == [(0, "peer"), (1, "peer")]
    for row in rows[:-1]:
        lines = [json.loads(line) for line in (tmp_path / f"peer-{row['seed']}" / "metrics.jsonl").read_text().splitlines()]
        evals = [line for line in lines if line["phase"] == "eval"]
        right = [value for line in evals for name, value in line.items() if name.endswith("/correct")]
        assert row["curve"][0][1] == row["before"] == right[0]
        assert row["after"] == right[-1]
    assert rows[-1]["peer_runs"] == 2
    assert rows[-1]["rose"] == sum(row["after"] > row["before"] for row in rows[:-1])

    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("peer-*/*.jsonl")}
    again = sweep(tmp_path, "peer,shuffled")
    assert again.returncode == 0, again.stderr
    assert written == {path: path.stat().st_mtime_ns for path in written}, "what is finished is only read"
    assert "| seed | peer | shuffled |" in again.stdout
    assert json.loads((again.stdout.splitlines())[-1])["peer_runs"] == 2

    (tmp_path / "peer-1").rename(tmp_path / "kept")
    (tmp_path / "peer-1").write_text("no folder")
    failed = sweep(tmp_path, "peer")
    assert failed.returncode == 1
    assert "seed 1 with peer votes ended with 2; see" in failed.stderr

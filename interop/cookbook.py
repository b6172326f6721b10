"""tinker-cookbook's own training loops against a real ``peergrad serve``. Opt-in: ``make interop-cookbook``.

Makes an environment for the cookbook in .venv-cookbook the first time. The loops run in processes of their own
(``interop/cookbook_program.py``), which die half-way and are run again, on a server that was started anew in between.
Prints what they wrote into their logs; exits 1 if anything is not as it should be.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv-cookbook"
MODEL = "tests/fixtures/parrot"
PACKAGES = ["torch==2.13.0", "tinker-cookbook==0.5.8"]  # exactly this torch: other specifiers bring the CUDA libraries along
DIED = 9

Row = dict[str, Any]


def install() -> None:
    ready = VENV / "ready"
    if not ready.exists():
        print(f"installing {', '.join(PACKAGES)} into {VENV.name}", flush=True)
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [VENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", ROOT / "interop/cookbook-constraints.txt", *PACKAGES], check=True)
        ready.touch()
        print(f"installed in {time.monotonic() - started:.0f} s", flush=True)


def check_unmodified() -> None:
    """Every file of the cookbook is the one that was published."""
    (record,) = VENV.glob("lib/python3*/site-packages/tinker_cookbook-0.5.8.dist-info/RECORD")
    packages, checked = record.parent.parent, 0
    with record.open(newline="") as file:
        for name, digest, _ in csv.reader(file):
            if name.startswith("tinker_cookbook/") and digest:
                found = base64.urlsafe_b64encode(hashlib.sha256((packages / name).read_bytes()).digest()).rstrip(b"=")
                assert digest == f"sha256={found.decode()}", f"{name} was changed"
                checked += 1
    assert checked > 100, checked
    print(f"tinker-cookbook 0.5.8: {checked} files, all as published")


@contextlib.contextmanager
def serving(out: Path) -> Iterator[str]:
    """``peergrad serve``; gives its address."""
    command = [
        sys.executable,
        "-m",
        "peergrad",
        "serve",
        "--model",
        MODEL,
        "--port",
        "0",
        "--threads",
        "1",
        "--out",
        str(out),
    ]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            yield address(process, log)
        finally:
            process.terminate()
            process.wait(20)
            log.seek(0)
            said = log.read()
            print(*(f"  server: {line}" for line in said.splitlines()), sep="\n", flush=True)
        assert "Traceback" not in said, "the server had a fault of its own"


def address(process: subprocess.Popen[bytes], log: Any) -> str:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        log.seek(0)
        if found := re.search(r" at (http://127\.0\.0\.1:\d+);", log.read()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError("the server did not start within 60 s")


def run(url: str, loop: str, log: Path, batches: list[int], *more: str, code: int = 0) -> str:
    """The program, in the cookbook's environment; all it said."""
    command = [VENV / "bin/python", "interop/cookbook_program.py", loop, "--model", MODEL, "--log", log, *more]
    environ = {
        **os.environ,
        "TINKER_BASE_URL": url,
        "TINKER_API_KEY": "tml-any",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    environ.pop("PYTHONPATH", None)
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--batches", *map(str, batches)], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, f"exit code {done.returncode}\n{said[-6000:]}"
    assert code or "raining completed successfully" in said, said[-6000:]
    for complaint in ("Traceback", "Failed to delete", "save failed", "Could not fetch", "Renderer mismatch"):
        assert complaint not in said, said[-6000:]
    print(f"{log.name}: {loop} {' '.join(more)}: exit code {code}, {time.monotonic() - started:.0f} s", flush=True)
    return said


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def show(metrics: list[Row], *keys: str) -> None:
    for row in metrics:
        print(f"  step {row['step']}:", ", ".join(f"{key} {row[key]:.3g}" for key in keys if key in row))


def folder(served: Path, path: str) -> Path:
    return served / path.removeprefix("tinker://")


def updates(served: Path, state: str) -> set[int]:
    """How many updates Adam has made of each weight in a checkpoint."""
    moments = load_file(folder(served, state) / "optimizer.safetensors")
    return {int(value) for name, value in moments.items() if name.startswith("step.")}


def lifetime_s(served: Path, path: str) -> float:
    """How long a checkpoint was to be kept when it was made."""
    mark = folder(served, path) / "expires"
    return float(mark.read_text()) - mark.stat().st_mtime if mark.exists() else math.inf


# The cookbook writes a checkpoint of step N after update N, and goes on from it with batch N: the batch is learned twice.
# So a run that died after the checkpoint of step 2 is one that saw these, had it not died:
AS_IF = [0, 1, 2, 2, 3, 4]


def check_supervised(whole: Path, cut: Path, served: Path) -> None:
    undisturbed, disturbed = rows(whole / "metrics.jsonl"), rows(cut / "metrics.jsonl")
    show(undisturbed, "train_mean_nll", "test/nll", "grad_norm")
    nll = [row["train_mean_nll"] for row in undisturbed]
    held_out = [row["test/nll"] for row in undisturbed if "test/nll" in row]
    assert nll[-1] < 0.5 * nll[0], nll
    assert held_out == sorted(held_out, reverse=True), held_out
    assert held_out[-1] < 0.5 * held_out[0], held_out
    assert [row["step"] for row in disturbed] == [0, 1, 2, 2, 3, 4]
    apart = max(abs(row["train_mean_nll"] - expected) for row, expected in zip(disturbed, nll, strict=True))
    print(f"  died and resumed: train_mean_nll within {apart:.1e} of the run nobody disturbed")
    assert apart < 1e-4
    first, *_, last = rows(cut / "checkpoints.jsonl")
    assert (first["name"], last["name"]) == ("000002", "final")
    assert updates(served, first["state_path"]) == {3}
    assert updates(served, last["state_path"]) == {6}
    print("  updates in the checkpoints: 3 when it died, 6 at the end")


def check_dpo(log: Path, served: Path) -> None:
    metrics = rows(log / "metrics.jsonl")
    show(metrics, "dpo_loss", "accuracy", "margin")
    assert abs(metrics[0]["dpo_loss"] - math.log(2)) < 1e-4  # the policy is the reference, to begin with
    assert metrics[-1]["dpo_loss"] < 0.9 * math.log(2)
    assert metrics[-1]["accuracy"] > 0.9
    assert updates(served, rows(log / "checkpoints.jsonl")[-1]["state_path"]) == {len(metrics)}


def check_rl(log: Path, served: Path, resumed_at: int) -> None:
    metrics, saved = rows(log / "metrics.jsonl"), rows(log / "checkpoints.jsonl")
    show(
        metrics,
        "env/all/reward/total",
        "optim/kl_sample_train_v1",
        "optim/kl_sample_train_v2",
        "kl_policy_base",
        "kl_pre_post_v2",
    )
    check_on_policy(metrics)
    assert [row["step"] for row in metrics] == [0, 1, 2, 3, *range(resumed_at, 6)]
    assert abs(metrics[0]["kl_policy_base"]) < 1e-5  # where it began
    assert metrics[-1]["kl_policy_base"] > 0.1
    tested = [row["test/env/all/reward/total"] for row in metrics if "test/env/all/reward/total" in row]
    print("  reward on held-out questions:", ", ".join(f"{reward:.3f}" for reward in tested))
    assert tested[-1] > tested[0] + 0.1, tested
    assert updates(served, saved[-1]["state_path"]) == {6}
    left = {folder(served, one["state_path"]).exists() for one in saved if one.get("rolling") and one["batch"] in (1, 5)}
    assert left == {False}, "rolling checkpoints that were deleted are still there"
    kinds = {"final" if one["name"] == "final" else "rolling" if one.get("rolling") else "periodic": one for one in saved}
    kept = {kind: lifetime_s(served, one["state_path"]) for kind, one in kinds.items() if kind != "rolling"}
    assert kept["final"] == math.inf
    assert abs(kept["periodic"] - 604800) < 5, kept
    print("  6 updates; rolling checkpoints were deleted, periodic ones expire after 7 days, the final one never")


def check_on_policy(metrics: list[Row]) -> None:
    for row in metrics:
        assert abs(row["optim/kl_sample_train_v1"]) < 1e-5, row
        assert row["optim/kl_sample_train_v2"] < 1e-8, row
        assert row["optim/entropy"] > 0, row
        assert row["kl_pre_post_v2"] > 1e-5, row  # the update did something
        assert row["grad_norm"] > 0, row
        assert row["skipped"] == 0, row
        assert row["env/all/by_group/frac_mixed"] > 0, row  # there was something to learn


def check_mode(log: Path, served: Path, *, on_policy: bool) -> None:
    metrics, saved = [row for row in rows(log / "metrics.jsonl") if "optim/lr" in row], rows(log / "checkpoints.jsonl")
    show(metrics, "env/all/reward/total", "optim/kl_sample_train_v2", "kl_pre_post_v2")
    if on_policy:
        check_on_policy(metrics)
    assert metrics
    assert all(math.isfinite(row["optim/kl_sample_train_v2"]) and row["skipped"] == 0 for row in metrics)
    assert updates(served, next(one for one in saved if one["name"] == "final")["state_path"]) == {len(metrics)}


def main() -> None:
    install()
    check_unmodified()
    with tempfile.TemporaryDirectory() as name:
        logs, served = Path(name) / "logs", Path(name) / "served"
        logs.mkdir()
        batches = list(range(6))
        with serving(served) as url:
            run(url, "supervised", logs / "whole", AS_IF)
            run(url, "supervised", logs / "cut", batches[:5], "--die-at", "3", code=DIED)
            run(url, "rl", logs / "rl", batches, "--die-at", "4", code=DIED)
        resumed_at = rows(logs / "rl/checkpoints.jsonl")[-1]["batch"]
        with serving(served) as url:
            for loop, log, count in (("supervised", "cut", 5), ("rl", "rl", 6)):
                said = run(url, loop, logs / log, batches[:count])
                assert "Resumed training from tinker://" in said, said[-6000:]
                assert "Renderer metadata matches" in said, said[-6000:]
            run(url, "dpo", logs / "dpo", batches[:4])
            run(url, "rl", logs / "stream", batches[:3], "--mode", "stream", "--loss", "ppo")
            run(url, "rl", logs / "async", batches[:4], "--mode", "async", "--loss", "cispo")
        print("supervised.train")
        check_supervised(logs / "whole", logs / "cut", served)
        print("preference.train_dpo")
        check_dpo(logs / "dpo", served)
        print(f"rl.train, resumed at batch {resumed_at}")
        check_rl(logs / "rl", served, resumed_at)
        print("rl.train, streamed minibatches, ppo")
        check_mode(logs / "stream", served, on_policy=True)
        print("rl.train, asynchronous, cispo")
        check_mode(logs / "async", served, on_policy=False)
    print("all is as it should be")


if __name__ == "__main__":
    main()

"""Real processes that train a real, small model, and are killed: at random moments, at every step of a save, by signals.

``python -m tests.runs.killing --kills 50 --saves all`` is the long version; the tests run a short one. Children are
forked from a process that has everything imported, so that a start takes a tenth of a second instead of five.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
ARGS = ["--model", str(PARROT), "--steps", "4", "--batch", "3", "--warm-steps", "2", "--warm-debates", "2", "--rank", "4"]
ARGS += ["--threads", "1", "--eval-questions", "2", "--eval-debates", "1", "--eval-every", "2", "--lr", "0.003"]


def train(out: Path, extra: list[str] | None = None) -> int:
    """``peergrad train`` in this process."""
    from peergrad import cli

    sys.argv = ["peergrad", "train", "--out", str(out), *ARGS, *(extra or [])]
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def child(work: Callable[[], int], log: Path) -> int:
    """A forked process that does something and ends; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.setsid()
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(pid: int, limit_s: float = 120) -> int | None:
    """The exit code of a child, negative for a signal; ``None`` if it takes too long."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def finish(out: Path, log: Path) -> int | None:
    return wait(child(lambda: train(out), log))


def adapter(out: Path) -> str:
    return hashlib.sha256((out / "checkpoints" / "step_000004" / "adapter_model.safetensors").read_bytes()).hexdigest()


def steps_logged(out: Path) -> list[int]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [line["step"] for line in map(json.loads, lines) if line["phase"] == "train"]


def killed_at(out: Path, log: Path, count: int) -> int | None:
    """Train, and die by SIGKILL at the ``count``-th touch of the disk; the exit code if it was done before."""

    def work() -> int:
        touches = 0

        def touched() -> None:
            nonlocal touches
            touches += 1
            if touches == count:
                os.kill(os.getpid(), signal.SIGKILL)

        def dying(real: Callable) -> Callable:
            def call(*args, **kwargs):
                touched()  # before it is done
                made = real(*args, **kwargs)
                touched()  # and after
                return made

            return call

        for place, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree"), (Path, "write_bytes"), (Path, "mkdir")):
            setattr(place, name, dying(getattr(place, name)))
        code = train(out)
        Path(f"{out}.touches").write_text(str(touches))
        return code

    return wait(child(work, log))


def compare(out: Path, log: Path, right: str) -> str | None:
    """What is wrong with a run that was killed and then finished; ``None`` if nothing."""
    code = finish(out, log)
    if code != 0:
        return f"the same command ended with {code}: {log.read_text()[-500:]}"
    if adapter(out) != right:
        return "the adapter differs"
    if steps_logged(out) != [1, 2, 3, 4]:
        return f"metrics have steps {steps_logged(out)}"
    return None


def step_reached(out: Path) -> int:
    with contextlib.suppress(OSError):
        return len([path for path in (out / "checkpoints").glob("step_*") if path.name != "step_000000"])
    return 0


def main(kills: int, saves: str, seed: int) -> dict:
    import torch

    torch.set_num_threads(1)
    import peergrad.cli
    import peergrad.engines.local.engine
    import peergrad.train_command  # noqa: F401 (so that children need not)

    rng = random.Random(seed)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        started = time.monotonic()
        assert finish(base / "whole", base / "whole.log") == 0, (base / "whole.log").read_text()
        whole_s = time.monotonic() - started
        right = adapter(base / "whole")
        assert finish(base / "again", base / "again.log") == 0
        if adapter(base / "again") != right:
            wrong.append("two whole runs differ")
        for number in range(kills):
            out, log = base / f"kill{number}", base / f"kill{number}.log"
            pid = child(lambda out=out: train(out), log)
            moment = rng.uniform(0.02, 0.98) * whole_s
            time.sleep(moment)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if what := compare(out, log, right):
                wrong.append(f"killed after {moment:.2f} s: {what}")
            shutil.rmtree(out)
        killed_at(base / "counted", base / "counted.log", -1)
        touches = int(Path(f"{base / 'counted'}.touches").read_text())
        moments = range(1, touches + 1) if saves == "all" else sorted(rng.sample(range(1, touches + 1), int(saves)))
        for count in moments:
            out, log = base / f"save{count}", base / f"save{count}.log"
            if killed_at(out, log, count) != -signal.SIGKILL:
                wrong.append(f"touch {count}: was not killed")
            if what := compare(out, log, right):
                wrong.append(f"killed at touch {count}: {what}")
            shutil.rmtree(out)
    return {"kills": kills, "touches_of_a_run": touches, "killed_at_touches": len(moments), "wrong": wrong, "run_s": whole_s}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--saves", default="all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stdout, sys.stdout = sys.stdout, io.StringIO()
    result = main(arguments.kills, arguments.saves, arguments.seed)
    sys.stdout = stdout
    print(json.dumps(result))
    sys.exit(bool(result["wrong"]))

"""Real processes that train a real, small model, and are killed: at random moments, at every step of a save, by signals.

``python -m tests.runs.killing --kills 50 --saves all`` is the long version (``--saves 100-160`` only those touches of the
disk); the tests run a short one. Children are
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
ARGS = [
    "--preset",
    "demo-parallel",
    "--model",
    str(PARROT),
    "--steps",
    "4",
    "--batch",
    "3",
    "--warm-steps",
    "2",
    "--warm-debates",
    "2",
    "--rank",
    "4",
]
ARGS += ["--threads", "1", "--eval-questions", "2", "--eval-debates", "1", "--eval-every", "2", "--lr", "0.003"]


def train(out: Path, extra: list[str] | None = None) -> int:
    """``peergrad train`` in this process."""
    from peergrad.cli import main as cli

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
        sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
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


def signalled(out: Path, log: Path, phase: str, number: int = signal.SIGTERM, times: int = 1) -> tuple[int | None, float]:
    """Train, and get a signal when a phase begins for the second time; the exit code and how long it took to leave."""

    def work() -> int:
        from peergrad.terminal.training import RunView

        real, begun = RunView.begin, []

        def begin(self, name, *rest):
            real(self, name, *rest)
            begun.append(name)
            if begun.count(phase) == 2 and name == phase:
                Path(f"{out}.asked").write_text(str(time.time()))
                for _ in range(times):
                    os.kill(os.getpid(), number)

        RunView.begin = begin
        return train(out)

    code = wait(child(work, log))
    return code, time.time() - float(Path(f"{out}.asked").read_text())


def slowly(out: Path, log: Path, what: str) -> tuple[int | None, float]:
    """Train with one part that takes a minute, and get SIGTERM within it; the exit code and how long it took to leave."""

    def work() -> int:
        from peergrad.engines.local.engine import Local
        from peergrad.terminal import training as live

        def slow(*_, **__) -> None:
            Path(f"{out}.asked").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

        live._GRACE_S = 1.0
        setattr(Local, what, slow if what == "_step" else staticmethod(slow))
        return train(out)

    code = wait(child(work, log))
    return code, time.time() - float(Path(f"{out}.asked").read_text())


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


def signals(base: Path, right: str) -> tuple[list[str], float]:
    """SIGTERM in each phase, and Ctrl-C: what went wrong, and the longest it took to leave."""
    wrong: list[str] = []
    longest = 0.0
    for phase in ("sampling", "training", "saving", "evaluating", "warm start"):
        for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            if number == signal.SIGINT and phase != "sampling":
                continue
            out, log = base / f"{phase}{number}", base / f"{phase}{number}.log"
            code, took = signalled(out, log, phase, number)
            longest = max(longest, took)
            if code != expected or "the same command resumes" not in log.read_text():
                wrong.append(f"{number} while {phase}: ended with {code}: {log.read_text()[-500:]}")
            if what := compare(out, log, right):
                wrong.append(f"{number} while {phase}: {what}")
    for slow in ("_step", "load_model"):  # an update or a download that takes minutes is not waited for
        out, log = base / slow, base / f"{slow}.log"
        code, took = slowly(out, log, slow)
        longest = max(longest, took)
        if code != 143:
            wrong.append(f"SIGTERM during a slow {slow}: ended with {code}: {log.read_text()[-500:]}")
        if what := compare(out, log, right):
            wrong.append(f"SIGTERM during a slow {slow}: {what}")
    code, took = signalled(base / "twice", base / "twice.log", "training", signal.SIGINT, times=2)
    if code != 130:
        wrong.append(f"two Ctrl-C ended with {code}")
    if what := compare(base / "twice", base / "twice.log", right):
        wrong.append(f"two Ctrl-C: {what}")
    return wrong, longest


def damages(base: Path, right: str, count: int) -> list[str]:
    """Torn lines, zeros and missing files in a run that is half done: it goes on, and says what it found.

    So many of the ways it may be damaged.
    """
    wrong: list[str] = []
    half = base / "half"
    code, _ = signalled(half, base / "half.log", "training")
    if code != 143:
        wrong.append(f"half a run ended with {code}")
    newest = sorted((half / "checkpoints").glob("step_*"))[-1].name
    assert newest == "step_000002", newest

    def zeros(path: Path) -> None:
        path.write_bytes(bytes(path.stat().st_size))

    every = (
        ("torn metrics", lambda run: (run / "metrics.jsonl").open("a").write('{"phase": "train", "st'), False),
        ("zeros in the adapter", lambda run: zeros(run / "checkpoints" / newest / "adapter_model.safetensors"), True),
        ("a file less", lambda run: (run / "checkpoints" / newest / "engine.json").unlink(), True),
        ("torn debates", lambda run: os.truncate(run / "debates" / "step_000003.jsonl", 1000), True),
        ("all checkpoints damaged", lambda run: [zeros(f) for f in (run / "checkpoints").glob("*/state.json")], True),
        ("zeros in the optimizer", lambda run: zeros(run / "checkpoints" / newest / "optimizer.safetensors"), True),
        ("zeros in the state", lambda run: zeros(run / "checkpoints" / newest / "state.json"), True),
        ("a checkpoint less", lambda run: shutil.rmtree(run / "checkpoints" / newest), False),
        ("zeros in debates", lambda run: zeros(run / "debates" / "step_000003.jsonl"), True),
        ("zeros in metrics", lambda run: zeros(run / "metrics.jsonl"), False),
    )
    for name, damage, warned in every[:count]:
        out, log = base / name.replace(" ", "-"), base / f"{name.replace(' ', '-')}.log"
        shutil.copytree(half, out)
        if name.endswith("debates") and not (out / "debates" / "step_000003.jsonl").exists():
            shutil.copy(out / "debates" / "step_000002.jsonl", out / "debates" / "step_000003.jsonl")
        damage(out)
        code = finish(out, log)
        if code != 0 or adapter(out) != right:
            wrong.append(f"{name}: ended with {code}, {log.read_text()[-500:]}")
        if warned and "warning:" not in log.read_text():
            wrong.append(f"{name}: no warning")
    return wrong


def main(kills: int, saves: str, damaged: int, seed: int) -> dict:
    import torch

    torch.set_num_threads(1)
    import peergrad.cli.main
    import peergrad.cli.train
    import peergrad.engines.local.engine

    engine = peergrad.engines.local.engine.Local.load_model(str(PARROT), threads=1)  # brings most of transformers
    del engine

    rng = random.Random(seed)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        started = time.monotonic()
        assert finish(base / "whole", base / "whole.log") == 0, (base / "whole.log").read_text()
        whole_s = time.monotonic() - started
        right = adapter(base / "whole")
        assert killed_at(base / "counted", base / "counted.log", -1) == 0  # a whole run, too
        touches = int(Path(f"{base / 'counted'}.touches").read_text())
        if adapter(base / "counted") != right:
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
        if "-" in saves:
            moments = range(*map(int, saves.split("-")))
        else:
            moments = range(1, touches + 1) if saves == "all" else sorted(rng.sample(range(1, touches + 1), int(saves)))
        for count in moments:
            out, log = base / f"save{count}", base / f"save{count}.log"
            if killed_at(out, log, count) != -signal.SIGKILL:
                wrong.append(f"touch {count}: was not killed")
            if what := compare(out, log, right):
                wrong.append(f"killed at touch {count}: {what}")
            shutil.rmtree(out)
        more, longest = signals(base, right)
        wrong += more + damages(base, right, damaged)
    return {
        "run_s": round(whole_s, 2),
        "kills": kills,
        "touches_of_a_run": touches,
        "killed_at_touches": len(moments),
        "slowest_to_leave_s": round(longest, 2),
        "wrong": wrong,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--saves", default="all")
    parser.add_argument("--damages", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stdout, sys.stdout = sys.stdout, io.StringIO()
    result = main(arguments.kills, arguments.saves, arguments.damages, arguments.seed)
    sys.stdout = stdout
    print(json.dumps(result))
    sys.exit(bool(result["wrong"]))

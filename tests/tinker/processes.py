"""Real processes of ``peergrad``, forked from one that has everything imported, so that a start takes a second less five.

``python -m tests.tinker.processes`` takes commands as lines of JSON: begin one, wait for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.runs.killing import PARROT, child, wait

ROOT = Path(__file__).parent.parent.parent


class Processes:
    """Begins them, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pids, self._begun = folder, set[int](), 0
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.tinker.processes"]
        self._farm = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def begin(self, *argv: str, **environ: str) -> tuple[int, Path]:
        """``peergrad`` with these arguments: its pid, and the file that holds what it says."""
        self._begun += 1
        log = self._folder / f"process-{self._begun}.log"
        pid = self._ask({"argv": list(argv), "log": str(log), "environ": environ})
        self._pids.add(pid)
        return pid, log

    def wait(self, pid: int) -> int | None:
        """Its exit code, negative for a signal."""
        self._pids.discard(pid)
        return self._ask({"wait": pid})

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def close(self) -> None:
        for pid in list(self._pids):
            self.kill(pid)
        self._farm.stdin.close()
        self._farm.wait(300)

    def _ask(self, what: dict) -> int | None:
        self._farm.stdin.write(json.dumps(what) + "\n")
        self._farm.stdin.flush()
        return json.loads(self._farm.stdout.readline())


class Server:
    """``peergrad serve`` with the parrot, always at the same port."""

    def __init__(self, processes: Processes, out: Path, *args: str, host: str = "127.0.0.1", **environ: str) -> None:
        self._processes, self.out, self._args, self._environ = processes, out, ("--host", host, *args), environ
        self.port = free_port()
        self.url = f"http://{host}:{self.port}"
        self.start()

    def start(self) -> None:
        argv = ("serve", "--model", str(PARROT), "--port", str(self.port), "--out", str(self.out), "--threads", "1")
        self.pid, self.log = self._processes.begin(*argv, *self._args, **self._environ)
        for _ in range(6000):
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/api/v1/healthz").raise_for_status()
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def kill(self) -> None:
        self._processes.kill(self.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _peergrad(argv: list[str], environ: dict[str, str]) -> int:
    from peergrad.cli import main as cli

    os.environ.update(environ)
    sys.argv = ["peergrad", *argv]
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def main() -> None:
    import torch

    torch.set_num_threads(1)
    import uvicorn  # noqa: F401

    import peergrad.cli.train
    import peergrad.engines.local.engine
    import peergrad.engines.tinker.engine
    import peergrad.serve.app

    peergrad.engines.local.engine.Local.load_model(str(PARROT), threads=1)  # brings most of transformers
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = wait(asked["wait"])
        else:
            answer = child(lambda a=asked: _peergrad(a["argv"], a["environ"]), Path(asked["log"]))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

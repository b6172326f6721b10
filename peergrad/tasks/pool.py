"""Comparing mathematics with math-verify in processes that can be killed, because it may never come back."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError

_START_S = 60.0  # loading sympy on a busy machine
_MARGIN_S = 2.0  # a worker keeps to the deadline by itself; one that has not after this is killed


def installed() -> bool:
    """Whether math-verify is there."""
    return importlib.util.find_spec("math_verify") is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an expression equals the right one, and a name that equal expressions share, if one was found in time."""

    equal: bool
    name: str = ""


class Pool:
    """At most ``workers`` processes, started when they are first needed, and again if one is lost.

    Any number of threads may ask. Time begins to count when a process takes the job.
    """

    def __init__(self, deadline_s: float = 5.0, workers: int = 4) -> None:
        self.deadline_s = deadline_s
        self._free = threading.BoundedSemaphore(workers)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compare(self, gold: str, given: str) -> Verdict | None:
        """The verdict on an expression; ``None`` if there is none after ``deadline_s``, or it took too much memory."""
        for _ in range(2):  # a worker that is lost was ended by somebody, or the system: what it was asked can't do that
            with contextlib.suppress(_LostError), self._worker() as worker:
                return worker.compare(gold, given)
        return None

    def close(self) -> None:
        """End the processes that wait for work. The pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker if worker and worker.alive else _Worker(self.deadline_s)
            try:
                yield worker
            except BaseException:
                worker.kill()
                raise
            if worker.alive:
                with self._lock:
                    self._idle.append(worker)


class _LostError(Exception):
    """The process has ended, though nobody here ended it."""


class _Worker:
    """One process, and the pipe to and from it."""

    def __init__(self, deadline_s: float) -> None:
        file = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(file), str(deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._deadline_s = deadline_s
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        self._read = b""
        ready = None
        try:
            with contextlib.suppress(_LostError):
                ready = self._line(time.monotonic() + _START_S)
        finally:
            if ready is None:
                self.kill()
        if ready is None:
            raise EngineError("the process that compares answers can't be started; try: python -c 'import math_verify'")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def compare(self, gold: str, given: str) -> Verdict | None:
        until = time.monotonic() + self._deadline_s + _MARGIN_S
        try:
            self._in.write(json.dumps([gold, given]).encode() + b"\n")
            self._in.flush()
        except OSError:
            raise _LostError from None
        said: dict[str, Any] = {}
        while "done" not in said:
            line = self._line(until)
            if line is None:
                self.kill()
                break
            said |= line
        return Verdict(said["equal"], said.get("name", "")) if "equal" in said else None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # what was not sent is not missed
                pipe.close()

    def _line(self, until: float) -> dict[str, Any] | None:
        """The next line it says, or ``None`` when time is up."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                more = os.read(self._out.fileno(), 1 << 16)
                self._read += more
                if not more:
                    raise _LostError
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

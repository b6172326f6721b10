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

_START_S = 60.0  # importing sympy on a busy machine
_LONGEST = 1 << 20


def installed() -> bool:
    """Whether math-verify is there."""
    return importlib.util.find_spec("math_verify") is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an expression equals the right one, and a name that equal expressions share, if one was found in time."""

    equal: bool
    name: str = ""


class Pool:
    """At most ``workers`` processes, started when they are first needed and replaced when they had to be killed.

    Any number of threads may ask.
    """

    def __init__(self, deadline_s: float = 5.0, workers: int = 4) -> None:
        self.deadline_s = deadline_s
        self._free = threading.BoundedSemaphore(workers)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compare(self, gold: str, given: str) -> Verdict | None:
        """The verdict on an expression; ``None`` if there is none after ``deadline_s``, or it took too much memory."""
        with self._worker() as worker:
            return worker.compare(gold, given, self.deadline_s)

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
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        self._read = b""
        try:
            ready = self._line(time.monotonic() + _START_S)
        except BaseException:
            self.kill()
            raise
        if ready is None:
            self.kill()
            raise EngineError("the process that compares answers can't be started; try: python -c 'import math_verify'")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def compare(self, gold: str, given: str, deadline_s: float) -> Verdict | None:
        until = time.monotonic() + deadline_s
        try:
            self._in.write(json.dumps([gold, given]).encode() + b"\n")
            self._in.flush()
        except OSError:  # it has died since
            self.kill()
            return None
        verdict = self._line(until)
        if verdict is None:
            self.kill()
            return None
        if verdict["equal"]:
            return Verdict(True)
        named = self._line(until)
        if named is None:
            self.kill()
        return Verdict(False, named["name"] if named else "")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # what was not sent is not missed
                pipe.close()

    def _line(self, until: float) -> dict[str, Any] | None:
        """The next line it says, or ``None`` when time is up or it is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                more = os.read(self._out.fileno(), 1 << 16)
                self._read += more
                if not more or len(self._read) > _LONGEST:
                    return None
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

"""Calling a function in processes that can be killed, because what it is given may never come back."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError

_START_S = 60.0  # loading sympy on a busy machine
_NEEDED = ("PATH", "LD_LIBRARY_PATH")  # of the environment, to start at all; a model's program has no business with more
_MARGIN_S = 2.0  # a worker keeps to the deadline by itself; one that has not after this is killed
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads is slow to copy


class Pool:
    """Calls one function, named by its import path, within ``deadline_s`` seconds and ``memory`` bytes beyond what it holds.

    The function takes and gives what JSON can hold. A generator's last result counts, so that one may give what it knows
    early. At most ``workers`` processes are started, when they are first needed, and again if one is lost. Any number of
    threads may call. Time begins to count when a process takes the call.

    It is no sandbox: what runs in it may read and write the person's files.

    Example: ``Pool("my_task:outputs", deadline_s=2.0).call(program, inputs)``
    """

    def __init__(self, function: str, *, deadline_s: float = 5.0, memory: int = 2 << 30, workers: int = 4) -> None:
        self._settings = function, deadline_s, memory
        self._free = threading.BoundedSemaphore(workers)
        self._idle: list[_Worker] = []  # threads add to it and take from it without a lock: each is one operation
        atexit.register(self.close)

    def call(self, *arguments: Any) -> Any:
        """The function's result; ``None`` if it has none in time, takes too much memory, raises, or ends its process."""
        for _ in range(2):  # a worker that is lost was most likely ended by the system, or by somebody
            with self._free, contextlib.suppress(_LostError):
                worker = next(filter(lambda worker: worker.alive, self._taken()), None) or _Worker(*self._settings)
                try:
                    return worker.call(arguments)
                finally:
                    if worker.alive:
                        self._idle.append(worker)
        return None

    def close(self) -> None:
        """End the processes that wait for work. The pool can be used again."""
        for worker in self._taken():
            worker.kill()

    def _taken(self) -> Iterator[_Worker]:
        with contextlib.suppress(IndexError):
            while True:
                yield self._idle.pop()


class _LostError(Exception):
    """The process has ended, though nobody here ended it."""


class _Worker:
    """One process, and the pipe to and from it."""

    def __init__(self, function: str, deadline_s: float, memory: int) -> None:
        file = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _NEEDED if name in os.environ} | _ONE_THREAD,
        )
        self._deadline_s = deadline_s
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        self._read = b""
        ready: dict[str, Any] | None = None
        try:
            with contextlib.suppress(_LostError):
                self._send([function, deadline_s, memory, [folder or os.getcwd() for folder in sys.path]])
                ready = self._line(time.monotonic() + _START_S)
        finally:
            if ready != {}:
                self.kill()
        if ready is None:
            raise EngineError(f"{function}: the process that calls it can't be started; try: python -c 'import peergrad'")
        if ready:
            raise UserError(f"{function}: can't be called in a process of its own ({ready['error']})")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, arguments: tuple[Any, ...]) -> Any:
        secret, answer = secrets.token_hex(), None
        try:
            self._send([secret, arguments])
            answer = self._line(time.monotonic() + self._deadline_s + _MARGIN_S)
        except ValueError:  # no JSON: not of the worker
            pass
        finally:
            # Late, interrupted, or forged by what was called.
            if not isinstance(answer, dict) or answer.get("call") != secret:
                self.kill()
                answer = {"result": None}
        return answer["result"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # what was not sent is not missed
                pipe.close()

    def _send(self, value: Any) -> None:
        try:
            self._in.write(json.dumps(value, default=dict).encode() + b"\n")
            self._in.flush()
        except OSError:
            raise _LostError from None

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

"""A process that calls one function: arguments in on stdin, results out on stdout, one line of JSON each.

What a function is given can take for ever or all memory there is, inside C code that no exception gets out of; or it is a
program that does so on purpose. So every call gets a child of its own with limits on time and memory. The child is a copy of
a process that has imported the function already, so the next one costs nothing. Only this process talks to its owner. It
ends when stdin does, however its owner may have ended. It is run as a file (``python -P worker.py``), by ``pool``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_LARGEST = 1 << 20  # of the bytes of a result
_MARGIN_S = 0.5  # a child has an alarm; one that has turned it off is killed after this
_DIES_WITH_PARENT, _ADOPTS_ORPHANS = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER, of Linux


def main() -> None:
    """Read what to call and its limits, say that it is ready, then answer each list of arguments with a result."""
    # Ctrl-C and a polite end are for the process that waits; what is under way here is still wanted by it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a process, whatever it is doing
    _prctl(_ADOPTS_ORPHANS, 1)
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no result
    logging.disable()
    path, deadline_s, memory, sys.path[:] = json.loads(sys.stdin.readline())
    try:
        module, _, name = path.partition(":")
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except BaseException as error:  # it is somebody's code, which may do anything
        _say(out, {"error": f"{type(error).__name__}: {error}"})
        return
    _say(out, {})
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                for unneeded in (out, reading):
                    os.close(unneeded)
                _limit(deadline_s, memory)
                _call(function, json.loads(line)[1], writing)
            finally:
                os._exit(0)
        os.close(writing)
        result = _last_line(reading, time.monotonic() + deadline_s + _MARGIN_S)
        os.close(reading)
        _end(child)
        # The owner's secret of this call: a line that a program slipped into the owner's pipe does not have it.
        _say(out, {"call": json.loads(line)[0], "result": result})


def _limit(deadline_s: float, memory: int) -> None:
    """Bound what this process can take, as far as the system can, and cut it off from the owner's pipes."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.setitimer(signal.ITIMER_REAL, deadline_s)
    seconds = math.ceil(deadline_s) + 1
    _prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with contextlib.suppress(ValueError, OSError), open("/proc/self/statm") as pages:
        most = int(pages.read().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _end(child: int) -> None:
    """End a child and all that it has started: its group, then what left the group, which this process adopts."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # none is left, or the system does not list them
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for orphan in children.read().split():
                    os.kill(int(orphan), signal.SIGKILL)
            os.waitpid(-1, 0)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value)


def _call(function: Callable[..., Any], arguments: list[Any], out: int) -> None:
    """Write the result; of a generator every one, of which the last counts."""
    with contextlib.suppress(BaseException):
        result = function(*arguments)
        for value in result if isinstance(result, Iterator) else (result,):
            _say(out, value)


def _last_line(reading: int, until: float) -> Any:
    """The last whole line that is written until the end, or until time is up; ``None`` if it is no JSON."""
    text = b""
    while len(text) < _LARGEST and select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        more = os.read(reading, 1 << 16)
        if not more:
            break
        text += more
    try:
        return json.loads(text.split(b"\n")[-2])
    except (IndexError, ValueError, RecursionError):
        return None


def _say(out: int, what: Any) -> None:
    os.write(out, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()

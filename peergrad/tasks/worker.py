"""A process of its own that compares mathematics: jobs in on stdin, verdicts out on stdout, one line of JSON each.

An expression can take for ever or all memory there is, inside C code that no exception gets out of. So every job gets a
child with an alarm that ends it, whoever is left to wait for it; the child is a copy of a process that has loaded sympy
already, so the next one costs nothing. The process itself ends when stdin does, however its owner may have ended.
It is run as a file (``python -P worker.py DEADLINE_S``) and imports nothing of peergrad.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from typing import Any

_MEMORY = 2 << 30
_LONGEST = 500


def main() -> None:
    """Say that it is ready; then to each job a verdict, where the answer is not right a name for it, and that it is done."""
    # Ctrl-C and a polite end are for the process that waits; what is under way here is still wanted by it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a process, whatever it is doing
    deadline_s = float(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no verdict
    logging.disable()
    _compare(r"(\frac{\sqrt{3} x^2 + 1}{2}, 5)", r"[-\pi, 2x)", out=2)  # loads what is needed, before it is copied
    _say(out, {"ready": True})
    for line in sys.stdin:
        gold, given = json.loads(line)
        child = os.fork()
        if not child:
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
            with contextlib.suppress(ValueError, OSError):  # not every system can
                resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            with contextlib.suppress(BaseException):
                _compare(gold, given, out)
            os._exit(0)
        os.waitpid(child, 0)
        _say(out, {"done": True})


def _compare(gold: str, given: str, out: int) -> None:
    import math_verify

    known = math_verify.parse(rf"\boxed{{{gold}}}", parsing_timeout=0)
    parsed = math_verify.parse(rf"\boxed{{{given}}}", parsing_timeout=0)
    equal = math_verify.verify(known, parsed, timeout_seconds=0)
    _say(out, {"equal": equal})
    if not equal and parsed:
        _say(out, {"name": _name(parsed[0])})


def _name(parsed: Any) -> str:
    """One text for all spellings of an expression, as far as sympy brings them together; empty if it is none."""
    import sympy

    if isinstance(parsed, str):
        return ""
    with contextlib.suppress(Exception):
        done = parsed.doit()
        if isinstance(done, sympy.Float):
            done = sympy.Rational(str(done))
        name = str(sympy.simplify(done) if isinstance(done, sympy.Expr) else done)
        return name if len(name) <= _LONGEST else ""
    return ""


def _say(out: int, what: dict[str, Any]) -> None:
    os.write(out, json.dumps(what).encode() + b"\n")  # short enough to be written whole or not at all


if __name__ == "__main__":
    main()

"""A process of its own that compares mathematics: jobs in on stdin, verdicts out on stdout, one line of JSON each.

An expression can take for ever or all memory there is, inside C code that no exception gets out of. So the process that
waits for the verdict may kill this one, and if that one is gone, this one ends by itself: at the alarm, or when stdin ends.
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
from typing import Any, TextIO

_MEMORY = 2 << 30


def main() -> None:
    """Say that it is ready, then answer each job with a verdict, and where the answer is not right, with its name."""
    # Ctrl-C and a polite end are for the process that waits; what is under way here is still wanted by it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    deadline_s = float(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no verdict
    logging.disable()
    import math_verify

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    math_verify.parse(r"\boxed{x}", parsing_timeout=0)  # builds its grammar
    _say(out, {"ready": True})
    for line in sys.stdin:
        gold, given = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, deadline_s + 1)
        known = math_verify.parse(rf"\boxed{{{gold}}}", parsing_timeout=0)
        parsed = math_verify.parse(rf"\boxed{{{given}}}", parsing_timeout=0)
        equal = math_verify.verify(known, parsed, timeout_seconds=0)
        _say(out, {"equal": equal})
        if not equal:
            _say(out, {"name": _name(parsed[0]) if parsed else ""})
        signal.setitimer(signal.ITIMER_REAL, 0)


def _name(parsed: Any) -> str:
    """One text for all spellings of an expression, as far as sympy brings them together; empty if it is none."""
    import sympy

    if isinstance(parsed, str):
        return ""
    with contextlib.suppress(Exception):
        done = parsed.doit()
        if isinstance(done, sympy.Float):
            done = sympy.Rational(str(done))
        return str(sympy.simplify(done) if isinstance(done, sympy.Expr) else done)
    return ""


def _say(out: TextIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


if __name__ == "__main__":
    main()

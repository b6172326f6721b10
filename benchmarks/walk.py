"""The way of one question from the command to the gradient: the files, lines and hops that a reader passes.

``python benchmarks/walk.py [--list]`` traces one real step of ``peergrad train`` on the test model. A file counts if one of
its functions runs, lines are those of the functions that run, and a hop is a call from one file to another, counted once.
The way from question to datum is what runs from the first debate to the last training sequence, engines and views left out.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "peergrad") + "/"
ARGS = {"batch": 4, "steps": 1, "warm-steps": 0, "eval-questions": 0, "eval-debates": 0}
ARGS |= {"rank": 2, "max-tokens": 48, "threads": 1}
# What begins and what ends the two ways, by the name of the function.
_DEBATE, _DATUM, _UPDATED = "play", "datums", "joined"


class Trace:
    """What ran, in order."""

    def __init__(self) -> None:
        self.ran: dict[CodeType, int] = {}
        self.hops: dict[tuple[str, str], int] = {}
        self.first_debate = self.last_datum = self.updated = 0
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class that is being imported
            return
        with self._lock:
            now = len(self.ran)
            if event == "return":
                self.last_datum = now if code.co_name == _DATUM else self.last_datum
                return
            if code.co_name == _UPDATED and code.co_filename.endswith("learn/trainer.py"):
                self.updated = self.updated or now
            if code.co_name == _DEBATE and code.co_filename.endswith("debate/play.py"):
                self.first_debate = self.first_debate or now
            self.ran.setdefault(code, now)
            caller = frame.f_back
            while caller and not caller.f_code.co_filename.startswith(PACKAGE):
                caller = caller.f_back
            if caller and caller.f_code.co_filename != code.co_filename:
                self.hops.setdefault((caller.f_code.co_filename, code.co_filename), now)

    def way(self, first: int, last: int, rooms: Iterable[str] = ()) -> dict[str, int]:
        """Files, lines and hops of what first ran between two moments, the files of some rooms left out."""
        skipped = tuple(PACKAGE + room for room in rooms)
        codes = [c for c, at in self.ran.items() if first <= at < last and not c.co_filename.startswith(skipped)]
        hops = [h for h, at in self.hops.items() if first <= at <= last and not any(f.startswith(skipped) for f in h)]
        lines = {(c.co_filename, line) for c in codes for _, _, line in c.co_lines() if line}
        return {"files": len({c.co_filename for c in codes}), "lines": len(lines), "hops": len(hops)}


def traced() -> Trace:
    """One step of a run."""
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        args = ["peergrad", "train", "--model", str(ROOT / "tests/fixtures/parrot"), "--out", f"{folder}/run"]
        args += [part for name, value in ARGS.items() for part in (f"--{name}", str(value))]
        sys.argv = args
        try:
            from peergrad.cli.main import main
        except ImportError:  # before commands had a room of their own
            from peergrad.cli import main
        trace = Trace()
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                main()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions in the order in which they first run")
    args = parser.parse_args()
    trace = traced()
    if args.list:
        for code, at in trace.ran.items():
            if at < trace.updated:
                print(f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno} {code.co_qualname}")
    print("command → gradient              ", trace.way(0, trace.updated))
    print("command → gradient, engines left", trace.way(0, trace.updated, ["engines"]))
    print(
        "question → datum                ", trace.way(trace.first_debate, trace.last_datum, ["engines", "terminal", "live"])
    )


if __name__ == "__main__":
    main()

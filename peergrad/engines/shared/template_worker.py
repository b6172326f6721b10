"""A process that renders a chat template: what to render in on stdin, what it made out on stdout, both as JSON.

It is run as a file (``python -P template_worker.py``), by ``templates``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
from typing import Any

HOLE = "\ue000{}\ue001"
"""Stands for a message's words: private-use characters, which no template looks for."""
TOO_MUCH, DID_NOT_START = 3, 4  # exit codes
_CPU_S, _BYTES = 2, 2**29  # beyond what it takes to start: far more than a template needs
_MOST_TEXT = 2**24  # of all that is rendered, in characters


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    try:
        from transformers.utils.chat_template_utils import render_jinja_template
    except BaseException as error:  # somebody's installation, which may be broken in every way
        sys.exit(_said(f"{type(error).__name__}: {error}"))
    _limit()
    made: list[tuple[str | None, str]] = []
    size = 0
    for roles, generate in asked["shapes"]:
        dialogue = [{"role": role, "content": HOLE.format(i)} for i, role in enumerate(roles)]
        try:
            (text,), _ = render_jinja_template(
                [dialogue], chat_template=asked["template"], add_generation_prompt=generate, **asked["names"]
            )
            made.append((text, ""))
        except MemoryError:
            os._exit(TOO_MUCH)
        except Exception as error:  # of jinja or of Python: a template divides by zero, calls itself, …
            made.append((None, (str(error).strip().splitlines() or [type(error).__name__])[0][:200]))
        size += len(made[-1][0] or "")
        if size > _MOST_TEXT:
            os._exit(TOO_MUCH)
    json.dump(made, sys.stdout)


def _limit() -> None:
    """Bound what this process can take from here on, as far as the system can."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + _CPU_S
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # the first ends it by a signal of its own
    with contextlib.suppress(ValueError, OSError), open("/proc/self/statm") as pages:  # Linux alone says so
        most = int(pages.read().split()[0]) * resource.getpagesize() + _BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _said(why: str) -> int:
    sys.stderr.write(why)
    return DID_NOT_START


if __name__ == "__main__":
    main()

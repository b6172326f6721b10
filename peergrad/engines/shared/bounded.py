"""A first try of somebody else's chat template, in a process that may neither run for long nor take much memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from peergrad.debate.errors import UserError

_CPU_S, _WALL_S, _BYTES = 2, 120, 2**29
_TOO_MUCH = 3  # exit code


def render_bounded(render: Callable[[], object]) -> None:
    """Call it in a copy of this process, which ends where a template takes too long or too much memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the copy runs one template, no more
        child = os.fork()
    if not child:
        _try(render)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise UserError("model: its chat template does not end; use another model, or mend chat_template")
    if os.WEXITSTATUS(status) == _TOO_MUCH:
        raise UserError("model: its chat template takes too much memory; use another model, or mend chat_template")


def _try(render: Callable[[], object]) -> None:
    code = 0
    try:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_WALL_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S + 1))
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + _BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        render()
    except MemoryError:
        code = _TOO_MUCH
    except BaseException:  # told by whoever renders it for good
        code = 0
    finally:
        os._exit(code)

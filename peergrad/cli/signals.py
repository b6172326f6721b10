"""Long work on a terminal: it obeys signals, and ends the process without waiting for threads deep in a computation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.quote import visible
from peergrad.learn.train import Stopped
from peergrad.terminal.progress import View

T = TypeVar("T")
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


Work = Callable[[Callable[[], bool]], Coroutine[Any, Any, T]]


def run_until_done(work: Work[T], view: View, resumes_from: Callable[[], str]) -> T:
    """Run the work and return its result. If it fails or a signal comes, end the process here, without waiting for threads.

    The work is given a function that tells whether it was asked to stop. After a signal, work under way has
    ``view.grace_s`` seconds to finish; a second signal ends the process at once. ``resumes_from`` names the point from
    which the same command would resume.
    """
    return asyncio.run(_until_done(work, view, resumes_from))


async def _until_done(work: Work[T], view: View, resumes_from: Callable[[], str]) -> T:
    loop, signals = asyncio.get_running_loop(), list[signal.Signals]()
    task = asyncio.ensure_future(work(lambda: bool(signals)))

    def stop(number: signal.Signals) -> None:
        if signals:
            _exit(view, "left at once", _EXIT_CODES[number])
        signals.append(number)
        view.say(f"stopping while {view.phase}; once more leaves at once")
        if view.grace_s:
            loop.call_later(view.grace_s, task.cancel)
        else:
            task.cancel()

    for number in _EXIT_CODES:
        loop.add_signal_handler(number, stop, number)
    await asyncio.wait({task})
    try:
        return task.result()
    except (asyncio.CancelledError, Stopped) as stopped:
        if signals:
            _exit(view, f"stopped; the same command resumes from {resumes_from()}", _EXIT_CODES[signals[0]])
        _exit(view, str(stopped), 1)
    except (UserError, EngineError) as error:
        _exit(view, str(error), 2 if isinstance(error, UserError) else 1)


def _exit(view: View, sentence: str, code: int) -> NoReturn:
    """End the process without waiting for threads: what counts is on disk."""
    view.close()
    print(f"peergrad: {visible(sentence)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

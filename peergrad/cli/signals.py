"""Long work on a terminal: it obeys signals, and ends the process without waiting for threads deep in a computation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import typing
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.quote import visible
from peergrad.learn.train import Stopped

T = TypeVar("T")
_LEAVING = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Worker(typing.Protocol):
    """Who is working, as seen from here."""

    @property
    def phase(self) -> str: ...

    @property
    def patience_s(self) -> float:
        """How long what is under way may take to come to a good end, once a signal has come."""
        ...

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        """Give the terminal back."""
        ...


async def until_done(
    work: Callable[[Callable[[], bool]], Coroutine[Any, Any, T]], worker: Worker, goes_on: Callable[[], str]
) -> T:
    """What the work returns. If it fails, or a signal comes, the process ends here: threads are not waited for.

    The work is given a function that says whether it was asked to stop. What is cheap is finished before a signal is obeyed;
    a second one is obeyed at once. ``goes_on`` says where the same command would go on.
    """
    loop, asked = asyncio.get_running_loop(), list[signal.Signals]()
    task = asyncio.ensure_future(work(lambda: bool(asked)))

    def stop(number: signal.Signals) -> None:
        if asked:
            leave(worker, "left at once", _LEAVING[number])
        asked.append(number)
        worker.say(f"stopping while {worker.phase}; once more leaves at once")
        if worker.patience_s:
            loop.call_later(worker.patience_s, task.cancel)
        else:
            task.cancel()

    for number in _LEAVING:
        loop.add_signal_handler(number, stop, number)
    await asyncio.wait({task})
    try:
        return task.result()
    except (asyncio.CancelledError, Stopped) as stopped:
        if asked:
            leave(worker, f"stopped; the same command goes on from {goes_on()}", _LEAVING[asked[0]])
        leave(worker, str(stopped), 1)
    except UserError as error:
        leave(worker, str(error), 2)
    except EngineError as error:
        leave(worker, str(error), 1)


def leave(worker: Worker, sentence: str, code: int) -> NoReturn:
    """Go without waiting for threads that may be deep in a computation: what counts is on disk."""
    worker.close()
    print(f"peergrad: {visible(sentence)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

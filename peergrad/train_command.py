"""The command ``peergrad train`` on a terminal: live view, signals, the table at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from peergrad.config import TrainConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.learn.train import Stopped
from peergrad.live import Screen, before_and_after
from peergrad.runs.folder import Run
from peergrad.runs.training import plan, train_run
from peergrad.web.report import write_report

# A step under way is worth waiting for, but not for longer than this: it will be repeated.
_PATIENCE_S = 20.0
_LEAVING = {signal.SIGINT: 130, signal.SIGTERM: 143}


def train(config: TrainConfig) -> int:
    """Train, showing how it goes; returns the exit code."""
    console = Console(highlight=False)
    run, asked = None, None
    with Screen(console, config.learn.steps, config.warm.warm_steps) as screen:
        try:
            run, asked = asyncio.run(_until_asked_to_stop(config, screen))
        except Stopped as stopped:
            screen.warn(str(stopped))
            return 1
        except (UserError, EngineError) as error:
            _leave(console, str(error), 2 if isinstance(error, UserError) else 1)
    if asked is not None:
        _leave(console, f"stopped; the same command goes on from {_newest(config)}", _LEAVING[asked])
    assert run is not None
    _conclude(console, run)
    return 0


async def _until_asked_to_stop(config: TrainConfig, screen: Screen) -> tuple[Run | None, signal.Signals | None]:
    """The run, until it is done or a signal comes. What is cheap is finished; a second signal leaves at once."""
    loop, asked = asyncio.get_running_loop(), list[signal.Signals]()
    task = asyncio.ensure_future(train_run(config, screen, stop=lambda: bool(asked)))

    def stop(number: signal.Signals) -> None:
        if asked:
            os._exit(_LEAVING[number])
        asked.append(number)
        screen.say(f"stopping while {screen.phase}; once more leaves at once")
        if screen.phase in ("training", "saving", "warm start"):
            loop.call_later(_PATIENCE_S, task.cancel)
        else:
            task.cancel()

    for number in _LEAVING:
        loop.add_signal_handler(number, stop, number)
    try:
        # Not awaited directly: a thread in the middle of an update does not hear that its task was cancelled.
        await asyncio.wait({task})
        return task.result(), None
    except (asyncio.CancelledError, Stopped):
        if not asked:
            raise
        return None, asked[0]


def _conclude(console: Console, run: Run) -> None:
    metrics = run.metrics()
    before_and_after(console, metrics)
    page = write_report(run)
    path = visible(str(run.path))
    last = max((line["step"] for line in metrics), default=0)
    console.print(f"\nreport: {visible(str(page))}\nnext:", markup=False)
    for command in (
        f"peergrad score {path}/debates/step_{last:06}.jsonl",
        f"peergrad export {path} --to {path}-adapter",
        "peergrad train --preset math --task QUESTIONS.jsonl --dry-run",
    ):
        console.print(Text(f"  {command}"), soft_wrap=True)


def _leave(console: Console, sentence: str, code: int) -> None:
    """Go without waiting for threads that may be deep in an update: what counts is on disk."""
    console.print(Text(f"peergrad: {visible(sentence)}"), soft_wrap=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _newest(config: TrainConfig) -> str:
    run = Run(config.keep.out or Path())
    found = run.checkpoints()
    return found[-1].name if found else "the beginning"


def estimate(config: TrainConfig) -> str:
    """What a step takes at most, in tokens, as far as it can be known without the model's tokenizer."""
    made = plan(config)
    debate, batch = config.debate, config.learn.batch
    replies = batch * debate.agents * debate.max_rounds
    questions = [made.task[index] for index in range(min(20, len(made.task)))]
    waves = [made.protocol.wave(Debate("estimate", question, made.protocol)) for question in questions]
    letters = [sum(len(message.text) for message in ask.messages) for wave in waves for ask in wave]
    first = sum(letters) / max(1, len(letters)) / 4
    heard = debate.max_tokens * (debate.agents - 1)
    if debate.protocol == "parallel":  # one growing sequence per agent
        longest = first + debate.max_rounds * debate.max_tokens + (debate.max_rounds - 1) * heard
        trained = batch * debate.agents * longest
    else:
        longest = first + (debate.agents * debate.max_rounds) * debate.max_tokens
        trained = replies * longest
    return (
        f"# A step: {batch} debates, up to {replies} replies of up to {debate.max_tokens} tokens: "
        f"at most {replies * debate.max_tokens:,} sampled.\n"
        f"# Prompts begin with about {first:.0f} tokens (4 letters each) and may grow to {longest:,.0f}; "
        f"at most {trained:,.0f} tokens trained on.\n"
        f"# {config.learn.steps} steps: {config.learn.steps * batch / len(made.task):.2f} times {len(made.task)} questions."
    )

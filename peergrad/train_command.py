"""The command ``peergrad train`` on a terminal: live view, signals, the table at the end."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import NoReturn

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
    with Screen(console, config.learn.steps, config.warm.warm_steps) as screen:
        run = asyncio.run(_until_done(config, screen))
    _conclude(console, run)
    return 0


async def _until_done(config: TrainConfig, screen: Screen) -> Run:
    """The run, once it is done. If it fails, or a signal comes, the process ends here: threads are not waited for.

    What is cheap is finished before a signal is obeyed; a second one is obeyed at once.
    """
    loop, asked = asyncio.get_running_loop(), list[signal.Signals]()
    task = asyncio.ensure_future(train_run(config, screen, stop=lambda: bool(asked)))

    def stop(number: signal.Signals) -> None:
        if asked:
            _leave(screen, "left at once", _LEAVING[number])
        asked.append(number)
        screen.say(f"stopping while {screen.phase}; once more leaves at once")
        if screen.phase in ("training", "saving", "warm start"):
            loop.call_later(_PATIENCE_S, task.cancel)
        else:
            task.cancel()

    for number in _LEAVING:
        loop.add_signal_handler(number, stop, number)
    await asyncio.wait({task})
    try:
        return task.result()
    except (asyncio.CancelledError, Stopped) as stopped:
        if asked:
            _leave(screen, f"stopped; the same command goes on from {_newest(config)}", _LEAVING[asked[0]])
        _leave(screen, str(stopped), 1)
    except UserError as error:
        _leave(screen, str(error), 2)
    except EngineError as error:
        _leave(screen, str(error), 1)


def _conclude(console: Console, run: Run) -> None:
    metrics = run.metrics()
    before_and_after(console, metrics)
    page = write_report(run)
    path = shlex.quote(visible(str(run.path)))
    last = max((line["step"] for line in metrics), default=0)
    console.print(f"\nreport: {visible(str(page))}\nnext:", markup=False)
    for command in (
        f"peergrad score {path}/debates/step_{last:06}.jsonl",
        f"peergrad export {path} --to adapter",
        "peergrad train --preset math --task QUESTIONS.jsonl --dry-run",
    ):
        console.print(Text(f"  {command}"), soft_wrap=True)


def _leave(screen: Screen, sentence: str, code: int) -> NoReturn:
    """Go without waiting for threads that may be deep in an update: what counts is on disk."""
    screen.close()
    print(f"peergrad: {visible(sentence)}", file=sys.stderr)
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
    return "".join(f"# {visible(note)}\n" for note in made.notes) + (
        f"# A step: {batch} debates, up to {replies} replies of up to {debate.max_tokens} tokens: "
        f"at most {replies * debate.max_tokens:,} sampled.\n"
        f"# Prompts begin with about {first:.0f} tokens (4 letters each) and may grow to {longest:,.0f}; "
        f"at most {trained:,.0f} tokens trained on.\n"
        f"# {config.learn.steps} steps: {config.learn.steps * batch / len(made.task):.2f} times {len(made.task)} questions."
    )

"""The command ``peergrad train`` on a terminal: live view, the table at the end."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from peergrad.cli.signals import until_done
from peergrad.config import TrainConfig
from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.learn.train import Stopped
from peergrad.runs.folder import Run
from peergrad.runs.training import plan_run, train_run
from peergrad.terminal.training import Screen, before_and_after, too_many_lost
from peergrad.web.report import write_report


def train(config: TrainConfig) -> int:
    """Train, showing how it goes; returns the exit code."""
    console = Console(highlight=False)
    with Screen(console, config.learn.steps, config.warm.warm_steps) as screen:
        if not Run(config.keep.folder).exists:
            screen.say("a new run; `peergrad check` with the same settings says on a sample whether it can work")

        async def work(asked: Callable[[], bool]) -> Run:
            try:
                return await train_run(config, screen, stop=asked)
            except Stopped:  # there will be no table
                too_many_lost(console, Run(config.keep.folder))
                raise

        run = asyncio.run(until_done(work, screen, lambda: _newest(config)))
    _conclude(console, run)
    return 0


def _conclude(console: Console, run: Run) -> None:
    metrics = run.metrics()
    before_and_after(console, metrics)
    too_many_lost(console, run)
    page = write_report(run)
    path = shlex.quote(visible(str(run.path)))
    last = max((line["step"] for line in metrics), default=0)
    console.print(f"\nreport: {visible(str(page))}\nnext:", markup=False)
    score = f"peergrad score {path}/debates/step_{last:06}.jsonl"
    for command in (score, _use(run, path), "peergrad train --preset math --task QUESTIONS.jsonl --dry-run"):
        console.print(Text(f"  {command}"), soft_wrap=True)


def _use(run: Run, path: str) -> str:
    """What is done with what was learned: the weights of a service stay there."""
    newest = run.newest()
    here = newest is not None and (newest[1] / "adapter_model.safetensors").exists()
    return f"peergrad export {path} --to adapter" if here else f"peergrad eval --model {path}"


def _newest(config: TrainConfig) -> str:
    run = Run(config.keep.folder)
    found = run.checkpoints()
    return found[-1].name if found else "the beginning"


def estimate(config: TrainConfig) -> str:
    """What a step takes at most, in tokens, as far as it can be known without the model's tokenizer."""
    made = plan_run(config)
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
        "# Whether it can work: `peergrad check` with the same settings.\n"
        f"# {config.learn.steps} steps: {config.learn.steps * batch / len(made.task):.2f} times {len(made.task)} questions."
    )

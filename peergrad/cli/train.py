"""The command ``peergrad train``: a live view, and the table at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.text import Text

from peergrad.cli.main import Flag, Inline, PresetFlags, run_until_done, train_settings
from peergrad.config import TrainConfig
from peergrad.debate.quote import visible
from peergrad.learn.train import Stopped
from peergrad.runs.folder import Run
from peergrad.runs.plan import Plan, plan_run
from peergrad.runs.training import train_run
from peergrad.settings import changed, to_toml
from peergrad.terminal.progress import RunView, before_and_after, too_many_lost
from peergrad.terminal.tables import Output
from peergrad.web.report import write_report

base_settings = train_settings


def command(
    settings: Annotated[TrainConfig, Inline],
    flags: Annotated[PresetFlags, Inline] = PresetFlags(),  # noqa: B008 (frozen)
    dry_run: Flag = False,
) -> None:
    """Train a model by self-play debate. The same command resumes a run that was interrupted.

    Args:
        settings: Everything that can be set.
        flags: What the settings begin with; they are in ``settings`` already.
        dry_run: Check all settings, print them and what a step costs, and load nothing.
    """
    if settings.keep.out is None:
        name = flags.config.stem if flags.config else flags.preset or "demo"
        settings = changed(settings, {"out": Path("runs") / name}, "out")
    if dry_run:
        cost = estimate(settings)
        print(to_toml(settings))
        print(cost)
    else:
        train(settings)


def train(config: TrainConfig) -> None:
    """Train, showing the progress; then print what changed and what can be done next."""
    console, run = Output(), Run(config.keep.folder)
    with RunView(console, config.learn.steps) as view:
        if not run.exists:
            view.say("a new run; `peergrad check` with the same settings says on a sample whether it can work")

        async def work(asked_to_stop: Callable[[], bool]) -> Run:
            try:
                return await train_run(config, view, stop=asked_to_stop)
            except Stopped:  # there will be no table
                too_many_lost(console, run)
                raise

        run = run_until_done(work, view, lambda: run.checkpoints()[-1].name if run.checkpoints() else "the beginning")
    _conclude(console, run)


def _conclude(console: Console, run: Run) -> None:
    metrics = run.metrics()
    before_and_after(console, metrics)
    too_many_lost(console, run)
    page, path, newest = write_report(run), shlex.quote(visible(str(run.path))), run.newest()
    last = max((line["step"] for line in metrics), default=0)
    console.print(f"\nreport: {visible(str(page))}\nnext:", markup=False)
    # The weights of a service stay there.
    here = newest is not None and (newest[1] / "adapter_model.safetensors").exists()
    use = f"peergrad export {path} --to adapter" if here else f"peergrad eval --model {path}"
    score = f"peergrad score {path}/debates/step_{last:06}.jsonl" if last else f"peergrad eval --model {path}"
    for line in (score, use, "peergrad train --preset math --task QUESTIONS.jsonl --dry-run"):
        console.print(Text(f"  {line}"), soft_wrap=True)


def estimate(config: TrainConfig) -> str:
    """What a step takes at most, in tokens, as far as it can be known without the model's tokenizer."""
    plan = plan_run(config)
    debate, batch = config.debate, config.learn.batch
    rounds = plan.protocol.rounds or debate.max_rounds
    replies = batch * debate.agents * rounds
    questions = [plan.task[index] for index in range(min(20, len(plan.task)))]
    waves = [plan.wave(question, "estimate") for question in questions]
    letters = [sum(len(message.text) for message in ask.messages) for wave in waves for ask in wave]
    first = sum(letters) / max(1, len(letters)) / 4
    longest, sequences = first + debate.agents * rounds * debate.max_tokens, replies
    if plan.protocol.one_dialogue:  # one growing sequence per agent, without what the others say last
        longest, sequences = longest - debate.max_tokens * (debate.agents - 1), batch * debate.agents
    return "".join(f"# {visible(note)}\n" for note in (*plan.notes, *_warm_start(plan))) + (
        f"# A step: {batch} debates, up to {replies} replies of up to {debate.max_tokens} tokens: "
        f"at most {replies * debate.max_tokens:,} sampled.\n"
        f"# Prompts begin with about {first:.0f} tokens (4 letters each) and may grow to {longest:,.0f}; "
        f"at most {sequences * longest:,.0f} tokens trained on.\n"
        "# Whether it can work: `peergrad check` with the same settings.\n"
        f"# {config.learn.steps} steps: {config.learn.steps * batch / len(plan.task):.2f} times {len(plan.task)} questions."
    )


def _warm_start(plan: Plan) -> list[str]:
    """What comes before the steps, if anything does."""
    warm, count = plan.config.warm, len(plan.lessons)
    if plan.learns_from_own:
        return [f"A warm start on what is {warm.warm_keep} in {min(warm.warm_sample, len(plan.task))} debates of its own."]
    return [f"A warm start of {warm.updates(count)} updates on {count} debates or solutions."] if count else []

"""The command ``peergrad train``: a live view, and the table at the end."""

from __future__ import annotations

import ctypes
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from rich.console import Console

from peergrad.cli.main import Flag, Inline, PresetFlags, program, run_until_done, train_settings
from peergrad.config import TrainConfig
from peergrad.debate.errors import EngineError
from peergrad.debate.protocols import PROTOCOLS
from peergrad.debate.quote import visible
from peergrad.debate.settings import to_toml
from peergrad.learn.train import Stopped
from peergrad.reward.rewards import REWARDS
from peergrad.runs.estimate import estimate, on_cpu
from peergrad.runs.folder import Run
from peergrad.runs.training import train_run
from peergrad.terminal.console import Output, print_line
from peergrad.terminal.training import RunView, before_and_after, too_many_lost
from peergrad.web.report import write_report

base_settings = train_settings

_ARENA_MAX = -8  # malloc.h: M_ARENA_MAX


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
    if dry_run:
        sentences = estimate(settings)
        print(to_toml(settings, flags.origins(settings)))
        print("\n".join(f"# {visible(sentence)}" for sentence in (f"Settings: {flags.from_where}.", *sentences)))
    else:
        train(settings, f", settings: {flags.from_where}")


def train(config: TrainConfig, about: str = "") -> None:
    """Train, showing the progress; then print what changed and what can be done next."""
    if on_cpu(config.engine):
        _one_arena()
    console, run = Output(), Run(config.keep.folder)
    protocol = config.debate.build()
    with RunView(console, config.learn.steps, protocol.agents * (protocol.rounds or 0)) as view:
        if not run.exists:
            view.say(f"a new run{about}; `peergrad check` with the same settings says on a sample whether it can work")

        async def work(asked_to_stop: Callable[[], bool]) -> Run:
            try:
                return await train_run(config, view, stop=asked_to_stop)
            except Stopped:  # there will be no table
                too_many_lost(console, run)
                raise

        run = run_until_done(work, view, lambda: run.checkpoints()[-1].name if run.checkpoints() else "the beginning")
    _conclude(console, run, config)
    if run.learned_nothing:
        raise EngineError(
            "nothing was learned: no step made an update, and the weights are those it began with. Where debates have no "
            "signal (debates/without_signal), `peergrad check` with the same settings says why"
        )


def _one_arena() -> None:
    """Let all threads allocate from one arena: glibc gives each its own, where what sampling has freed is lost for training.

    Only threads that begin later do.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # other C libraries have one anyway
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def _conclude(console: Console, run: Run, config: TrainConfig) -> None:
    metrics = run.metrics()
    before_and_after(console, metrics)
    too_many_lost(console, run)
    page, path, newest = write_report(run), shlex.quote(visible(str(run.path))), run.newest()
    print_line(console, f"report: {page}")
    print_line(console, "next:")
    # The weights of a service stay there.
    here = newest is not None and (newest[1] / "adapter_model.safetensors").exists()
    use = f"export {path} --to {path}-adapter" if here else f"eval --model {path}"
    # As it was trained to answer, else answers can't be compared.
    style = next((debate.question.style.name for _, debate in run.debates(thin=True)), "")
    ask = f'debate "What is 3 + 5?" --model {path}' + (f" --style {style}" if style in ("boxed", "number") else "")
    # What is somebody's own is imported only where it is named.
    reward, protocol = config.learn.reward.reward, config.debate.protocol
    score = f"score {path}" + ("" if reward in REWARDS else f" --reward {reward}")
    ask += "" if protocol in PROTOCOLS else f" --protocol {protocol}"
    for line in (score, use, ask):
        print_line(console, f"  {program()} {line}")

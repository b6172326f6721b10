"""What the flags of several commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from peergrad.config import PRESETS, TrainConfig, preset
from peergrad.debate.quote import visible
from peergrad.runs.model_ref import run_of, trained_engine
from peergrad.settings import changed, flat, from_file
from peergrad.tasks.own import is_own_task

T = TypeVar("T")

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag without a ``--no-`` form."""
Inline: Any = tyro.conf.arg(name="")
"""Beside a dataclass: its fields are flags of their own."""


@dataclass(frozen=True, kw_only=True)
class PresetFlags:
    """The flags that name the settings a training run begins with."""

    preset: Annotated[str | None, tyro.conf.arg(metavar=f"{{{','.join(PRESETS)}}}")] = None
    """Settings to begin with; demo, unless a file is given."""
    config: Path | None = None
    """A TOML file with settings, which go before the preset's; what is given here goes before both."""


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The flags that name the settings of a model: of a run it has trained, they begin with the run's."""

    model: str | None = None
    base_url: str | None = None
    engine: str | None = None
    seat: tuple[str, ...] = ()  # only ``debate`` has it
    config: Path | None = None

    def settings(self, base: T, of_run: Collection[str]) -> T:
        """The settings to begin with: these of the run that is named, then those of the file."""
        run = run_of(self.model) if self.model else None
        if run:
            trained = from_file(TrainConfig(), run.path / "config.toml")
            task = trained.held_out.eval_task or trained.task.task
            known = flat(trained) | trained_engine(trained.engine, self.base_url, self.engine)
            known["task"] = "" if is_own_task(task) else task  # somebody's code is not imported because a folder names it
            base = changed(base, {name: known[name] for name in of_run if name in known}, "model")
        return from_file(base, self.config) if self.config else base


def first_pass(flags: type[T], args: Sequence[str]) -> T:
    """Read only the flags that decide what the others begin with. The command itself reads all of them, in a second pass."""
    config: Any = (tyro.conf.UseAppendAction,)
    return tyro.cli(flags, args=args, prog="peergrad", add_help=False, return_unknown_args=True, config=config)[0]


def train_settings(args: Sequence[str]) -> TrainConfig:
    """The settings that the flags of ``train`` and ``check`` begin with: a preset's, then those of a file."""
    flags = first_pass(PresetFlags, args)
    config = preset(flags.preset or "demo") if flags.preset or not flags.config else TrainConfig()
    return from_file(config, flags.config) if flags.config else config


def say(sentence: str) -> None:
    """Print a sentence on stderr."""
    print(visible(sentence), file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {sentence}")

"""What the flags of several commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from peergrad.config import PRESETS, TrainConfig, from_folder, preset, with_protocol
from peergrad.debate.config import DEBATES
from peergrad.debate.quote import visible
from peergrad.runs.models import run_of, trained_engine
from peergrad.settings import changed, flat, from_file, read_settings
from peergrad.tasks.open import is_own_task

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
class FirstFlags(PresetFlags):
    """The flags that decide what the others begin with. A first pass reads them alone, and the command then all flags."""

    protocol: str | None = None
    model: str | None = None
    seat: tuple[str, ...] = ()
    base_url: str | None = None
    engine: str | None = None

    @staticmethod
    def of(args: Sequence[str]) -> FirstFlags:
        config: Any = (tyro.conf.UseAppendAction,)
        return tyro.cli(FirstFlags, args=args, prog="peergrad", add_help=False, return_unknown_args=True, config=config)[0]

    @property
    def named_protocol(self) -> str | None:
        """The protocol that the flags name, or the file."""
        named = self.protocol or (read_settings(self.config).get("protocol") if self.config else None)
        return named if isinstance(named, str) else None


def train_settings(args: Sequence[str]) -> TrainConfig:
    """The settings that the flags of ``train`` and ``check`` begin with: a preset's, then those of a file."""
    flags = FirstFlags.of(args)
    config = preset(flags.preset or "demo") if flags.preset or not flags.config else TrainConfig()
    if flags.named_protocol:
        config = with_protocol(config, flags.named_protocol)
    return from_file(config, flags.config) if flags.config else config


def model_settings(config: T, args: Sequence[str], sections: Sequence[str]) -> T:
    """The settings that the flags of ``eval`` and ``debate`` begin with: of a run's model some sections of the run, and its
    engine; then those of a file.
    """
    flags = FirstFlags.of(args)
    if named := flags.named_protocol:
        config = with_protocol(config, named)
    if run := run_of(flags.model) if flags.model else None:
        trained = from_folder(TrainConfig(), run.path)
        theirs = trained.debate.protocol
        if not named and theirs in DEBATES:  # nothing is imported because a folder names it
            config = with_protocol(config, theirs)
        values = {name: value for section in sections for name, value in flat(getattr(trained, section)).items()}
        if named and named != theirs:  # which has its own number of agents
            values = {name: value for name, value in values.items() if name not in ("protocol", "agents")}
        if "task" in sections:
            task = eval_task(trained)
            values["task"] = "" if is_own_task(task) else task
        values |= trained_engine(trained.engine, flags.base_url, flags.engine)
        known = flat(config)
        config = changed(config, {name: value for name, value in values.items() if name in known}, "model")
    return from_file(config, flags.config) if flags.config else config


def eval_task(trained: TrainConfig) -> str:
    """The task that a run is evaluated on."""
    return trained.held_out.eval_task or trained.task.task


def say(sentence: str) -> None:
    """Print a sentence on stderr."""
    print(visible(sentence), file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {sentence}")

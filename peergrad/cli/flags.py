"""What the flags of several commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from peergrad.config import PRESETS, TrainConfig, preset
from peergrad.debate.config import has_own_settings, with_protocol
from peergrad.debate.quote import visible
from peergrad.settings import from_file, read_settings

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
    config: Path | None = None


def first_pass(flags: type[T], args: Sequence[str]) -> T:
    """Read only the flags that decide what the others begin with. The command itself reads all of them, in a second pass."""
    config: Any = (tyro.conf.UseAppendAction,)
    return tyro.cli(flags, args=args, prog="peergrad", add_help=False, return_unknown_args=True, config=config)[0]


@dataclass(frozen=True, kw_only=True)
class _ProtocolFlag:
    protocol: str | None = None


def with_own_protocol(config: T, file: Path | None, args: Sequence[str]) -> T:
    """Settings with a place for those of a person's own protocol, if the flags or the file name one: it is imported."""
    in_file = read_settings(file).get("protocol") if file else None
    protocol = first_pass(_ProtocolFlag, args).protocol or in_file
    return with_protocol(config, protocol) if protocol and has_own_settings(protocol) else config


def train_settings(args: Sequence[str]) -> TrainConfig:
    """The settings that the flags of ``train`` and ``check`` begin with: a preset's, then those of a file."""
    flags = first_pass(PresetFlags, args)
    config = preset(flags.preset or "demo") if flags.preset or not flags.config else TrainConfig()
    config = with_own_protocol(config, flags.config, args)
    return from_file(config, flags.config) if flags.config else config


def say(sentence: str) -> None:
    """Print a sentence on stderr."""
    print(visible(sentence), file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {sentence}")

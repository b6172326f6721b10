"""The command ``peergrad``: its subcommands, the flags that several of them share, signals, and the exit codes.

Exit codes: 0 done, 1 the world failed (network, disk), training was stopped by a guard or a gate of the check fails, 2 the
input can't be used (nothing was written), 130 and 143 interrupted by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import tyro

from peergrad import __version__
from peergrad.config import (
    PRESETS,
    TrainConfig,
    changed,
    flat,
    from_file,
    from_folder,
    preset,
    read_settings,
    with_protocol,
)
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.protocols import BUILT_IN
from peergrad.debate.quote import visible
from peergrad.learn.train import Stopped
from peergrad.runs.models import run_of, trained_engine
from peergrad.tasks.open import is_own_task

if TYPE_CHECKING:
    from peergrad.terminal.progress import View  # brings rich, which `score --json` does not need

T = TypeVar("T")

COMMANDS = (
    "score",
    "rescore",
    "distill",
    "models",
    "train",
    "check",
    "eval",
    "debate",
    "compare",
    "report",
    "export",
    "serve",
    "view",
)
_IN_SAVED = ("score", "rescore", "distill", "models", "compare", "report", "export")  # small ones, in one file
_WITH_SETTINGS = ("train", "check", "eval", "debate")  # their flags begin with what a preset, a file or a run says
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def main() -> None:
    """Run the command line. A person's mistake is one sentence on stderr, never a traceback."""
    code = 0
    try:
        _run(sys.argv[1:])
        sys.stdout.flush()
    except (UserError, EngineError) as error:
        say(f"peergrad: {error}")
        code = _code(error)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does; keep Python from complaining about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(args: Sequence[str]) -> None:
    app = tyro.extras.SubcommandApp()
    if args and args[0] in COMMANDS:
        app.command(name=args[0])(_command(args[0], args[1:]))
    else:  # all are imported, to be listed
        for name in COMMANDS:
            app.command(name=name)(_command(name, []))
        app.command(version)
    config: Any = (tyro.conf.OmitArgPrefixes,)
    app.cli(args=args, config=config, prog="peergrad", description=sys.modules["peergrad"].__doc__, use_underscores=False)


def version() -> None:
    """Print the version."""
    print(__version__)


def _command(name: str, args: Sequence[str]) -> Callable[..., None]:
    if name in _IN_SAVED:
        return getattr(import_module("peergrad.cli.saved"), name)
    module = import_module(f"peergrad.cli.{name}")
    return partial(module.command, settings=module.base_settings(args)) if name in _WITH_SETTINGS else module.command


def _code(error: UserError | EngineError) -> int:
    return 2 if isinstance(error, UserError) else 1


# Flags

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
    """The settings that the flags of ``eval`` and ``debate`` begin with: sections of a run named as model, then a file's."""
    flags = FirstFlags.of(args)
    if named := flags.named_protocol:
        config = with_protocol(config, named)
    if run := run_of(flags.model) if flags.model else None:
        trained = from_folder(TrainConfig(), run.path)
        theirs = trained.debate.protocol
        if not named and theirs in BUILT_IN:  # nothing is imported because a folder names it
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


# Signals

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
        _exit(view, str(error), _code(error))


def _exit(view: View, sentence: str, code: int) -> NoReturn:
    """End the process without waiting for threads: what counts is on disk."""
    view.close()
    say(f"peergrad: {sentence}")
    sys.stdout.flush()
    os._exit(code)

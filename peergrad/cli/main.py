"""The command ``peergrad``: its subcommands, the flags that several of them share, signals, and the exit codes.

Exit codes: 0 done, 1 the world failed (network, disk), training was stopped by a guard or a gate of the check fails, 2 the
input can't be used (nothing was written), 130 and 143 interrupted by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import inspect
import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import tyro

import peergrad
from peergrad.cli.help import short_help
from peergrad.config import PRESETS, TrainConfig, from_folder, preset, with_protocol
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import nearest
from peergrad.debate.protocols import PROTOCOLS
from peergrad.debate.quote import visible
from peergrad.debate.settings import changed, flat, read_settings
from peergrad.learn.train import Stopped
from peergrad.runs.models import run_of, settings_of_run
from peergrad.tasks.open import is_own_task

if TYPE_CHECKING:
    from peergrad.terminal.console import View  # brings rich, which `score --json` does not need

T = TypeVar("T")

_SAVED = ("report", "export", "score", "rescore", "compare", "distill", "models")  # small ones, in one file
COMMANDS = ("train", "check", "eval", "debate", "view", *_SAVED, "serve")
"""In the order in which people need them."""
USUAL = "demo-parallel"
"""The preset of who gives none."""
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def main() -> None:
    """Run the command line. A person's mistake is one sentence on stderr, never a traceback."""
    # Threads that spin while they wait take the core that the thread they wait for needs, wherever something else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    code = 0
    try:
        _run(sys.argv[1:])
        sys.stdout.flush()
    except (UserError, EngineError) as error:
        say(f"peergrad: {error}")
        code = _code(error)
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keep Python from complaining about it once more
        if error.errno == errno.ENOSPC:  # else the reader left, as `| head` does
            say(f"peergrad: the output can't be written ({error.strerror})")
            code = 1
    sys.exit(code)


def _run(args: Sequence[str]) -> None:
    name = args[0] if args else ""
    if name in COMMANDS:
        parsed(name, args[1:])()
    elif name in ("version", "--version"):
        print(peergrad.__version__)
    elif name in ("", "-h", "--help"):
        print(_overview(), file=sys.stdout if name else sys.stderr)
        sys.exit(0 if name else 2)
    else:
        raise UserError(f"{name!r} is no command; {nearest(name, COMMANDS)}")


def _overview() -> str:
    """All commands with the first sentence about each."""
    sentences = [(inspect.getdoc(_command(name)[0]) or "").splitlines()[0] for name in COMMANDS]
    lines = [f"  {name:<8} {sentence}" for name, sentence in zip(COMMANDS, sentences, strict=True)]
    usage = "usage: peergrad COMMAND …; peergrad COMMAND --help says more, peergrad --version which one this is"
    return "\n".join([peergrad.__doc__ or "", "", usage, "", *lines])


def _command(name: str) -> tuple[Callable[..., None], Callable[[Sequence[str]], Any] | None]:
    """The function of a command, and what gives the settings that its flags begin with."""
    module = import_module(f"peergrad.cli.{'saved' if name in _SAVED else name}")
    function, settings = (name, f"{name}_settings") if name in _SAVED else ("command", "base_settings")
    return getattr(module, function), getattr(module, settings, None)


def parsed(name: str, args: Sequence[str]) -> Callable[[], None]:
    """A command with its arguments, ready to be called. What the parser complains of is a person's mistake."""
    command, base_settings = _command(name)
    config: Any = (tyro.conf.OmitArgPrefixes,)
    with contextlib.redirect_stderr(io.StringIO()) as complaint:
        try:
            later = functools.wraps(command)(lambda *given, **named: partial(command, *given, **named))
            if base_settings:
                settings = base_settings(args)
                if {"-h", "--help"} & set(args) and name not in _SAVED:
                    flags = FirstFlags.of(args)
                    usual = USUAL if isinstance(settings, TrainConfig) and not flags.config else None
                    print(short_help(name, inspect.getdoc(command) or "", settings, flags.preset or usual))
                    sys.exit(0)
                later = partial(later, settings=settings)
            args = ["--help" if one == "--help-all" else one for one in args]
            return tyro.cli(later, args=args, prog=f"peergrad {name}", config=config)
        except SystemExit as left:
            if not left.code:  # help was asked for
                raise
        except (AssertionError, ValueError, LookupError, TypeError) as error:  # the parser does not expect everything
            raise UserError(f"arguments: can't be read ({error})") from error
    # A box with a title, its paragraphs divided by rules.
    paragraphs = re.split("─{9,}", re.sub("[│╭╮╰╯]", " ", complaint.getvalue()).partition("\n")[2])
    raise UserError(". ".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()))


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
    """Settings to begin with; demo-parallel, unless a file is given."""
    config: Path | None = None
    """A TOML file with settings, which go before the preset's; what is given here goes before both."""

    def train_settings(self, protocol: str | None = None) -> TrainConfig:
        """The settings that these flags begin with: a preset's, then those of a file."""
        config = preset(self.preset or USUAL) if self.preset or not self.config else TrainConfig()
        config = with_protocol(config, protocol) if protocol else config
        return changed(config, {"out": f"runs/{self.config.stem}"} | self.file if self.config else {}, str(self.config))

    @cached_property
    def file(self) -> dict[str, Any]:
        """The settings of the file, if there is one."""
        return read_settings(self.config) if self.config else {}

    @property
    def from_where(self) -> str:
        """What the settings begin with, in words."""
        if self.config and not self.preset:
            return f"{self.config}, without a preset: what it does not name has the usual value, not that of demo-parallel"
        return f"preset {self.preset or USUAL}" + (f", then {self.config}" if self.config else "")

    def origins(self, config: TrainConfig) -> dict[str, str]:
        """Where each setting is from, if not from the usual values."""
        begun, usual, given = flat(self.train_settings(config.debate.protocol)), flat(TrainConfig()), flat(config)
        beginning = str(self.config) if self.config and not self.preset else f"preset {self.preset or USUAL}"
        origins = {name: beginning for name, value in begun.items() if value != usual.get(name)}
        origins |= dict.fromkeys(self.file, str(self.config))
        return origins | {name: "given" for name, value in given.items() if value != begun.get(name)}


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
        named = self.protocol or self.file.get("protocol")
        return named if isinstance(named, str) else None


def train_settings(args: Sequence[str]) -> TrainConfig:
    """The settings that the flags of ``train`` and ``check`` begin with: a preset's, then those of a file."""
    flags = FirstFlags.of(args)
    return flags.train_settings(flags.named_protocol)


def model_settings(config: T, args: Sequence[str], sections: Sequence[str]) -> T:
    """The settings that the flags of ``eval`` and ``debate`` begin with: sections of a run named as model, then a file's."""
    flags = FirstFlags.of(args)
    if named := flags.named_protocol:
        config = with_protocol(config, named)
    if run := run_of(flags.model) if flags.model else None:
        trained = from_folder(TrainConfig(), run.path)
        theirs = trained.debate.protocol
        if not named and theirs in PROTOCOLS:  # nothing is imported because a folder names it
            config = with_protocol(config, theirs)
        values = settings_of_run(trained, sections, flags.base_url, flags.engine)
        if named and named != theirs:  # which has its own number of agents
            values = {name: value for name, value in values.items() if name not in ("protocol", "agents")}
        if "task" in sections:
            task = eval_task(trained)
            values["task"] = "" if is_own_task(task) else task
        known = flat(config)
        config = changed(config, {name: value for name, value in values.items() if name in known}, "model")
    return changed(config, flags.file, str(flags.config))


def eval_task(trained: TrainConfig) -> str:
    """The task that a run is evaluated on."""
    return trained.held_out.eval_task or trained.task.task


def program() -> str:
    """What to type for this very command: a path where the shell would not find it by its name."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m peergrad"
    found = shutil.which("peergrad")
    if found and Path(found).resolve() == started.resolve():
        return "peergrad"
    here = os.path.relpath(started)
    return shlex.quote(here if os.sep in here else os.path.join(os.curdir, here))


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
        loop.call_later(view.grace_s, task.cancel)

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

"""The command ``peergrad``: its subcommands and the exit codes.

Exit codes: 0 done, 1 the world failed (network, disk), training was stopped by a guard or a gate of the check fails, 2 the
input can't be used (nothing was written), 130 and 143 interrupted by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import tyro

from peergrad import __version__
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.quote import visible

COMMANDS = ("score", "rescore", "models", "train", "check", "eval", "debate", "compare", "report", "export", "serve")
_IN_SAVED = ("score", "rescore", "models", "compare", "report", "export")  # small ones, in one file
_WITH_SETTINGS = ("train", "check", "eval", "debate")  # their flags begin with what a preset, a file or a run says


def main() -> None:
    """Run the command line. A person's mistake is one sentence on stderr, never a traceback."""
    code = 0
    try:
        _run(sys.argv[1:])
        sys.stdout.flush()
    except (UserError, EngineError) as error:
        print(f"peergrad: {visible(str(error))}", file=sys.stderr)
        code = 2 if isinstance(error, UserError) else 1
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

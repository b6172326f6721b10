"""The command ``peergrad report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from peergrad.cli.flags import warn
from peergrad.runs.folder import Run
from peergrad.web.report import write_report


def command(run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /) -> None:
    """Write a page about a run: curves, and debates before and after.

    Args:
        run: The folder that ``peergrad train`` wrote to.
    """
    print(write_report(Run.open(run, warn)))

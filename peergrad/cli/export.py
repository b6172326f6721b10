"""The command ``peergrad export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from peergrad.cli.flags import warn
from peergrad.runs.export import export
from peergrad.runs.folder import Run


def command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /, to: Path, step: int | None = None
) -> None:
    """Copy a checkpoint as a PEFT adapter with a model card.

    Args:
        run: The folder that ``peergrad train`` wrote to.
        to: The folder to make.
        step: Which step's; unset, the newest.
    """
    print(export(Run.open(run, warn), to, step))

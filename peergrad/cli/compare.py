"""The command ``peergrad compare``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from peergrad.cli.flags import Flag
from peergrad.debate.errors import UserError
from peergrad.measure.outcome import compared
from peergrad.runs.eval_folder import read_result
from peergrad.terminal.tables import print_comparison


def command(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")],
    /,
    json: Flag = False,
) -> None:
    """Compare two results of ``peergrad eval``, question by question.

    Args:
        first: The folder of a finished evaluation.
        second: Another one, about the same questions.
        json: Print one JSON object instead of a table.
    """
    comparison = compared(read_result(first), read_result(second))
    if not comparison["questions"]:
        raise UserError(f"{second}: shares no question with {first}; compare evaluations of the same questions")
    if json:
        print(json_module.dumps(comparison))
    else:
        print_comparison(Console(highlight=False, markup=False), (str(first), str(second)), comparison)

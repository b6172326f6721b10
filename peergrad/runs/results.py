"""Reading the result of an evaluation back (docs/reference/eval.md)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.fields import read_json
from peergrad.runs import files


def read_result(path: Path) -> dict[str, Any]:
    """The result in an evaluation's folder, or a ``result.json`` itself."""
    if path.is_dir():
        files.refuse_links(path)
        path = path / "result.json"
    if not path.exists():
        raise UserError(f"{path}: there is no result; give a folder that `peergrad eval` has finished")
    result = read_json(path)
    with contextlib.suppress(KeyError, TypeError, AttributeError, OverflowError):
        if _is_result(result):
            return result
    raise UserError(f"{path}: is no result of `peergrad eval`, or damaged; evaluate again in a new folder")


def _is_result(result: Mapping[str, Any]) -> bool:
    """Whether it has what is shown and compared, in the right shape; what has quite another one may raise."""

    def numbers(name: str, count: int) -> bool:
        return all(len(row) == count and all(map(_is_number, row)) for row in result[name].values())

    count = len(result["questions"])
    shares = [value for row in result["values"].values() for value in row if value is not None]
    return (
        all(isinstance(name, str) for name in (*result["questions"], *result["hashes"], result["task"], result["model"]))
        and len(result["hashes"]) == count == len(set(result["questions"]))
        and all(len(row) == count for row in result["values"].values())
        and all(_is_number(value) and 0 <= value <= 1 for value in shares)
        and numbers("accuracy", 3)
        and numbers("difference", 3)
        and numbers("shares", 4)
        and all(map(_is_number, result["tokens"].values()))
        and all(_is_number(part[name]) for part in result["times"].values() for name in ("seconds", "sampled", "usd"))
        and all(name in result["settings"] for name in ("mode", "protocol", "agents", "max_rounds", "cost"))
        and isinstance(result["dropped"], dict)
        and isinstance(result["asked"], int)
        and result["reference"] in (None, *result["values"])
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

"""The files of the viewer's page, and its data as JSON."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any


def static_files() -> dict[str, bytes]:
    """The files of the page, by name."""

    def below(folder: Any, name: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for entry in folder.iterdir():
            path = f"{name}/{entry.name}" if name else entry.name
            found |= below(entry, path) if entry.is_dir() else {path: entry.read_bytes()}
        return found

    return below(resources.files("peergrad.web").joinpath("static"), "")


def plain(value: Any) -> Any:
    """Settings as JSON has them."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def encode(value: Any) -> bytes:
    """JSON, all in ASCII, so that halves of surrogate pairs can be written. What is not finite becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

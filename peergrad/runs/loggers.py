"""Sending metrics elsewhere as well. The run folder is always written; a logger that fails never stops a run."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError


class Logger(typing.Protocol):
    """Takes numbers by step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_loggers(names: Sequence[str], run: Path, config: Mapping[str, Any]) -> list[Logger]:
    """The loggers asked for; a missing library is said before anything is trained."""
    return [_OPEN[name](run, {key: str(value) for key, value in config.items()}) for name in names]


class _TensorBoard:
    def __init__(self, run: Path, config: Mapping[str, str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._writer = SummaryWriter(str(run / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """wandb, and trackio, which speaks the same words."""

    def __init__(self, library: str, run: Path, config: Mapping[str, str]) -> None:
        import importlib

        try:
            self._library: Any = importlib.import_module(library)
        except ImportError:
            raise _missing(library) from None
        self._run: Any = self._library.init(project="peergrad", name=run.name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


_OPEN: dict[str, typing.Callable[[Path, Mapping[str, str]], Logger]] = {
    "tensorboard": _TensorBoard,
    "wandb": lambda run, config: _Tracker("wandb", run, config),
    "trackio": lambda run, config: _Tracker("trackio", run, config),
}


def _missing(library: str) -> UserError:
    return UserError(f"log_to: {library} is not installed; pip install {library}, or leave it out: files are always written")

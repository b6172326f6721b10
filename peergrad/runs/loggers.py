"""Sending metrics elsewhere as well. The run folder is always written; a logger that fails never stops a run."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError


class Logger(typing.Protocol):
    """Takes numbers by step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_loggers(names: Sequence[str], run: Path, config: Mapping[str, Any]) -> list[Logger]:
    """The loggers asked for; a missing library, or one that can't start, is said before anything is trained."""
    settings, opened = {key: str(value) for key, value in config.items()}, list[Logger]()
    for name in names:
        try:
            opened.append(_TensorBoard(run, settings) if name == "tensorboard" else _Tracker(name, run, settings))
        except ImportError:
            raise UserError(
                f"log_to: {name} is not installed; pip install {name}, or leave it out: files are always written"
            ) from None
        except Exception as error:  # whatever such a library may raise: no key, no network, no space
            raise UserError(f"log_to: {name} can't start ({type(error).__name__}: {error}); or leave it out") from None
    return opened


class Loggers:
    """Several loggers. One that fails is told of once and left out from then on: a run never stops for it."""

    def __init__(self, loggers: Sequence[Logger], warn: Callable[[str], None]) -> None:
        self._loggers, self._warn = list(loggers), warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, do: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                do(logger)
            except Exception as error:  # as above
                self._loggers.remove(logger)
                self._warn(f"{type(logger).__name__.strip('_')} failed ({error}); going on without it")


class _TensorBoard:
    def __init__(self, run: Path, config: Mapping[str, str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """wandb, and trackio, which has the same functions."""

    def __init__(self, library: str, run: Path, config: Mapping[str, str]) -> None:
        self._run: Any = importlib.import_module(library).init(project="peergrad", name=run.name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()

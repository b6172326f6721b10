"""Metrics elsewhere: a logger that fails never stops a run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peergrad.debate.errors import UserError


class Logger(NamedTuple):
    """Takes numbers by step."""

    name: str
    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


class Loggers:
    """The loggers asked for. A missing library, or one that can't start, is said before anything is trained; one that fails
    later is told of once and left out from then on.
    """

    def __init__(self, names: Sequence[str], run: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        settings = {key: str(value) for key, value in config.items()}
        self._loggers, self._warn = [_opened(name, run, settings) for name in names], warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, do: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                do(logger)
            except Exception as error:  # whatever such a library may raise
                self._loggers.remove(logger)
                self._warn(f"{logger.name} failed ({error}); going on without it")


def _opened(name: str, run: Path, settings: Mapping[str, str]) -> Logger:
    try:
        if name == "tensorboard":
            return _tensorboard(run, settings)
        # wandb, and trackio, which has the same functions
        tracker: Any = importlib.import_module(name).init(project="peergrad", name=run.name, config={**settings})
        return Logger(name, lambda step, numbers: tracker.log({**numbers}, step=step), tracker.finish)
    except ImportError:
        raise UserError(
            f"log_to: {name} is not installed; pip install {name}, or leave it out: files are always written"
        ) from None
    except Exception as error:  # whatever such a library may raise: no key, no network, no space
        raise UserError(f"log_to: {name} can't start ({type(error).__name__}: {error}); or leave it out") from None


def _tensorboard(run: Path, config: Mapping[str, str]) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run / "tensorboard"))
    writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()))

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return Logger("tensorboard", log, writer.close)

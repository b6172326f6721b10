"""Metrics elsewhere: a logger that fails never stops a run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError


class Loggers:
    """The loggers asked for. A missing library, or one that can't start, is said before anything is trained; one that fails
    later is told of once and left out from then on.
    """

    def __init__(self, names: Sequence[str], run: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        settings = {key: str(value) for key, value in config.items()}
        self._trackers, self._warn = {name: _opened(name, run, settings) for name in names}, warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log({**metrics}, step=step))

    def close(self) -> None:
        self._each(lambda tracker: tracker.finish())

    def _each(self, do: Callable[[Any], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:  # whatever such a library may raise
                del self._trackers[name]
                self._warn(f"{name} failed ({error}); going on without it")


def _opened(name: str, run: Path, settings: dict[str, str]) -> Any:
    try:
        if name == "tensorboard":
            return _TensorBoard(run, settings)
        return importlib.import_module(name).init(project="peergrad", name=run.name, config=settings)
    except ImportError:
        raise UserError(
            f"log_to: {name} is not installed; pip install {name}, or leave it out: files are always written"
        ) from None
    except Exception as error:  # whatever such a library may raise: no key, no network, no space
        raise UserError(f"log_to: {name} can't start ({type(error).__name__}: {error}); or leave it out") from None


class _TensorBoard:
    """As wandb and trackio have it."""

    def __init__(self, run: Path, settings: Mapping[str, str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in settings.items()))
        self.finish = self._writer.close

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

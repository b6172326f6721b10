"""Who is told how work goes: watchers of a training run, an evaluation, a check, debates; and loggers of other libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.debate.types import Ask, Debate, Reply
from peergrad.engines.base import Spent
from peergrad.learn.trainer import Updates
from peergrad.measure.alarms import Alarm
from peergrad.measure.history import live_values
from peergrad.runs.folder import Progress


class Watcher:
    """Told of everything as it happens; what it does with it never changes the work. This one does nothing."""

    listens = False
    """Whether ``heard`` is to be called."""

    def say(self, sentence: str) -> None:
        """Something a person should know."""

    def warn(self, sentence: str) -> None:
        """Something a person should be warned of."""

    def begin(self, phase: str, debates: int, at: Progress | None = None) -> None:
        """A phase begins (of training: ``sampling``, ``training``, ``saving`` …), in which so many debates are played, or of
        ``warm start`` updates made.
        """

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:
        """A debate ended, after so many seconds; ``None`` was dropped."""

    # Training

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None:
        """A line of metrics was saved."""

    def updates(self, so_far: Updates) -> None:
        """Updates were made, or a run is resumed after these."""

    def alarm(self, alarm: Alarm) -> None:
        """An alarm sounds."""

    # Debates without training

    def resumed(self, debates: Sequence[Debate]) -> None:
        """These debates were played before."""

    def cost(self, so_far: Spent) -> None:
        """What was spent so far; told before each reply and each debate that ended."""

    def replied(self, ask: Ask, reply: Reply) -> None:
        """An agent has replied."""

    def heard(self, ask: Ask, piece: str | None) -> None:
        """The next piece of a reply that is under way; ``None``: it starts again."""


class Printing(Watcher):
    """Prints a line on stderr for whatever happens in a training run: what one from Python shows by default."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def say(self, sentence: str) -> None:
        sys.stderr.write(visible(sentence) + "\n")

    def warn(self, sentence: str) -> None:
        self.say(f"warning: {sentence}")

    def begin(self, phase: str, debates: int, at: Progress | None = None) -> None:  # noqa: ARG002
        if phase == "evaluating":
            self.say(f"evaluating {(at or Progress()).name}")

    def line(self, phase: str, at: Progress, metrics: Mapping[str, Any]) -> None:
        self.say(step_sentence(phase, at, metrics, self._steps))

    def alarm(self, alarm: Alarm) -> None:
        self.say(f"alarm: {alarm}")


def step_sentence(phase: str, at: Progress, metrics: Mapping[str, Any], steps: int, warm_steps: int = 0) -> str:
    """A line of metrics in words."""
    if phase == "warm":
        of = f"/{warm_steps}" if warm_steps else ""
        return f"warm start {at.warm}{of}: loss {metrics['warm/loss']:.3f}, {metrics['time/train_s']:.0f} s"
    if phase == "eval":
        shares = {name: value for name, value in metrics.items() if name.endswith(("/correct", "/readable", "/win_rate"))}
        facts = ", ".join(f"{name.removeprefix('eval/')} {value:.0%}" for name, value in shares.items())
        return f"evaluated at {f'warm start {at.warm}' if at.warm else f'step {at.step}'}: {facts}"
    facts = ", ".join(f"{heading} {value}" for heading, value in live_values(metrics))
    return f"step {at.step}/{steps}: {facts}"


# Metrics elsewhere: a logger that fails never stops a run


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

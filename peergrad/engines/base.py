"""What an engine is. A ``Sampler`` answers asks; a ``Trainer``, which only some engines have, also learns.

``Engine`` says what must be known of an engine before it is opened, so that nothing else asks which one it is.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peergrad.debate.errors import EngineError
from peergrad.debate.sampler import Answer, Sampler
from peergrad.debate.types import Ask
from peergrad.engines.config import ApiConfig, EngineConfig, UpdateConfig
from peergrad.engines.shared.meter import Meter
from peergrad.learn.trainer import StepStats, Trainer

__all__ = ["Answer", "Engine", "EngineError", "Model", "Sampler", "Setup", "StepStats", "Trainer"]


OnText = Callable[[Ask, str | None], None]
"""Told of an ask and of the next piece of its reply; None: what was told of it is void."""


class Batching(typing.TypedDict):
    """How a sampler may be called: with so many asks, so often at the same moment, and each call so long."""

    max_asks: int
    max_calls: int
    deadline_s: float


@typing.runtime_checkable
class Model(typing.Protocol):
    """A model that was loaded, or a connection to one."""

    async def sampler_with(self, checkpoint: Path | None) -> Sampler:
        """A sampler of the model with the weights of a checkpoint, or of the model as it is."""
        ...

    async def close(self) -> None:
        """Nothing more will be asked for."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an engine is opened with: its settings as they are, and who else is concerned."""

    engine: EngineConfig
    update: UpdateConfig | None = None
    """How it is trained; None: it is not."""
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    """Told of what takes long, such as a download."""
    share: float = 1.0
    """Of a GPU's memory."""
    api: ApiConfig = field(default_factory=ApiConfig)
    meter: Meter = field(default_factory=Meter)
    """What is spent counts here."""
    on_text: OnText | None = None
    """Told of replies while they come in."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where keys are looked up."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What must be known of an engine before it is opened. ``--engine module:name`` takes one of your own.

    Example: ``ECHO = Engine(name="echo", open=lambda setup: Echo(setup.engine.model))``
    """

    name: str
    open: Callable[[Setup], Model]
    """Load a model, or connect to it."""
    open_trainer: Callable[[Setup], Trainer] | None = None
    """The same for a model that is to learn; None: this engine can answer only."""
    check: Callable[[EngineConfig, UpdateConfig], None] = lambda *_: None
    """Refuse settings of a run that this engine can't do."""
    address: Callable[[], str] | None = None
    """Where its service is if no base_url is given; None: it has none, and base_url is the address of an API."""
    default_model: str = ""
    """The model of debates that name none; empty: they must."""
    temperature: float | None = None
    """The one temperature that debates are sampled at, so that they can be learned from; None: any."""
    weights_file: str = ""
    """The file of a checkpoint that tells its weights from others; empty: there are no checkpoints."""
    max_asks: int = 1024
    """Asks that a sampler takes in one call."""
    max_calls: int = 4
    """Calls that a sampler takes at the same time."""
    grace_s: float = 0.0
    """How much later than its own deadline a call is given up, for engines that say themselves why it was missed."""
    queues: bool = False
    """It takes any number of asks at any time, and keeps the deadline by itself."""

    def batching(self, config: EngineConfig) -> Batching:
        """How its samplers are called."""
        return Batching(max_asks=self.max_asks, max_calls=self.max_calls, deadline_s=config.deadline_s + self.grace_s)

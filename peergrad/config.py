"""Every setting of a training run, in one place: a sentence under each, presets, TOML, and early errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from peergrad.debate.bounds import RESUMABLE, Above, Range
from peergrad.debate.config import DebateConfig, has_own_settings, with_protocol
from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.imports import own_functions
from peergrad.debate.protocol import imported_protocol
from peergrad.debate.protocols import BUILT_IN
from peergrad.engines.base import ApiConfig, EngineConfig, UpdateConfig
from peergrad.learn.train import LearnRules
from peergrad.measure.alarms import AlarmRule
from peergrad.measure.metrics import Metric
from peergrad.measure.outcome import Cost
from peergrad.settings import changed, check, flat, read_settings
from peergrad.tasks.open import TaskConfig

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldOutConfig:
    """What a training run is evaluated on."""

    eval_questions: Annotated[int, Range(0)] = 0
    """How many questions are held out to evaluate on; 0 for no evaluation."""
    eval_task: str = ""
    """Questions to evaluate on, if not the last of the task's: the same forms as task."""
    eval_debates: Annotated[int, Range(0)] = 0
    """How many of them are also debated when evaluating."""


@dataclass(frozen=True, kw_only=True)
class WarmConfig:
    """A supervised start on given debates, for a model that does not know the contract."""

    warm_steps: Annotated[int, Range(0)] = 0
    """Updates before the self-play; 0 for none."""
    warm_debates: Annotated[int, Range(1)] = 8
    """Debates shown in each of them."""
    warm_lr: Annotated[float, Above(0)] = 1e-4
    """Their learning rate."""
    warm_from: Path | None = None
    """A transcript file to learn from; unset, the task's own teacher (arithmetic has one)."""


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """What is kept and when."""

    out: Annotated[Path | None, RESUMABLE] = None
    """The run folder; unset, runs/ and the name of the preset. The same command resumes what is there."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Makes a run on a CPU repeatable to the byte."""
    save_every: Annotated[int, Range(0), RESUMABLE] = 0
    """Keep the checkpoint of every so many steps for good; 0 keeps the newest only."""
    eval_every: Annotated[int, Range(0), RESUMABLE] = 0
    """Evaluate after every so many steps; 0 only before and after. Needs eval_questions."""
    log_to: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], RESUMABLE] = ()
    """Send metrics there too; files are always written."""
    metrics: Annotated[tuple[str, ...], RESUMABLE] = ()
    """Metrics of your own, each as module:name; the built-in ones are always measured."""
    alarms: Annotated[tuple[str, ...], RESUMABLE] = ()
    """Alarms of your own, each as module:name."""
    stop_on_alarm: Annotated[bool, RESUMABLE] = False
    """Stop when an alarm sounds, rather than only say so."""

    @property
    def own(self) -> tuple[dict[str, Metric], dict[str, AlarmRule]]:
        """The metrics and alarms of one's own, imported here."""
        return own_functions(self.metrics, "metrics"), own_functions(self.alarms, "alarms")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or Path("runs/run")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    debate: DebateConfig = field(default_factory=DebateConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    learn: LearnRules = field(default_factory=lambda: LearnRules(steps=100))
    warm: WarmConfig = field(default_factory=WarmConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)

    def __post_init__(self) -> None:
        check(self)
        if self.keep.eval_every and not self.held_out.eval_questions:
            raise UserError("eval_questions: 0 leaves nothing to evaluate on, but eval_every asks for it; give at least 1")
        self.debate.build()


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """What an evaluation measures."""

    mode: Literal["debate", "direct", "role-averaged"] = "debate"
    """Debate with itself, beside what the same tokens give without; no debate; or each seat in turn against opponents."""
    questions: Annotated[int, Range(0)] = 100
    """How many questions, from the first; 0 is all."""
    opponent: str = "base"
    """Role-averaged: who holds the other seats: base (the model without its adapter), or whatever model may be."""
    samples: Annotated[int | None, Range(1)] = None
    """How many independent answers pass@k, avg@k and cons@k are of; unset, as many as there are agents."""
    sample_temperature: float = 0.7
    """Their temperature, and that of the majority vote that costs as much as a debate."""
    cost: Cost = "processed"
    """What equal cost means: all tokens processed, prompts included, or only those sampled."""
    out: Annotated[Path | None, RESUMABLE] = None
    """The folder of the result; unset, evals/ in the run's folder or here. The same command resumes what is there."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Makes an evaluation on a CPU repeatable."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """An evaluation."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    debate: DebateConfig = field(default_factory=DebateConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    api: ApiConfig = field(default_factory=ApiConfig)

    def __post_init__(self) -> None:
        check(self)
        if self.measure.sample_temperature <= 0 and self.measure.mode != "role-averaged":
            raise UserError("sample_temperature: independent answers need a temperature above 0")
        self.debate.build()


@dataclass(frozen=True, kw_only=True)
class SeatsConfig:
    """Who holds which seat, and where the debates are kept."""

    seat: tuple[str, ...] = ()
    """SEAT=MODEL, for a seat that the model does not hold: 0=gpt-x@https://…, 1=./checkpoint. Seats count from 0."""
    judge: str | None = None
    """A model that does not debate: it sees the final solutions and votes, and its votes count."""
    style: Literal["open", "boxed"] = "open"
    """Of typed questions: boxed asks for the final answer in \\boxed{}, so that answers can be compared."""
    questions: Annotated[int, Range(0)] = 0
    """Only so many questions of the task, from the first; 0 is all."""
    out: Annotated[Path | None, RESUMABLE] = None
    """The transcript, a .jsonl file; unset, one in debates/. The same command resumes what is there."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Another seed makes another debate."""


@dataclass(frozen=True, kw_only=True)
class DebatesConfig:
    """Debates for their own sake, without training. No model is the small built-in one."""

    debate: DebateConfig = field(default_factory=lambda: DebateConfig(max_tokens=512))
    seats: SeatsConfig = field(default_factory=SeatsConfig)
    task: TaskConfig = field(default_factory=lambda: TaskConfig(task=""))
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(model=""))
    api: ApiConfig = field(default_factory=ApiConfig)

    def __post_init__(self) -> None:
        check(self)
        self.debate.build()


_DEMO = {"max_rounds": 2, "max_tokens": 64, "wording": "brief", "batch": 4, "steps": 10, "lr": 1e-3, "center": "batch"}
_DEMO |= {"lambda_gen": 0.2, "lambda_judge": 0.2, "warm_steps": 1, "warm_lr": 2e-3, "rank": 16, "train_tokens": 1024}
_DEMO |= {"eval_questions": 16, "eval_debates": 3}

# What all but the demo begin with: the published default, and no task, which is the person's.
_LARGE = {"model": "Qwen/Qwen3-8B", "max_tokens": 8196, "task": "", "batch": 16, "lr": 3e-5, "steps": 64}
_LARGE |= {"save_every": 100, "eval_every": 50, "eval_questions": 64}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": ("the built-in model on the built-in task: minutes on two cores", _DEMO),
    "math": ("problems with answers that can be checked", _LARGE),
    "math-easy": ("easier ones, such as GSM8K and MATH", _LARGE | {"max_rounds": 2, "batch": 32, "lr": 5e-5}),
    "math-hard": (
        "competition problems, after a warm start on transcripts",
        _LARGE | {"agents": 5, "lambda_gen": 0.5, "lambda_judge": 1.5, "warm_lr": 1e-4},
    ),
    "open-ended": ("questions without a ground truth", _LARGE | {"agents": 4, "eval_every": 0, "eval_questions": 0}),
    "classic": (
        "agents speak in turn until they agree; one score per agent",
        _LARGE
        | {"protocol": "sequential", "reward": "win_rate", "reading": "strict", "order_shown": "seat"}
        | {"form": "literal", "voices": "votes"},
    ),
}
"""What each preset is for, and what it sets (SPEC 10)."""


_BEFORE = {"reading": "strict", "order_shown": "seat", "voices": "votes", "form": "literal"}
"""What folders mean that were written before there were these settings."""


def from_folder(config: T, folder: Path) -> T:
    """The same with the settings that a folder keeps. No code that they name is imported: the settings of a protocol of
    somebody's own are passed over, unless a person has named it too.
    """
    path = folder / "config.toml"
    settings = read_settings(path)
    protocol = settings.get("protocol")
    if isinstance(protocol, str) and has_own_settings(protocol):
        if protocol in BUILT_IN or imported_protocol(protocol):
            config = with_protocol(config, protocol)
        known = flat(config)
        settings = {name: value for name, value in settings.items() if name in known}
    settings = {name: value for name, value in _BEFORE.items() if name in flat(config)} | settings
    return changed(config, settings, str(path))


def preset(name: str) -> TrainConfig:
    """The settings of a preset."""
    if name not in PRESETS:
        raise UserError(f"preset: {name!r} is not known; {nearest(name, tuple(PRESETS))}")
    settings = PRESETS[name][1]
    config = with_protocol(TrainConfig(), protocol) if (protocol := settings.get("protocol")) else TrainConfig()
    return changed(config, settings, "preset")

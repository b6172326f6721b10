"""Every setting of a run and of an evaluation, a sentence under each, and the presets."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from peergrad.debate.config import DebateConfig, defaults_of, has_own_settings, section_of
from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.head_to_head import VoteForm
from peergrad.debate.personas import PERSONAS
from peergrad.debate.protocol import BaseProtocol, imported_protocol
from peergrad.debate.protocols import PROTOCOLS
from peergrad.debate.settings import RESUMABLE, Above, Range, changed, check_settings, flat, own_functions, read_settings
from peergrad.engines.base import ApiConfig, EngineConfig, UpdateConfig
from peergrad.learn.curriculum import CurriculumRules
from peergrad.learn.train import LearnRules
from peergrad.learn.warm import Keep, updates_per_epoch
from peergrad.measure.alarms import AlarmRule
from peergrad.measure.metrics import Metric
from peergrad.measure.outcome import Cost
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
    eval_samples: Annotated[int, Range(0)] = 0
    """How many answers are sampled to each, too, as in self-play: how often one is right, and what most of them say."""
    eval_mode: Literal["debate", "role-averaged"] = "debate"
    """Debated by the policy with itself; or once for every seat, with the policy in it and its base model in the others."""


@dataclass(frozen=True, kw_only=True)
class WarmConfig:
    """A supervised start, for a model that does not know the contract or can't solve the task yet."""

    warm_steps: Annotated[int, Range(0)] = 0
    """Updates before the self-play; 0 for none, unless warm_epochs says so."""
    warm_epochs: Annotated[int, Range(0)] = 0
    """Passes over all there is to learn from, in place of warm_steps."""
    warm_debates: Annotated[int, Range(1)] = 8
    """Debates or solutions shown in each update."""
    warm_lr: Annotated[float, Above(0)] = 1e-4
    """Their learning rate."""
    warm_from: Path | None = None
    """What is learned from: a run's folder, a transcript, a file of questions with solutions (peergrad distill), or own: the
    model's own debates. Unset, what the task has: worked solutions (gsm8k, math), or a teacher (arithmetic)."""
    warm_keep: Keep = "readable"
    """Which turns of these: all that can be read, of them the right ones, or those of agents that won by votes."""
    warm_sample: Annotated[int, Range(1)] = 64
    """With warm_from own: how many questions are debated to choose from."""

    @property
    def wanted(self) -> bool:
        """Whether there is a warm start."""
        return bool(self.warm_steps or self.warm_epochs)

    def updates(self, lessons: int) -> int:
        """How many updates it has, with so many debates to learn from."""
        return self.warm_epochs * updates_per_epoch(lessons, self.warm_debates) if self.warm_epochs else self.warm_steps


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
    """Evaluate after every so many steps, and after a warm start; 0 only before and after. Needs eval_questions."""
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
    curriculum: CurriculumRules = field(default_factory=CurriculumRules)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    learn: LearnRules = field(default_factory=lambda: LearnRules(steps=100))
    warm: WarmConfig = field(default_factory=WarmConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.keep.eval_every and not self.held_out.eval_questions:
            raise UserError("eval_questions: 0 leaves nothing for eval_every; give at least 1, or eval_every 0")
        if not self.learn.steps and not self.warm.wanted:
            raise UserError("steps: 0 leaves nothing to learn; give at least 1, or a warm start (warm_steps or warm_epochs)")
        self.debate.build()


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """What an evaluation measures."""

    mode: Literal["debate", "direct", "role-averaged", "head-to-head"] = "debate"
    """Debate with itself, beside what the same tokens give without; no debate; each seat, one after another, against
    opponents; or its answers against the opponent's, by votes on which is better. The last two need no answers."""
    questions: Annotated[int, Range(0)] = 100
    """How many questions, from the first; 0 is all."""
    opponent: str = "base"
    """Role-averaged, head-to-head: who the model is measured against: base (itself without its adapter), or any model."""
    judge: str | None = None
    """Head-to-head: a model that judges too, here or behind an API; its verdicts are counted apart."""
    vote_form: VoteForm = "soft"
    """Head-to-head: how the two models vote: by how likely they are to name an answer, or in words."""
    judge_form: VoteForm = "words"
    """Head-to-head: the same of the judge; soft needs a server that gives log-probabilities."""
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
        check_settings(self)
        if self.measure.sample_temperature <= 0 and self.measure.mode in ("debate", "direct"):
            raise UserError("sample_temperature: independent answers need a temperature above 0")
        if self.measure.judge is not None and self.measure.mode != "head-to-head":
            raise UserError("judge: is only asked in mode head-to-head; give that mode, or leave it out")
        self.debate.build()


# This model's votes soon say nothing of what is right, its most frequent answer still does (docs/log.md): no ballots.
_DEMO = {"protocol": "direct", "agents": 8, "temperature": 0.7, "max_tokens": 16, "task": "sums:level1", "votes": "majority"}
_DEMO |= {"batch": 12, "steps": 6, "lr": 2e-4, "lr_schedule": "linear", "center": "group", "lambda_form": 0.25, "rank": 16}
_DEMO |= {"train_tokens": 512, "kv_gb": 1.0, "eval_questions": 64, "eval_samples": 4, "eval_every": 2}

_DEMO_PARALLEL = {"max_rounds": 2, "max_tokens": 64, "wording": "brief", "batch": 4, "steps": 10, "lr": 1e-3}
_DEMO_PARALLEL |= {"center": "batch", "lambda_gen": 0.2, "lambda_judge": 0.2, "warm_steps": 1, "warm_lr": 2e-3, "rank": 16}
_DEMO_PARALLEL |= {"train_tokens": 1024, "eval_questions": 16, "eval_debates": 3}

# Where we have a rule of our own, the published one.
_PUBLISHED = {"reading": "strict", "order_shown": "seat", "form": "literal", "voices": "votes"}
_PUBLISHED |= {"ballots": "literal", "unjudged": "literal", "consensus": "all"}

# What all but the demos begin with: the published default, and no task, which is the person's.
_LARGE = {"model": "Qwen/Qwen3-8B", "max_tokens": 8196, "task": "", "batch": 16, "lr": 3e-5, "steps": 64}
_LARGE |= {"save_every": 100, "eval_every": 50, "eval_questions": 64}

# The arm `peer` of experiments/votes_teach, whose results are in docs/results.md.
_RECOMMENDED = {"model": "Qwen/Qwen2.5-Coder-1.5B-Instruct", "task": "", "protocol": "ballot", "agents": 8}
_RECOMMENDED |= {"max_tokens": 512, "reward": "borda", "votes": "peer", "lambda_form": 0.25, "center": "group", "rank": 32}
_RECOMMENDED |= {"steps": 12, "batch": 64, "lr": 2e-4, "save_every": 0, "eval_every": 4, "eval_questions": 400}
_RECOMMENDED |= {"eval_debates": 0}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": ("the built-in model on the built-in sums, by the most frequent of eight answers: minutes on two cores", _DEMO),
    "demo-parallel": ("the same model in parallel debates, after a warm start: what is learned is the form", _DEMO_PARALLEL),
    "recommended": ("what was shown to teach: eight answers, votes of Yes or No on each other's final values", _RECOMMENDED),
    "math": ("problems with answers that can be checked", _LARGE | _PUBLISHED),
    "math-easy": (
        "easier ones, such as GSM8K and MATH",
        _LARGE | _PUBLISHED | {"max_rounds": 2, "batch": 32, "lr": 5e-5, "steps": 32},
    ),
    "math-hard": (
        "competition problems, after a warm start on worked solutions",
        _LARGE
        | _PUBLISHED
        | {"agents": 5, "lambda_gen": 0.5, "lambda_judge": 1.5}
        | {"warm_epochs": 3, "warm_lr": 1e-4, "warm_debates": 16},
    ),
    "open-ended": (
        "questions without a ground truth: answers, critiques, then answers revised by them",
        _LARGE
        | {"protocol": "ballot", "ballot_form": "verdicts", "revise": True, "agents": 4}
        | {"eval_every": 0, "eval_questions": 0},
    ),
    "classic": (
        "agents speak one after another until they agree; one score per agent",
        _LARGE | _PUBLISHED | {"protocol": "sequential", "reward": "win_rate"},
    ),
}
"""What each preset is for, and what it sets (SPEC 10)."""


_BEFORE = {name: _PUBLISHED[name] for name in ("reading", "order_shown", "voices", "form")}
"""What folders mean that were written before there were these settings."""


def with_protocol(config: T, protocol: str | BaseProtocol) -> T:
    """Settings with another protocol, by its name or as it is: with its number of agents, its reward, our rules in place of
    the published ones and, where it has any, its own settings beside the usual ones. One's own is imported here.

    Example: ``with_protocol(preset("demo"), "my_protocol:Panel")``
    """
    before: DebateConfig = config.debate  # type: ignore[attr-defined]
    values: dict[str, Any] = {}
    if isinstance(protocol, BaseProtocol):
        if protocol.prompts:
            raise UserError("prompts: settings name a folder of texts; put them there")
        if getattr(protocol, "personas", PERSONAS) != PERSONAS:
            raise UserError("personas: settings name a file of personas; put them there")
        values = {field.name: getattr(protocol, field.name) for field in fields(protocol)}
        values |= {"prompts": None, "personas": None}
    name = protocol.name if isinstance(protocol, BaseProtocol) else protocol
    section = section_of(name) if has_own_settings(name) else DebateConfig
    usual: dict[str, Any] = {field.name: getattr(before, field.name) for field in fields(DebateConfig)}
    own = {field.name for field in fields(section)} - usual.keys()
    if taken := own & (flat(config).keys() - flat(before).keys()):
        raise UserError(f"protocol: {name!r} has a field {min(taken)}, which is another setting already; rename it")
    usual["protocol"] = name
    config = replace(config, debate=section(**usual))  # type: ignore[type-var]
    values = {one: value for one, value in values.items() if one in own | usual.keys()}
    if name != before.protocol:
        ours = flat(TrainConfig())
        values = {rule: ours[rule] for rule in (*_PUBLISHED, "votes")} | defaults_of(name) | values
    return changed(config, {one: value for one, value in values.items() if one in flat(config)}, f"protocol {name}")


def from_folder(config: T, folder: Path) -> T:
    """The same with the settings that a folder keeps. No code that they name is imported: the settings of a protocol of
    somebody's own are passed over, unless a person has named it too.
    """
    path = folder / "config.toml"
    settings = read_settings(path)
    if "schedule" in settings:  # as it was called
        settings["lr_schedule"] = settings.pop("schedule")
    protocol = settings.get("protocol")
    if isinstance(protocol, str) and has_own_settings(protocol):
        if protocol in PROTOCOLS or imported_protocol(protocol):
            config = with_protocol(config, protocol)
        known = flat(config)
        settings = {name: value for name, value in settings.items() if name in known}
    settings = {name: value for name, value in _BEFORE.items() if name in flat(config)} | settings
    if "prompts" in settings:  # their copies: nothing outside of a folder is read because the folder names it
        settings["prompts"] = str(folder / "prompts")
    if "personas" in settings:
        settings["personas"] = str(folder / "personas.toml")
    return changed(config, settings, str(path))


def preset(name: str) -> TrainConfig:
    """The settings of a preset."""
    if name not in PRESETS:
        raise UserError(f"preset: {name!r} is not known; {nearest(name, tuple(PRESETS))}")
    settings = PRESETS[name][1]
    config = with_protocol(TrainConfig(), protocol) if (protocol := settings.get("protocol")) else TrainConfig()
    return changed(config, {"out": f"runs/{name}"} | settings, "preset")

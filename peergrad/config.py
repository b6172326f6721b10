"""Every setting of a training run, in one place: a sentence under each, presets, TOML, and early errors."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from peergrad.debate.contract import Order
from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.prompts import Wording
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.learn.train import LearnRules


@dataclass(frozen=True, kw_only=True)
class DebateConfig:
    """How a debate goes."""

    protocol: Literal["parallel", "sequential"] = "parallel"
    """All agents of a round speak at once and see earlier rounds, or one after another, seeing everything."""
    agents: int = 3
    """How many copies of the policy debate a question; votes need at least 3."""
    max_rounds: int = 3
    """Every agent speaks once a round. Sequential debates may end earlier, when all agree."""
    max_tokens: int = 1024
    """The longest reply, in tokens; one that is cut off is unreadable."""
    wording: Wording = "full"
    """Full instructions with an example, or brief ones for a model that knows the form (after a warm start)."""
    order: Order = "strict"
    """Whether the sections of a reply must come in the order of the contract."""
    temperature: float = 1.0
    """Sampling temperature of sequential debates; in parallel ones each persona has its own."""
    history_rounds: int = -1
    """Sequential: how many rounds a prompt shows, the running one included; -1 is all."""
    max_chars_per_field: int = 4000
    """Sequential: longer sections of others are clipped to this many characters."""

    def build(self) -> Parallel | Sequential:
        """The protocol itself."""
        rules = {name: getattr(self, name) for name in ("agents", "max_rounds", "max_tokens", "wording", "order")}
        if self.protocol == "parallel":
            return Parallel(**rules)
        more = {name: getattr(self, name) for name in ("temperature", "history_rounds", "max_chars_per_field")}
        return Sequential(**rules, **more)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What is debated."""

    task: str = "arithmetic"
    """Arithmetic, a known dataset (gsm8k, math, aime, svamp, longwriter, mt-bench) or its file (gsm8k:PATH), or any file."""
    question_field: str = "question"
    """The field or column of a file that holds the question."""
    answer_field: str = "answer"
    """The field or column that holds the answer; a file without it has no truth, and needs none."""
    skip_bad: bool = False
    """Leave out rows that can't be used and say how many, instead of stopping."""
    level: int = 1
    """Arithmetic: from 1, single digits, to 5, two operations."""
    eval_questions: int = 0
    """How many questions are held out to evaluate on; 0 for no evaluation."""
    eval_task: str = ""
    """Questions to evaluate on, if not the last of the task's: the same forms as task."""
    eval_debates: int = 0
    """How many of them are also debated when evaluating."""


@dataclass(frozen=True, kw_only=True)
class WarmConfig:
    """A supervised start on given debates, for a model that does not know the contract."""

    warm_steps: int = 0
    """Updates before the self-play; 0 for none."""
    warm_debates: int = 8
    """Debates shown in each of them."""
    warm_lr: float = 1e-4
    """Their learning rate."""
    warm_from: Path | None = None
    """A transcript file to learn from; unset, the task's own teacher (arithmetic has one)."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Who answers and learns."""

    model: str = "smollm2"
    """An alias (smollm2), a hub id, a folder, or a GGUF file."""
    device: str | None = None
    """Where it runs, such as cpu or cuda; unset, a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the base model; unset, float32 on a CPU and bfloat16 on a GPU."""
    threads: int | None = None
    """CPU threads; unset, one per core."""
    rank: int = 32
    """Rank of the LoRA adapter that is trained."""
    alpha: float = 32.0
    """Its scale is alpha / rank."""
    kv_gb: float = 4.0
    """Memory for keys and values while sampling, in GiB."""
    max_rows: int = 64
    """How many replies are sampled at the same moment, at most."""
    train_tokens: int = 4096
    """Tokens of a micro-batch; halved by itself when memory runs out."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are scaled down to it."""
    deadline_s: float = 1800.0
    """A sampler call that takes longer costs the debates it holds up."""


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """What is kept and when."""

    out: Path | None = None
    """The run folder; unset, runs/ and the name of the preset. The same command goes on with what is there."""
    seed: int = 0
    """Makes a run on a CPU repeatable to the byte."""
    save_every: int = 0
    """Keep the checkpoint of every so many steps for good; 0 keeps the newest only."""
    eval_every: int = 0
    """Evaluate after every so many steps; 0 only before and after. Needs eval_questions."""
    log_to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Send metrics there too; files are always written."""
    stop_on_alarm: bool = False
    """Stop when an alarm sounds, rather than only say so."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    debate: DebateConfig = field(default_factory=DebateConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    learn: LearnRules = field(default_factory=lambda: LearnRules(steps=100))
    warm: WarmConfig = field(default_factory=WarmConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)

    def __post_init__(self) -> None:
        for name, value in flat(self).items():
            least, most = _BOUNDS.get(name, (None, None))
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{name}: {value} is not possible; give a number")
            if least is not None and value is not None and value < least:
                raise UserError(f"{name}: {value} is not possible; give a whole number of at least {least}")
            if most is not None and value is not None and value > most:
                raise UserError(f"{name}: {value} is not possible; give a whole number of at most {most}")
            if name in _ABOVE_0 and value is not None and value <= 0:
                raise UserError(f"{name}: {value} is not possible; give a number above 0")
            if isinstance(value, str | Path) and not _plain(str(value)):
                raise UserError(f"{name}: {str(value)!r} is not text that can be written down; give another name")
        if self.keep.eval_every and not self.task.eval_questions:
            raise UserError("eval_questions: 0 leaves nothing to evaluate on, but eval_every asks for it; give at least 1")
        self.debate.build()


# Whole numbers: the least and, where more would only do harm, the most.
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "steps": (1, None),
    "batch": (1, None),
    "max_staleness": (0, None),
    "stop_after_bad": (1, None),
    "eval_questions": (0, None),
    "eval_debates": (0, None),
    "eval_every": (0, None),
    "save_every": (0, None),
    "warm_steps": (0, None),
    "warm_debates": (1, None),
    "rank": (1, 4096),
    "threads": (1, 1024),
    "max_rows": (1, None),
    "train_tokens": (1, None),
    "seed": (0, 2**63 - 1),
}
_ABOVE_0 = ("lr", "warm_lr", "kv_gb", "max_grad_norm", "alpha", "deadline_s")


def _plain(text: str) -> bool:
    """Whether a text has no NUL and no bytes that are not characters."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


_DEMO = {
    "max_rounds": 2,
    "max_tokens": 64,
    "wording": "brief",
    "batch": 4,
    "steps": 10,
    "lr": 1e-3,
    "center": "batch",
    "lambda_gen": 0.2,
    "lambda_judge": 0.2,
    "warm_steps": 1,
    "warm_lr": 2e-3,
    "eval_questions": 16,
    "eval_debates": 3,
    "rank": 16,
    "train_tokens": 1024,
}

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
        _LARGE | {"protocol": "sequential", "reward": "win_rate"},
    ),
}
"""What each preset is for, and what it sets (SPEC 10)."""


def preset(name: str) -> TrainConfig:
    """The settings of a preset."""
    if name not in PRESETS:
        raise UserError(f"preset: {name!r} is not known; {nearest(name, tuple(PRESETS))}")
    return changed(TrainConfig(), PRESETS[name][1], "preset")


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its name, whatever section it is in: names are unique."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        found |= flat(value) if dataclasses.is_dataclass(value) else {one.name: value}
    return found


def changed(config: TrainConfig, settings: dict[str, Any], where: str) -> TrainConfig:
    """The same with other settings, given by name."""
    known = flat(config)
    for name in settings:
        if name not in known:
            raise UserError(f"{where}: no setting is called {name!r}; {nearest(name, tuple(known))}")
    return _changed(config, settings, where)


def from_file(config: TrainConfig, path: Path) -> TrainConfig:
    """The same with the settings of a TOML file; its sections are for the reader, names alone count."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"config: {path} can't be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, not UTF-8, a number of thousands of digits
        raise UserError(f"config: {path} is not TOML ({error})") from None
    settings: dict[str, Any] = {}
    for name, value in raw.items():
        settings |= value if isinstance(value, dict) else {name: value}
    return changed(config, settings, str(path))


def to_toml(config: TrainConfig) -> str:
    """All settings as a TOML file that ``from_file`` reads back to the same; unset ones are commented out."""
    lines: list[str] = []
    for section in dataclasses.fields(config):
        lines += [f"[{section.name}]"]
        for name, value in flat(getattr(config, section.name)).items():
            lines.append(f"# {name} is not set" if value is None else f"{name} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 32 or char == "\x7f" else "\\" + char if char in '"\\' else char
        for char in str(value)
    )
    return f'"{escaped}"'


def _changed(config: Any, settings: dict[str, Any], where: str) -> Any:
    types = typing.get_type_hints(type(config))
    new: dict[str, Any] = {}
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if dataclasses.is_dataclass(value):
            new[one.name] = _changed(value, settings, where)
        elif one.name in settings:
            new[one.name] = _checked(settings[one.name], types[one.name], one.name, where)
    return dataclasses.replace(config, **new)


def _checked(value: Any, wanted: Any, name: str, where: str) -> Any:
    """A value of the type a setting has, or a sentence that says what would be right."""
    options = typing.get_args(wanted)
    origin = typing.get_origin(wanted)
    if type(None) in options:
        return None if value is None else _checked(value, next(o for o in options if o is not type(None)), name, where)
    if origin is Literal:
        if value not in options:
            raise UserError(f"{where}, {name}: {value!r} is not known; {nearest(str(value), options)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where}, {name}: {value!r} is not a list")
        return tuple(_checked(item, options[0], name, where) for item in typing.cast("list[Any]", value))
    if wanted is Path and isinstance(value, str | Path):
        return Path(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 else math.inf
    if type(value) is not wanted:
        raise UserError(f"{where}, {name}: {value!r} is not possible; give {_KINDS.get(wanted, 'another value')}")
    return value


_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}

"""What a run takes, as far as it can be known without loading a model: tokens, context, memory, and what is not checked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergrad.config import TrainConfig
from peergrad.debate.errors import UserError
from peergrad.engines.base import EngineConfig
from peergrad.engines.registry import LOCAL, engine_of
from peergrad.runs.models import ModelRef, policy_of
from peergrad.runs.plan import Plan, check_start, plan_run

_GIB = 2**30
# On a CPU weights up to _PACKED bytes in float32 are packed twice, for products there and back, and while sampling a third
# time with the adapter added, in whose place training has what it needs. Freed memory that can't be used again and the
# program itself are as measured in the demo (docs/benchmarks.md).
_PACKED, _FREED, _PROGRAM = 2 * _GIB, 1.2, int(0.5 * _GIB)
_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt at the beginning, going by 4 letters each, and of a sequence at its longest."""

    first: float
    longest: float
    sequences: int

    @staticmethod
    def of(plan: Plan) -> Lengths:
        debate, batch = plan.config.debate, plan.config.learn.batch
        rounds = plan.protocol.rounds or debate.max_rounds
        questions = [plan.task[index] for index in range(min(20, len(plan.task)))]
        asks = [ask for question in questions for ask in plan.wave(question, "estimate")]
        first = sum(len(message.text) for ask in asks for message in ask.messages) / max(1, len(asks)) / 4
        longest, sequences = first + debate.agents * rounds * debate.max_tokens, batch * debate.agents * rounds
        if plan.protocol.one_dialogue:  # one growing sequence per agent, without what the others say last
            longest, sequences = longest - debate.max_tokens * (debate.agents - 1), batch * debate.agents
        return Lengths(first, longest, sequences)


def estimate(config: TrainConfig) -> list[str]:
    """Sentences about a run that is planned. What can't work is refused."""
    plan = plan_run(config)
    check_start(plan)
    debate, learn, lengths = config.debate, config.learn, Lengths.of(plan)
    replies = learn.batch * debate.agents * (plan.protocol.rounds or debate.max_rounds)
    return [
        *plan.notes,
        *_warm_start(plan),
        f"A step: {learn.batch} debates, up to {replies} replies of up to {debate.max_tokens} tokens: "
        f"at most {replies * debate.max_tokens:,} sampled.",
        f"Prompts begin with about {lengths.first:.0f} tokens (4 letters each) and may grow to {lengths.longest:,.0f}; "
        f"at most {lengths.sequences * lengths.longest:,.0f} tokens trained on.",
        *_about_model(config, lengths),
        "Whether it can work: `peergrad check` with the same settings.",
        f"{learn.steps} steps: {learn.steps * learn.batch / len(plan.task):.2f} times {len(plan.task)} questions.",
    ]


def _warm_start(plan: Plan) -> list[str]:
    """What comes before the steps, if anything does."""
    warm, count = plan.config.warm, len(plan.lessons)
    if plan.learns_from_own:
        return [f"A warm start on what is {warm.warm_keep} in {min(warm.warm_sample, len(plan.task))} debates of its own."]
    return [f"A warm start of {warm.updates(count)} updates on {count} debates or solutions."] if count else []


def _about_model(config: TrainConfig, lengths: Lengths) -> list[str]:
    """Whether the model is there, whether debates fit its context, and the memory that it takes."""
    ref = policy_of(config.engine)
    if engine_of(config.engine) is not LOCAL or ref.url is not None:
        return [f"Not checked: whether {ref.base} is there, its context and memory, which are not this machine's."]
    shape = _model_config(ref)
    if shape is None:
        if Path(ref.base).is_file():
            why = "has not been converted yet, which the first run does"
            return [f"Not checked: {ref.base} {why}, so its context and memory are not known here."]
        return [f"Not checked: {ref.base} is not on this machine yet, so its context and memory are not known here."]
    sentences, context, most = [], _number(shape, "max_position_embeddings"), config.debate.max_tokens
    if context and lengths.first + most > context:
        about = f"replies of {most:,} tokens and a prompt of about {lengths.first:,.0f}"
        raise UserError(f"max_tokens: {about} do not fit the context of {ref.base}, {context:,} tokens; give fewer")
    if context and lengths.longest > context:
        fits = most * (context - lengths.first) / (lengths.longest - lengths.first)
        sentences.append(
            f"max_tokens: prompts outgrow the context of {context:,} tokens where replies have more than about {fits:,.0f}; "
            "such debates are dropped."
        )
    return [*sentences, *_memory(config, shape)]


def _model_config(ref: ModelRef) -> dict[str, Any] | None:
    """The config.json of a model on this machine, with the number of its weights; None of one that must be fetched."""
    from peergrad.engines.local.fetch.models import local_folder

    folder = local_folder(ref.base)
    if folder is None:
        return None
    try:
        shape = json.loads((folder / "config.json").read_bytes())
        stored = shape.get("dtype") or shape.get("torch_dtype")
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    except (OSError, ValueError, AttributeError):
        raise UserError(f"model: {folder / 'config.json'} can't be read; get the model again") from None
    text = shape.get("text_config")
    return shape | (text if isinstance(text, dict) else {}) | {"weights": size // _ITEMSIZE.get(stored, 4)}


def on_cpu(engine: EngineConfig) -> bool:
    """Whether the local engine would compute on a CPU."""
    return engine.device == "cpu" or (engine.device is None and not Path("/dev/nvidia0").exists())


def _memory(config: TrainConfig, shape: Mapping[str, Any]) -> list[str]:
    """The memory that a run takes on a CPU; a GPU's is divided up once the model is on it."""
    engine = config.engine
    if not on_cpu(engine):
        size = shape["weights"] * _ITEMSIZE.get(engine.dtype or "bfloat16", 2) / _GIB
        return [f"Memory: {size:,.1f} GiB of the GPU for weights; the rest is divided up when the model is loaded."]
    weights = merged = shape["weights"] * _ITEMSIZE.get(engine.dtype or "float32", 4)
    if engine.dtype in (None, "float32") and weights <= _PACKED:
        weights *= 2
    else:
        merged = 0
    hidden, layers, inner = (_number(shape, name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    tokens = config.update.train_tokens or 4096
    # What a layer keeps of a token for the backward pass: inputs and outputs of its products. Logits: three tensors.
    training = 4 * tokens * layers * (10 * hidden + 3 * inner) + 12 * min(tokens, 256) * _number(shape, "vocab_size")
    kept = int((engine.kv_gb or 4.0) * _GIB)
    total = int(_FREED * (weights + kept + max(training, merged))) + _PROGRAM
    parts = f"weights {weights / _GIB:,.1f}, keys and values up to {kept / _GIB:,.1f}, training about {training / _GIB:,.1f}"
    parts += f", all else {(total - weights - kept - training) / _GIB:,.1f}"
    sentence = f"Memory: up to about {total / _GIB:,.1f} GiB ({parts})."
    with contextlib.suppress(ValueError, OSError):  # not every system says
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if total > there:
            sentence += f" This machine has {there / _GIB:,.1f}; --kv-gb and --train-tokens make it less."
    return [sentence]


def _number(shape: Mapping[str, Any], name: str) -> int:
    value = shape.get(name)
    return value if type(value) is int and 0 < value < 2**40 else 0

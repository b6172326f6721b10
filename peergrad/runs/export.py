"""A checkpoint for the rest of the world: a PEFT adapter with a model card."""

from __future__ import annotations

import shutil
from pathlib import Path

from peergrad.config import TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.reward.rewards import BUILT_IN
from peergrad.runs import files
from peergrad.runs.folder import Progress, Run

_CARD = """\
---
base_model: {model}
library_name: peft
tags:
- peergrad
- lora
- self-play-debate
---

# {name}

A LoRA adapter for `{model}`, trained by self-play debate with [peergrad](https://pypi.org/project/peergrad/): copies of the
model answered questions, criticised each other and voted{only}.

- task: {task}, {questions} questions
- step {step} of {steps}, {batch} debates a step, {agents} agents, {rounds} rounds, {protocol}
- reward {reward}, learning rate {lr}, seed {seed}
- questions sha256 `{questions_sha256}`

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{model}"), "{folder}")
```
{note}"""

_ALIAS = """
`{model}` is peergrad's name for a built-in model: give the folder that `peergrad models --get {model}` names to
`from_pretrained`.
"""


def export(run: Run, to: Path, step: int | None = None) -> Path:
    """Copy the adapter of a step (the newest, if none is named) into a new folder, and say there what it is."""
    found = run.checkpoints()
    if not found:
        raise UserError(f"{run.path}: has no checkpoint yet")
    at = found[-1] if step is None else Progress(step)
    if at not in found:
        there = ", ".join(str(one.step) for one in found if not one.warm)
        raise UserError(f"step: there is no checkpoint of step {step}; there are {there}")
    try:
        taken = to.exists() and (not to.is_dir() or any(to.iterdir()))
    except (OSError, ValueError) as error:
        raise UserError(f"to: {to} can't be used ({error}); give a new folder") from None
    if taken:
        raise UserError(f"to: {to} is not empty; give a new folder")
    source = run.folder(at)
    if not (source / "adapter_model.safetensors").exists():
        raise UserError(f"{source}: its weights are with the service, which gives them out; tinker.json there says where")
    config, facts = from_folder(TrainConfig(), run.path), run.facts
    model = config.engine.model
    card = _CARD.format(
        model=model,
        name=f"{run.path.resolve().name}-step-{at.step}",
        task=facts.get("task"),
        questions=facts.get("questions"),
        step=at.step,
        steps=config.learn.steps,
        batch=config.learn.batch,
        agents=config.debate.agents,
        rounds=config.debate.max_rounds,
        protocol=config.debate.protocol,
        reward=config.learn.reward.reward,
        only=", and the votes were the only reward" if config.learn.reward.reward in BUILT_IN else "",
        lr=config.learn.lr,
        seed=config.keep.seed,
        questions_sha256=facts.get("questions_sha256"),
        folder=to,
        note="" if "/" in model else _ALIAS.format(model=model),
    )
    try:
        part = to.with_name(f".{to.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            shutil.copyfile(source / name, part / name)
        (part / "README.md").write_bytes(card.encode())
    except OSError as error:
        raise files.cannot_write(to, error) from None
    files.publish(part, to)
    return to

"""A checkpoint for the rest of the world: a PEFT adapter with a model card."""

from __future__ import annotations

import shutil
from pathlib import Path

from peergrad.config import TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.settings import flat
from peergrad.reward.rewards import REWARDS
from peergrad.runs import files
from peergrad.runs.folder import Progress, Run
from peergrad.runs.models import base_of

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

A LoRA adapter for `{model}`, trained {how} with [peergrad](https://pypi.org/project/peergrad/){what}.

- task: {task}, {questions} questions
- step {step} of {steps}, {batch} debates a step, {size}, {protocol}
- reward {reward}, learning rate {lr}, seed {seed}
- questions sha256 `{questions_sha256}`

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{model}"), "{folder}")
```
{note}"""

_DEBATE = "copies of the\nmodel answered questions, criticised each other and voted"

_ALONE = "copies of the\nmodel answered questions alone"

_CONTROLS = {"majority": "the most frequent answer", "shuffled": "votes dealt out at random", "none": "form alone"}

_ALIAS = """
`{model}` is peergrad's name for a built-in model: give the folder that `peergrad models --get {model}` names to
`from_pretrained`.
"""


def _how(config: TrainConfig) -> dict[str, str]:
    """What a run learned from, in words: by debate only where there is one, by votes alone only where they were alone."""
    rules, debated = config.learn.reward, config.debate.protocol != "direct"
    others = [
        *(["the truth"] if rules.needs_truth else []),
        *(["a judge's votes"] if config.learn.judge else []),
    ]
    parts = [f"the reward had {' and '.join(others)} in it"] if others else []
    parts += [f"{_CONTROLS[rules.votes]} stood in place of votes"] if rules.votes in _CONTROLS else []
    reward = ", and ".join(parts) or "the votes were the only reward"
    said = f", and {reward}" if rules.reward in REWARDS and (debated or parts) else ""
    warm = "; before that it learned from solutions or other replies (a warm start)" if config.warm.wanted else ""
    how = "by self-play debate" if debated else "by reinforcement learning"
    return {"how": how, "what": f": {_DEBATE if debated else _ALONE}{said}{warm}"}


def export(run: Run, to: Path, step: int | None = None) -> Path:
    """Copy the adapter of a step (the newest, if none is named) into a new folder, and say there what it is."""
    checkpoints = run.checkpoints()
    if not checkpoints:
        raise UserError(f"{run.path}: has no checkpoint yet")
    source = run.folder(at := checkpoints[-1] if step is None else Progress(step))
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise UserError(f"to: {to} is not empty; give a new folder")
    except (OSError, ValueError) as error:
        raise UserError(f"to: {to} can't be used ({error}); give a new folder") from None
    if not (source / "adapter_model.safetensors").exists():
        raise UserError(f"{source}: its weights are with the service, which gives them out; tinker.json there says where")
    config, facts = from_folder(TrainConfig(), run.path), run.facts
    model = base_of(run)
    about = {name: facts.get(name) for name in ("task", "questions", "questions_sha256")}
    about |= {"name": f"{run.path.resolve().name}-step-{at.step}", "step": at.step, "folder": to}
    about |= _how(config)
    if at.warm:
        about |= {"how": f"by supervised learning alone ({at.warm} updates)", "what": ", before any self-play"}
    about["model"] = model
    about["size"] = config.debate.build().size
    about["note"] = "" if "/" in model else _ALIAS.format(model=model)
    card = _CARD.format_map(flat(config) | about)
    with files.new_folder(to) as folder:
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            shutil.copyfile(source / name, folder / name)
        (folder / "README.md").write_bytes(card.encode())
    return to

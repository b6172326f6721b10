"""The short help of commands with many settings: examples first, then the options that most people need."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from peergrad.config import PRESETS
from peergrad.debate.settings import flat, sentences

_EXAMPLES = {
    "train": (
        ("peergrad train --preset demo", "a small model on sums, minutes on two cores"),
        ("peergrad train --preset recommended --task questions.jsonl --model Qwen/Qwen2.5-1.5B-Instruct", "your questions"),
        ("peergrad train … --dry-run", "check the settings and say what it takes; nothing is loaded"),
    ),
    "check": (
        ("peergrad check", "the settings of demo-parallel on 20 questions"),
        ("peergrad check --preset math --task gsm8k --model Qwen/Qwen2.5-1.5B-Instruct", "before training"),
    ),
    "eval": (
        ("peergrad eval --model runs/demo --questions 50", "what a run learned, on its own task"),
        ("peergrad eval --model smollm2 --task gsm8k --mode direct", "a model by itself"),
    ),
    "debate": (
        ('peergrad debate "Is a tomato a fruit?" --model runs/demo', "a model that was trained here"),
        ('peergrad debate "…" --model gpt-x@https://api.openai.com/v1', "a model behind an API"),
        ("peergrad debate --task questions.txt --json", "many questions, for a program"),
    ),
}
_TRAINED = "model task agents max_rounds max_tokens steps batch lr eval_questions out seed device"
_OPTIONS = {
    "train": _TRAINED,
    "check": _TRAINED,
    "eval": "model task mode questions agents max_rounds max_tokens opponent judge out seed device",
    "debate": "model seat judge task protocol agents max_rounds max_tokens style budget_usd out seed",
}


def short_help(name: str, about: str, settings: Any, preset: str | None) -> str:
    """The help of a command whose settings begin with these, of a preset if it is named."""
    width = max(60, min(110, shutil.get_terminal_size().columns))
    lines = [f"usage: peergrad {name} [options]", "", *textwrap.wrap(" ".join(about.split("Args:")[0].split()), width), ""]
    for command, what in _EXAMPLES[name]:
        lines += [f"  {command}", f"      {what}"]
    lines += ["", f"What most people set{f', as the preset {preset} has it' if preset else ''}:"]
    if preset:
        lines += _option("preset", "", f"Settings to begin with: {', '.join(PRESETS)}.", width)
    values, said = flat(settings), dict(_sentences(settings))
    for option in _OPTIONS[name].split():
        lines += _option(option, _written(values[option]), said[option], width)
    more = ", --dry-run, --config FILE" if name == "train" else ", --config FILE, --json"
    return "\n".join([*lines, "", f"All {len(values)} settings{more}: peergrad {name} --help-all"])


def _option(name: str, value: str, sentence: str, width: int) -> list[str]:
    start = f"  --{name.replace('_', '-')} {value}".ljust(24) + " "
    text = " ".join(sentence.split())
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * 25, break_on_hyphens=False)


def _written(value: object) -> str:
    return "" if value is None or value == () else str(value)


def _sentences(config: Any) -> Iterator[tuple[str, str]]:
    """The sentence under each setting, by its name."""
    for one in fields(config):
        if is_dataclass(section := getattr(config, one.name)):
            yield from _sentences(section)
    yield from sentences(type(config)).items()

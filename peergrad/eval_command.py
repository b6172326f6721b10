"""The commands ``peergrad eval`` and ``peergrad compare`` on a terminal."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from peergrad.bars import Bars
from peergrad.config import EvalConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.leaving import until_done
from peergrad.measure.result import compared
from peergrad.runs import training
from peergrad.runs.evals import read_result
from peergrad.runs.evaluation import evaluate, plan
from peergrad.runs.players import run_of
from peergrad.settings import changed, flat, from_file
from peergrad.show_result import print_comparison, print_result, result_text
from peergrad.tasks.base import Task
from peergrad.tasks.open import BUILT_IN, open_questions


def evaluate_model(config: EvalConfig) -> None:
    """Evaluate, showing how it goes, and print what was found."""
    made = plan(config, _questions(config))
    out = config.measure.out or _usual(config, made.task.name)
    console = Console(highlight=False)
    with Bars(console) as bars:
        work = until_done(lambda _: evaluate(made, out, bars, result_text), bars, lambda: str(out))
        found = asyncio.run(work)
    print_result(console, found)
    console.print(Text(f"result: {visible(str(out / 'result.json'))}"), soft_wrap=True)


def compare_results(first: Path, second: Path, as_json: bool) -> None:
    """Print two results side by side."""
    a, b = read_result(first), read_result(second)
    found = compared(a, b)
    if not found["questions"]:
        raise UserError(f"{second}: shares no question with {first}; compare evaluations of the same questions")
    if as_json:
        print(json.dumps(found))
    else:
        print_comparison(Console(highlight=False), (str(first), str(second)), found)


def settings_of(model: str) -> EvalConfig:
    """What the settings of an evaluation begin with: of a run or its checkpoint, the run's own."""
    run = run_of(model)
    if not run:
        return EvalConfig()
    known = flat(EvalConfig())
    trained = flat(from_file(TrainConfig(), run.path / "config.toml"))
    alike = {name: value for name, value in trained.items() if name in known and name not in ("out", "seed", "model")}
    return changed(EvalConfig(), alike, "model")


def _questions(config: EvalConfig) -> Task:
    """The questions to ask; of the task that a run was trained on, those it was not trained on."""
    run, seed = run_of(config.engine.model), config.measure.seed
    trained = from_file(TrainConfig(), run.path / "config.toml") if run else None
    if not trained or trained.task != config.task or config.task.task in BUILT_IN:
        return open_questions(config.task.task, config.task.rules(seed))
    if not trained.held_out.eval_questions:
        raise UserError(f"task: the run in {config.engine.model} held out no questions of {config.task.task}; name others")
    return training.plan(trained).held_out


def _usual(config: EvalConfig, task: str) -> Path:
    """Where a result goes: beside the checkpoint it is about, else under ``evals`` here."""
    model = config.engine.model
    name = re.sub(r"[^\w.-]+", "-", f"{Path(model).name}-{task}-{config.measure.mode}")
    run = run_of(model)
    return (run.path if run else Path()) / "evals" / name

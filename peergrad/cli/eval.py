"""The commands ``peergrad eval`` and ``peergrad compare`` on a terminal."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from peergrad.cli.signals import until_done
from peergrad.config import EvalConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.engines.shared.addresses import host
from peergrad.measure.result import compared
from peergrad.runs import training
from peergrad.runs.eval_folder import read_result
from peergrad.runs.evaluation import EvalPlan, evaluate, plan
from peergrad.runs.model_ref import run_of, trained_engine
from peergrad.settings import changed, flat, from_file
from peergrad.tasks.open import open_questions
from peergrad.terminal.progress import Bars
from peergrad.terminal.result import print_comparison, print_result, result_text


def evaluate_model(config: EvalConfig, as_json: bool) -> None:
    """Evaluate, showing how it goes, and print what was found."""
    task = open_questions(config.task.task, config.task.rules(config.measure.seed))
    made = plan(config, task, _trained_on(config.engine.model))
    out = config.measure.out or _usual(made)
    console = Console(highlight=False, markup=False, stderr=as_json)
    with Bars(console) as bars:
        work = until_done(lambda _: evaluate(made, out, bars, result_text), bars, lambda: str(out))
        found = asyncio.run(work)
    if as_json:
        print(json.dumps(found))
        return
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
        print_comparison(Console(highlight=False, markup=False), (str(first), str(second)), found)


def settings_of(model: str, base_url: str | None, engine: str | None = None) -> EvalConfig:
    """What the settings of an evaluation begin with: of a run or its checkpoint, the run's own."""
    run = run_of(model)
    if not run:
        return EvalConfig()
    known = flat(EvalConfig())
    trained = from_file(TrainConfig(), run.path / "config.toml")
    alike = {name: value for name, value in flat(trained).items() if name in known and name not in ("out", "seed", "model")}
    alike |= {"task": trained.held_out.eval_task or trained.task.task}
    return changed(EvalConfig(), alike | trained_engine(trained.engine, base_url, engine), "model")


def _trained_on(model: str) -> set[tuple[str, str | None]]:
    """The questions that a run was trained on, as far as they can still be read."""
    run = run_of(model)
    if not run:
        return set()
    task = training.plan(from_file(TrainConfig(), run.path / "config.toml")).task
    return {(question.text, question.answer) for question in (task[index] for index in range(len(task)))}


def _usual(made: EvalPlan) -> Path:
    """Where a result goes: beside the checkpoint it is about, else under ``evals`` here."""
    config, policy = made.config, made.policy
    model = f"{policy.base}-{host(policy.url)}" if policy.url else Path(config.engine.model).name
    name = re.sub(r"[^\w.-]+", "-", f"{model}-{made.task.name}-{config.measure.mode}")
    run = run_of(config.engine.model)
    return (run.path if run else Path()) / "evals" / name

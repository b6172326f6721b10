"""The command ``peergrad eval``."""

from __future__ import annotations

import asyncio
import json as json_module
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.text import Text

from peergrad.cli.flags import Flag, Inline, ModelFlags, first_pass, with_own_protocol
from peergrad.cli.signals import run_until_done
from peergrad.config import EvalConfig, TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.engines.shared.addresses import host
from peergrad.runs import evaluation
from peergrad.runs.models import run_of, trained_engine
from peergrad.settings import changed, flat, from_file
from peergrad.tasks.open import is_own_task, open_questions, open_task
from peergrad.terminal.progress import ProgressView
from peergrad.terminal.tables import print_result, result_text


def base_settings(args: Sequence[str]) -> EvalConfig:
    """The settings that the flags begin with: those of a run whose model is evaluated, then those of a file."""
    flags = first_pass(ModelFlags, args)
    config = with_own_protocol(EvalConfig(), flags.config, args)
    config = settings_of(config, flags.model, flags.base_url, flags.engine) if flags.model else config
    return from_file(config, flags.config) if flags.config else config


def command(
    settings: Annotated[EvalConfig, Inline],
    config: Path | None = None,  # noqa: ARG001 (its settings are in ``settings`` already)
    json: Flag = False,
) -> None:
    """Measure what a model can do alone, in debate, and for the same tokens without debate, with intervals.

    The same command resumes an evaluation that was interrupted.

    Args:
        settings: Everything that can be set. Of a run or its checkpoint (--model RUN), what is not given is the run's.
        config: A TOML file with settings; what is given here goes before it.
        json: Print the result as JSON instead of tables.
    """
    task = open_questions(settings.task.task or _unnamed(settings), settings.task.rules(settings.measure.seed))
    plan = evaluation.plan(settings, task, _trained_on(settings))
    out = settings.measure.out or _default_folder(plan)
    console = Console(highlight=False, markup=False, stderr=json)
    with ProgressView(console) as view:
        work = run_until_done(lambda _: evaluation.evaluate(plan, out, view, result_text), view, lambda: str(out))
        result = asyncio.run(work)
    if json:
        print(json_module.dumps(result))
        return
    print_result(console, result)
    console.print(Text(f"result: {visible(str(out / 'result.json'))}"), soft_wrap=True)


def settings_of(config: EvalConfig, model: str, base_url: str | None, engine: str | None = None) -> EvalConfig:
    """The settings an evaluation of a model begins with: of a run or its checkpoint, the run's own."""
    run = run_of(model)
    if not run:
        return config
    names = flat(config).keys() - {"out", "seed", "model"}
    trained = from_folder(TrainConfig(), run.path)
    shared = {name: value for name, value in flat(trained).items() if name in names}
    task = trained.held_out.eval_task or trained.task.task
    shared |= {"task": "" if is_own_task(task) else task}  # somebody's code is not imported because a folder names it
    return changed(config, shared | trained_engine(trained.engine, base_url, engine), "model")


def _unnamed(settings: EvalConfig) -> str:
    """Refuse to import the task of a run, which its folder names and the person does not."""
    if run := run_of(settings.engine.model):
        trained = from_folder(TrainConfig(), run.path)
        name = trained.held_out.eval_task or trained.task.task
        why = "which is somebody's code and not imported because a folder names it"
        raise UserError(f"task: the run in {run.path} has {name}, {why}; if you trust it, repeat --task {name}")
    return ""


def _trained_on(settings: EvalConfig) -> set[tuple[str, str | None]]:
    """The questions that a run was trained on, as far as they can still be read."""
    run = run_of(settings.engine.model)
    if not run:
        return set()
    trained = from_folder(TrainConfig(), run.path)
    names = trained.task.task, trained.held_out.eval_task
    if any(is_own_task(name) and name != settings.task.task for name in names):
        return set()
    task, _ = open_task(
        names[0], trained.task.rules(trained.keep.seed), held_out=trained.held_out.eval_questions, eval_name=names[1]
    )
    return {(question.text, question.answer) for question in (task[index] for index in range(len(task)))}


def _default_folder(plan: evaluation.EvalPlan) -> Path:
    """Where a result goes: beside the checkpoint it is about, else under ``evals`` here."""
    config, policy = plan.config, plan.policy
    model = f"{policy.base}-{host(policy.url)}" if policy.url else Path(config.engine.model).name
    name = re.sub(r"[^\w.-]+", "-", f"{model}-{plan.task.name}-{config.measure.mode}")
    run = run_of(config.engine.model)
    return (run.path if run else Path()) / "evals" / name

"""The command ``peergrad eval``."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from peergrad.cli.main import Flag, Inline, eval_task, model_settings, run_until_done
from peergrad.config import EvalConfig, TrainConfig, from_folder
from peergrad.debate.errors import EngineError, UserError
from peergrad.engines.shared.servers import host
from peergrad.runs import evaluation
from peergrad.runs.folder import Run
from peergrad.runs.models import run_of
from peergrad.tasks.open import is_here, is_own_task, open_questions, open_task, task_names
from peergrad.terminal.console import Output, ProgressView, print_line
from peergrad.terminal.tables import print_result, result_text


def base_settings(args: Sequence[str]) -> EvalConfig:
    """The settings that the flags begin with: those of a run whose model is evaluated, then those of a file."""
    return model_settings(EvalConfig(), args, ("debate", "task", "engine"))


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
    run = run_of(settings.engine.model)
    if not settings.task.task and run:
        name = eval_task(from_folder(TrainConfig(), run.path))
        why = "which is somebody's code and not imported because a folder names it"
        raise UserError(f"task: the run in {run.path} has {name}, {why}; if you trust it, repeat --task {name}")
    console = Output(stderr=json)
    trained = _trained_on(run, settings.task.task) if run else set[tuple[str, str | None]]()
    if trained is None:
        console.print("the questions that the run was trained on can't be read here: some of these may be among them")
    plan = evaluation.plan(settings, open_questions(settings.task), trained or set())
    out = settings.measure.out or _default_folder(plan, run)
    with ProgressView(console) as view:
        result = run_until_done(lambda _: evaluation.evaluate(plan, out, view, result_text), view, lambda: str(out))
    if json:
        print(json_module.dumps(result))
        return
    print_result(console, result)
    print_line(console, f"result: {out / 'result.json'}")


def _trained_on(run: Run, task_name: str) -> set[tuple[str, str | None]] | None:
    """The questions that a run was trained on; ``None`` where they can't be read, or only by importing or fetching what
    nobody but its folder names.
    """
    trained = from_folder(TrainConfig(), run.path)
    task, apart = trained.task, trained.held_out
    if any(is_own_task(name) and name != task_name for name in (task.task, apart.eval_task)):
        return None
    if not all(map(is_here, task_names(task.task))):
        return None
    try:
        held_out, size = apart.eval_questions, trained.learn.batch
        asked, _ = open_task(task, trained.keep.seed, held_out=held_out, eval_name=apart.eval_task, at_least=size)
    except (UserError, EngineError):
        return None
    return {(question.text, question.answer) for question in (asked[index] for index in range(len(asked)))}


def _default_folder(plan: evaluation.EvalPlan, run: Run | None) -> Path:
    """Where a result goes: beside the checkpoint it is about, else under ``evals`` here."""
    config, policy = plan.config, plan.policy
    model = f"{policy.base}-{host(policy.url)}" if policy.url else Path(config.engine.model).name
    name = re.sub(r"[^\w.-]+", "-", f"{model}-{plan.task.name}-{config.measure.mode}")
    return (run.path if run else Path()) / "evals" / name

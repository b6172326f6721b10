"""The command ``peergrad check``."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated

from rich.console import Console
from rich.text import Text

from peergrad.cli.main import Flag, Inline, PresetFlags, run_until_done, train_settings
from peergrad.config import ApiConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.runs.check import Checked, Forecast, check
from peergrad.terminal.console import Output, ProgressView, clock, money, table

base_settings = train_settings
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "yellow"}


def command(
    settings: Annotated[TrainConfig, Inline],
    api: Annotated[ApiConfig, Inline] = ApiConfig(),  # noqa: B008 (frozen)
    flags: Annotated[PresetFlags, Inline] = PresetFlags(),  # noqa: ARG001, B008 (they are in settings already)
    questions: int = 20,
    json: Flag = False,
) -> None:
    """See on a sample whether self-play can work here, before training: give the settings of the run you plan.

    The exit code is 1 if a gate fails.

    Args:
        settings: Everything that can be set.
        api: For a model behind an API, which can be checked, though not trained.
        flags: What the settings begin with.
        questions: How many questions are asked: more give narrower intervals.
        json: Print one JSON object instead of a table.
    """
    if questions < 2:
        raise UserError(f"questions: {questions} is not possible; give at least 2")
    console = Output(stderr=json)
    with ProgressView(console) as view:
        result = run_until_done(lambda _: check(settings, questions, view, api), view, lambda: "its beginning")
    if json:
        print(json_module.dumps({"passed": result.passed} | asdict(result)))
    else:
        _show(view, console, settings, result)
    if not result.passed:
        sys.exit(1)


def _show(view: ProgressView, console: Console, config: TrainConfig, result: Checked) -> None:
    size = f"{result.questions} questions, {config.debate.build().size}"
    view.say(f"{config.engine.model} on {config.task.task}: {size}", "bold")
    verdicts = [Text(gate.verdict + "?" * gate.unsure, style=_COLOURS[gate.verdict]) for gate in result.gates]
    rows = [[text, gate.name, gate.measured, gate.needed] for text, gate in zip(verdicts, result.gates, strict=True)]
    console.print(table(["", "gate", "measured", "needed"], rows, left=4))
    for advice in dict.fromkeys(gate.advice for gate in result.gates if gate.advice):
        about = [gate for gate in result.gates if gate.advice == advice]
        view.say(f"{about[0].verdict}: {'; '.join(gate.name for gate in about)}. {advice}")
    if any(gate.unsure for gate in result.gates):
        view.say("?: with so few questions chance could turn it; --questions asks more.")
    if result.dropped:
        view.say(f"{len(result.dropped)} debates were dropped; the first because: {next(iter(result.dropped.values()))}")
    if config.warm.wanted and result.forecast.trained is not None:
        view.say("All this is measured after the warm start, which the run begins with.")
    view.say(_cost(result.forecast, config.learn.batch))


def _cost(forecast: Forecast, batch: int) -> str:
    sampling, training = forecast.sampling_s, forecast.training_s
    what = f"The planned run, {forecast.steps} steps of {batch} debates: about {forecast.sampled:,.0f} tokens sampled and"
    if forecast.trained is None:
        took = f"{forecast.read:,.0f} read{money(forecast.usd, 2)}; at this speed {clock(sampling)}"
        return f"{what} {took}. This model can debate, but not be trained here."
    took = f"{forecast.trained:,.0f} trained on; at this speed {clock(sampling + training)}"
    return f"{what} {took}, of it {clock(training)} training, evaluations not counted."

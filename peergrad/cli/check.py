"""The command ``peergrad check`` on a terminal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad.cli.signals import until_done
from peergrad.config import ApiConfig, TrainConfig
from peergrad.debate.quote import visible
from peergrad.runs.preflight import Checked, Forecast, check
from peergrad.terminal.progress import Bars
from peergrad.terminal.training import clock

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "yellow"}


def check_settings(config: TrainConfig, api: ApiConfig, questions: int, as_json: bool) -> int:
    """Check, showing how it goes, and print what was found; the exit code is 1 if a gate fails."""
    console = Console(highlight=False, markup=False, stderr=as_json)
    with Bars(console) as bars:
        found = asyncio.run(until_done(lambda _: check(config, questions, bars, api), bars, lambda: "its beginning"))
    if as_json:
        print(json.dumps({"passed": found.passed} | asdict(found)))
    else:
        _show(console, config, found)
    return 0 if found.passed else 1


def _show(console: Console, config: TrainConfig, found: Checked) -> None:
    debate = config.debate
    size = f"{found.questions} questions, {debate.agents} agents, {debate.max_rounds} rounds"
    head = f"{config.engine.model} on {config.task.task}: {size}"
    console.print(Text(visible(head), style="bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "gate", "measured", "needed"):
        table.add_column(title)
    for gate in found.gates:
        verdict = Text(gate.verdict + ("?" if gate.unsure else ""), style=_COLOURS[gate.verdict])
        table.add_row(verdict, visible(gate.name), visible(gate.measured), gate.needed)
    console.print(table)
    for advice in dict.fromkeys(gate.advice for gate in found.gates if gate.advice):
        about = [gate for gate in found.gates if gate.advice == advice]
        names = "; ".join(gate.name for gate in about)
        console.print(Text(visible(f"{about[0].verdict}: {names}. {advice}")), soft_wrap=True)
    if any(gate.unsure for gate in found.gates):
        console.print(Text("?: with so few questions chance could turn it; --questions asks more."), soft_wrap=True)
    if found.dropped:
        why = visible(next(iter(found.dropped.values())))
        console.print(Text(f"{len(found.dropped)} debates were dropped; the first because: {why}"), soft_wrap=True)
    console.print(Text(_cost(found.forecast, config.learn.batch)), soft_wrap=True)


def _cost(forecast: Forecast, batch: int) -> str:
    what = f"The planned run, {forecast.steps} steps of {batch} debates: about {forecast.sampled:,.0f} tokens sampled"
    if forecast.trained is None:  # it can't be trained
        money = f", ${forecast.usd:,.2f}" if forecast.usd else ""
        took = f"{forecast.read:,.0f} read{money}; at this speed {clock(forecast.sampling_s)}"
        return f"{what} and {took}. This model can debate, but not be trained here."
    total = forecast.sampling_s + forecast.training_s
    return (
        f"{what} and {forecast.trained:,.0f} trained on; at this speed {clock(total)}, of it {clock(forecast.training_s)} "
        "training, evaluations not counted."
    )

"""The command ``peergrad check`` on a terminal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad.bars import Bars
from peergrad.config import TrainConfig
from peergrad.debate.quote import visible
from peergrad.leaving import until_done
from peergrad.live import clock
from peergrad.runs.preflight import Checked, check

_COLOURS = {"pass": "green", "fail": "bold red", "unknown": "yellow"}


def check_settings(config: TrainConfig, questions: int, as_json: bool) -> int:
    """Check, showing how it goes, and print what was found; the exit code is 1 if a gate fails."""
    console = Console(highlight=False, stderr=as_json)
    with Bars(console) as bars:
        found = asyncio.run(until_done(lambda _: check(config, questions, bars), bars, lambda: "its beginning"))
    if as_json:
        print(json.dumps({"passed": found.passed} | asdict(found)))
    else:
        _show(console, config, questions, found)
    return 0 if found.passed else 1


def _show(console: Console, config: TrainConfig, questions: int, found: Checked) -> None:
    debate = config.debate
    size = f"{questions} questions, {debate.agents} agents, {debate.max_rounds} rounds"
    head = f"{config.engine.model} on {config.task.task}: {size}"
    console.print(Text(visible(head), style="bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "gate", "measured", "needed"):
        table.add_column(title)
    for gate in found.gates:
        verdict = Text(gate.verdict + ("?" if gate.unsure else ""), style=_COLOURS[gate.verdict])
        table.add_row(verdict, visible(gate.name), visible(gate.measured), gate.needed)
    console.print(table)
    for gate in found.gates:
        if gate.advice:
            console.print(Text(f"{gate.verdict}: {visible(gate.name)}. {visible(gate.advice)}"), soft_wrap=True)
    if any(gate.unsure for gate in found.gates):
        console.print(Text("?: with so few questions chance could turn it; --questions asks more."), soft_wrap=True)
    if found.dropped:
        why = visible(next(iter(found.dropped.values())))
        console.print(Text(f"{len(found.dropped)} debates were dropped; the first because: {why}"), soft_wrap=True)
    forecast = found.forecast
    total = forecast.sampling_s + forecast.training_s
    console.print(
        Text(
            f"The planned run, {forecast.steps} steps of {config.learn.batch} debates: about {forecast.sampled:,.0f} tokens "
            f"sampled and {forecast.trained:,.0f} trained on; at this speed {clock(total)}, of it "
            f"{clock(forecast.training_s)} training, evaluations not counted."
        ),
        soft_wrap=True,
    )

"""The commands ``peergrad eval`` and ``peergrad compare`` on a terminal."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from peergrad.config import EvalConfig
from peergrad.debate.quote import visible
from peergrad.debate.types import Debate
from peergrad.leaving import until_done
from peergrad.measure.result import compared
from peergrad.runs.evals import read_result
from peergrad.runs.evaluation import evaluate, plan
from peergrad.runs.players import run_of
from peergrad.show_result import print_comparison, print_result, result_text


def evaluate_model(config: EvalConfig) -> None:
    """Evaluate, showing how it goes, and print what was found."""
    made = plan(config)
    out = config.measure.out or _usual(config, made.task.name)
    console = Console(highlight=False)
    with Bars(console) as bars:
        work = until_done(lambda _: evaluate(made, out, bars, result_text), bars, lambda: str(out))
        found = asyncio.run(work)
    print_result(console, found)
    console.print(Text(f"result: {visible(str(out / 'result.json'))}"), soft_wrap=True)


def compare_results(first: Path, second: Path) -> None:
    """Print two results side by side."""
    a, b = read_result(first), read_result(second)
    print_comparison(Console(highlight=False), (str(first), str(second)), compared(a, b))


def _usual(config: EvalConfig, task: str) -> Path:
    """Where a result goes: beside the checkpoint it is about, else under ``evals`` here."""
    model = config.engine.model
    name = re.sub(r"[^\w.-]+", "-", f"{Path(model).name}-{task}-{config.measure.mode}")
    run = run_of(model)
    return (run.path if run else Path()) / "evals" / name


class Bars:
    """A watcher for people: a bar per part on a terminal, a line per part elsewhere."""

    patience_s = 0.0

    def __init__(self, console: Console) -> None:
        self.phase = "starting"
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self._progress.add_task("", visible=False, total=None)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        self._console.print(Text(visible(sentence)), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self._console.print(Text(f"warning: {visible(sentence)}", style="yellow"), soft_wrap=True)

    def begin(self, part: str, debates: int) -> None:
        self.phase = f"playing {part}"
        self._progress.reset(self._bar, description=part, total=debates, visible=True)
        if not self._console.is_terminal:
            self.say(f"{part}: {debates} to play")

    def debate(self, debate: Debate | None) -> None:  # noqa: ARG002 (one that was dropped is done, too)
        self._progress.advance(self._bar)

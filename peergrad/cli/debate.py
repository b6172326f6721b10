"""The command ``peergrad debate`` on a terminal, in a pipe, and for programs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from peergrad.cli.signals import until_done
from peergrad.config import DebateConfig, DebatesConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.types import Ask, Debate, Question, Reply
from peergrad.measure.ending import Ending, as_object, ending, used
from peergrad.runs.debating import WEAK, DebatesPlan, Took, debate_all, paid, plan
from peergrad.runs.model_ref import run_of, trained_engine
from peergrad.settings import changed, flat, from_file
from peergrad.tasks.lines import lines_of, typed_questions
from peergrad.tasks.open import open_questions
from peergrad.tasks.rows import stem
from peergrad.terminal.debate import Stage
from peergrad.terminal.progress import Bars
from peergrad.terminal.turns import Page, one_line, print_ending, took

WEAK_TOKENS = 128

_WEAK = (
    f"no model was given, so {WEAK} answers: with 135M parameters it seldom keeps to the form, let alone judges. "
    "--model NAME takes another one, --model NAME@http://… one behind an API"
)
_HOW = {"votes": "decided by votes", "answers": "by how often an answer was given", "nothing": "without a winner"}


def debate(question: str | None, config: DebatesConfig, as_json: bool) -> None:
    """Debate one question on the screen, or many with a bar; print how it ended."""
    questions, name, origin = _questions(question, config)
    made = plan(config, questions, name, origin)
    if len(made.questions) == 1 and not as_json:
        _one(made)
    else:
        _many(made, as_json)


def settings_of(model: str | None, base_url: str | None, engine: str | None = None) -> DebatesConfig:
    """What the settings begin with: of a run or its checkpoint, debates and engine are the run's own. The small model that
    answers where none is given rambles, and here: its replies are short.
    """
    base = DebatesConfig()
    if model is None:
        return changed(base, {"max_tokens": WEAK_TOKENS}, "model")
    run = run_of(model)
    if not run:
        return base
    trained = from_file(TrainConfig(), run.path / "config.toml")
    theirs = {name: flat(trained)[name] for name in flat(DebateConfig())}
    return changed(base, theirs | trained_engine(trained.engine, base_url, engine), "model")


def _questions(given: str | None, config: DebatesConfig) -> tuple[Sequence[Question], str, str]:
    """What is to be debated, a name for it, and where it is from."""
    task, style, most = config.task.task, config.seats.style, config.seats.questions or None
    if given is not None and task:
        raise UserError("task: is given beside a question; give one of them")
    if given is not None and given != "-":
        return typed_questions([given], style, "question"), given, given.strip()
    if task.lower().endswith(".txt"):
        try:
            raw = Path(task).read_bytes()
        except OSError as error:
            raise UserError(f"task: {task} can't be read ({error.strerror})") from None
        return typed_questions(lines_of(raw, task), style, task)[:most], stem(Path(task)), _origin(task)
    if task:
        found = open_questions(task, config.task.rules(config.seats.seed))
        return [found[index] for index in range(min(most or len(found), len(found)))], found.name, _origin(task)
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise UserError("question: is missing; give it in quotes, one a line by a pipe (-), or a file with --task")
    questions = typed_questions(lines_of(sys.stdin.buffer.read(), "stdin"), style, "stdin")[:most]
    # By the first one, so that lines added later go to the same file.
    first = questions[0].text
    return questions, f"questions {first}" if len(questions) > 1 else first, f"stdin {first}"


def _origin(task: str) -> str:
    """A task wherever it is named from: the file's full path."""
    kind, colon, file = task.partition(":")
    return str(Path(task).resolve()) if not colon else f"{kind}:{Path(file).resolve()}"


def _advise(made: DebatesPlan, worker: Stage | Bars) -> None:
    """Warn of what will disappoint."""
    protocol = made.protocol
    if not made.config.engine.model and made.usual:
        worker.warn(_WEAK)
    if made.config.seats.judge is None and protocol.agents < 3:
        worker.warn("nobody can vote: a vote compares two others; give agents 3 or more, or a judge")
    elif made.config.seats.judge is None and made.config.debate.protocol == "parallel" and protocol.max_rounds < 2:
        worker.warn("nobody can vote: in the first round nobody has seen others; give max_rounds 2 or more, or a judge")


def _one(made: DebatesPlan) -> None:
    console, warnings = Console(highlight=False), Console(highlight=False, stderr=True)
    with Stage(console, console if console.is_terminal else warnings, made.protocol, made.models) as stage:
        stage.page.line(made.questions[0].text if len(made.questions[0].text) < 1000 else made.questions[0].id, "bold")
        stage.page.show()
        _advise(made, stage)
        listener = stage if console.is_terminal else None
        work = until_done(lambda _: debate_all(made, stage, listener), stage, lambda: str(made.out))
        (held,) = asyncio.run(work)
    page, spent = stage.page, stage.took
    print_ending(page, ending(held))
    replies = len(held.turns) + (held.verdict is not None)
    usd, seconds = (spent.usd, spent.seconds) if spent else (paid(made, held), None)
    page.line(took(used(held), usd, seconds, replies), "dim")
    page.line(f"saved in {made.out}" if spent else f"kept from before in {made.out}; --seed plays another one", "dim")
    page.show()


def _many(made: DebatesPlan, as_json: bool) -> None:
    out = Console(highlight=False)
    console = out if out.is_terminal and not as_json else Console(highlight=False, stderr=True)
    with Bars(console) as bars:
        _advise(made, bars)
        results = _Results(made, bars, Page(out), as_json)
        asyncio.run(until_done(lambda _: debate_all(made, results), bars, lambda: str(made.out)))
    bars.say(results.summary())


class _Results:
    """A watcher of many debates: a bar, and how each ended as it ends."""

    def __init__(self, made: DebatesPlan, bars: Bars, page: Page, as_json: bool) -> None:
        self._made, self._bars, self._page, self._json = made, bars, page, as_json
        self.say, self.warn = bars.say, bars.warn
        self._by: dict[str, int] = {}
        self._unheard = False
        self._took = Took()

    def begin(self, kept: Sequence[Debate], missing: int) -> None:
        if kept:
            self.say(f"{len(kept)} kept from before in {self._made.out}")
        for debate in kept:
            self._tell(debate, None)
        if missing:
            self._bars.begin("debates", missing)

    def replied(self, ask: Ask, reply: Reply, took: Took) -> None:  # noqa: ARG002
        money = f", ${took.usd:,.4f}" if took.usd else ""
        self._bars.note(f"debates, {took.prompt + took.sampled:,} tokens{money}")

    def ended(self, debate: Debate | None, took: Took, seconds: float) -> None:
        self._took = took
        self._bars.debate(debate)
        if debate:
            self._tell(debate, seconds)

    def _tell(self, debate: Debate, seconds: float | None) -> None:
        end = ending(debate)
        self._by[end.by] = self._by.get(end.by, 0) + 1
        if self._unheard:
            return
        try:
            self._print(debate, end, seconds)
        except (BrokenPipeError, SystemExit):  # the reader left, as `| head` does (rich then leaves, too): debates go on
            self._unheard = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, debate: Debate, end: Ending, seconds: float | None) -> None:
        if not self._json:
            self._page.line(one_line(end))
            self._page.show()
            return
        more = {
            "usd": round(paid(self._made, debate), 9),
            "seconds": None if seconds is None else round(seconds, 3),
            "kept": seconds is None,
            "transcript": str(self._made.out),
        }
        print(json.dumps(as_object(end, self._made.models) | more), flush=True)

    def summary(self) -> str:
        by = ", ".join(f"{self._by[what]} {how}" for what, how in _HOW.items() if what in self._by)
        spent = self._took
        money = f", ${spent.usd:,.4f}" if spent.usd else ""
        tokens = f"{spent.prompt:,} tokens read and {spent.sampled:,} sampled"
        count = sum(self._by.values())
        return (
            f"{count} debate{'s' * (count > 1)} ({by}); {tokens}{money}, {spent.seconds:,.1f} s; saved in {self._made.out}"
        )

"""The command ``peergrad debate``: on a terminal, in a pipe, and for programs."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from peergrad.cli.flags import Flag, Inline, ModelFlags, first_pass, with_own_protocol
from peergrad.cli.signals import run_until_done
from peergrad.config import DebatesConfig, TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.style import STYLES
from peergrad.debate.types import Debate, Question
from peergrad.measure.ending import Ending, as_object, ending, used
from peergrad.runs import debating
from peergrad.runs.debating import WEAK, DebatesPlan, SessionCost, debate_all
from peergrad.runs.models import run_of, trained_engine
from peergrad.runs.watch import Watcher
from peergrad.settings import changed, flat, from_file
from peergrad.tasks.files import lines_of, stem, typed_questions
from peergrad.tasks.open import is_own_task, open_questions
from peergrad.terminal.debate import DebateView, Page, one_line, print_ending, took
from peergrad.terminal.progress import ProgressView, money

WEAK_TOKENS = 128

_WEAK = (
    f"no model was given, so {WEAK} answers: with 135M parameters it seldom keeps to the form, let alone judges. "
    "--model NAME takes another one, --model NAME@http://… one behind an API"
)
_HOW = {"votes": "decided by votes", "answers": "by how often an answer was given", "nothing": "without a winner"}


@dataclass(frozen=True, kw_only=True)
class DebateFlags(ModelFlags):
    """The flags that name models."""

    seat: tuple[str, ...] = ()


def base_settings(args: Sequence[str]) -> DebatesConfig:
    """The settings that the flags begin with: those of a run whose model debates, then those of a file.

    The small model that answers where none is named rambles, and on this machine: its replies are short.
    """
    flags = first_pass(DebateFlags, args)
    config = with_own_protocol(DebatesConfig(), flags.config, args)
    if flags == DebateFlags():
        return changed(config, {"max_tokens": WEAK_TOKENS}, "model")
    config = settings_of(config, flags.model, flags.base_url, flags.engine) if flags.model else config
    return from_file(config, flags.config) if flags.config else config


def command(
    question: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="QUESTION")] = None,
    /,
    *,
    settings: Annotated[DebatesConfig, Inline, tyro.conf.UseAppendAction],
    rounds: int | None = None,
    config: Path | None = None,  # noqa: ARG001 (its settings are in ``settings`` already)
    json: Flag = False,
) -> None:
    """Let models debate a question and vote on the answer, without training. Any model, here or behind an API.

    The same command resumes debates that were interrupted.

    Args:
        question: What is debated; - reads one question a line from stdin, and so does a pipe where none is given.
        settings: Everything that can be set.
        rounds: The same as --max-rounds.
        config: A TOML file with settings; what is given here goes before it.
        json: Print one JSON object for each debate, as it ends; all else goes to stderr.
    """
    if rounds is not None:
        settings = changed(settings, {"max_rounds": rounds}, "rounds")
    plan = debating.plan(settings, *_questions(question, settings))
    if len(plan.questions) == 1 and not json:
        _one(plan)
    else:
        _many(plan, json)


def settings_of(config: DebatesConfig, model: str, base_url: str | None, engine: str | None = None) -> DebatesConfig:
    """The settings that debates of a model begin with: of a run or its checkpoint, debates and engine are the run's own."""
    run = run_of(model)
    if not run:
        return config
    trained = from_folder(TrainConfig(), run.path)
    shared = {name: flat(trained)[name] for name in flat(config.debate) if name in flat(trained)}
    return changed(config, shared | trained_engine(trained.engine, base_url, engine), "model")


def _questions(question: str | None, config: DebatesConfig) -> tuple[Sequence[Question], str, str]:
    """What is to be debated, a name for it, and where it is from."""
    task, style, most = config.task.task, STYLES[config.seats.style], config.seats.questions or None
    if question is not None and task:
        raise UserError("task: is given beside a question; give one of them")
    if question is not None and question != "-":
        return typed_questions([question], style, "question"), question, question.strip()
    if task.lower().endswith(".txt"):
        try:
            raw = Path(task).read_bytes()
        except OSError as error:
            raise UserError(f"task: {task} can't be read ({error.strerror})") from None
        return typed_questions(lines_of(raw, task), style, task)[:most], stem(Path(task)), _origin(task)
    if task:
        opened = open_questions(task, config.task.rules(config.seats.seed))
        return [opened[index] for index in range(min(most or len(opened), len(opened)))], opened.name, _origin(task)
    if sys.stdin is None or (question is None and sys.stdin.isatty()):
        raise UserError("question: is missing; give it in quotes, one a line by a pipe (-), or a file with --task")
    questions = typed_questions(lines_of(sys.stdin.buffer.read(), "stdin"), style, "stdin")[:most]
    # By the first one, so that lines added later go to the same file.
    first = questions[0].text
    return questions, f"questions {first}" if len(questions) > 1 else first, f"stdin {first}"


def _origin(task: str) -> str:
    """A task wherever it is named from: the file's full path."""
    kind, colon, file = task.partition(":")
    if is_own_task(task):
        return task
    return str(Path(task).resolve()) if not colon else f"{kind}:{Path(file).resolve()}"


def _advise(plan: DebatesPlan, view: DebateView | ProgressView) -> None:
    """Warn of what will disappoint."""
    protocol = plan.protocol
    if not plan.config.engine.model and plan.usual:
        view.warn(_WEAK)
    if plan.config.seats.judge is None and protocol.agents < 3:
        view.warn("nobody can vote: a vote compares two others; give agents 3 or more, or a judge")
    elif plan.config.seats.judge is None and plan.config.debate.protocol == "parallel" and plan.config.debate.max_rounds < 2:
        view.warn("nobody can vote: in the first round nobody has seen others; give max_rounds 2 or more, or a judge")


def _one(plan: DebatesPlan) -> None:
    console, warnings = Console(highlight=False), Console(highlight=False, stderr=True)
    with DebateView(console, console if console.is_terminal else warnings, plan.protocol, plan.models) as view:
        view.page.line(plan.questions[0].text if len(plan.questions[0].text) < 1000 else plan.questions[0].id, "bold")
        view.page.show()
        _advise(plan, view)
        work = run_until_done(lambda _: debate_all(plan, view), view, lambda: str(plan.out))
        (debate,) = asyncio.run(work)
    page, spent = view.page, view.spent
    print_ending(page, ending(debate))
    replies = len(debate.turns) + (debate.verdict is not None)
    usd, seconds = (spent.usd, spent.seconds) if spent else (plan.usd(debate), None)
    page.line(took(used(debate), usd, seconds, replies), "dim")
    page.line(f"saved in {plan.out}" if spent else f"kept from before in {plan.out}; --seed plays another one", "dim")
    page.show()


def _many(plan: DebatesPlan, as_json: bool) -> None:
    out = Console(highlight=False)
    console = out if out.is_terminal and not as_json else Console(highlight=False, stderr=True)
    with ProgressView(console) as view:
        _advise(plan, view)
        results = _Results(plan, view, Page(out), as_json)
        asyncio.run(run_until_done(lambda _: debate_all(plan, results), view, lambda: str(plan.out)))
    view.say(results.summary())


class _Results(Watcher):
    """A watcher of many debates: a bar, and the outcome of each as it ends."""

    def __init__(self, plan: DebatesPlan, view: ProgressView, page: Page, as_json: bool) -> None:
        self._plan, self._view, self._page, self._as_json = plan, view, page, as_json
        self.say, self.warn = view.say, view.warn
        self._by: dict[str, int] = {}
        self._reader_left = False
        self._cost = SessionCost()

    def resumed(self, debates: Sequence[Debate]) -> None:
        self.say(f"{len(debates)} kept from before in {self._plan.out}")
        for debate in debates:
            self._report(debate, None)

    def begin(self, phase: str, debates: int, at: object = None) -> None:  # noqa: ARG002
        self._view.begin(phase, debates)

    def cost(self, so_far: SessionCost) -> None:
        self._cost = so_far
        self._view.note(f"debates, {so_far.prompt + so_far.sampled:,} tokens{money(so_far.usd)}")

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:
        self._view.debate(debate)
        if debate:
            self._report(debate, seconds)

    def _report(self, debate: Debate, seconds: float | None) -> None:
        end = ending(debate)
        self._by[end.by] = self._by.get(end.by, 0) + 1
        if self._reader_left:
            return
        try:
            self._print(debate, end, seconds)
        except (BrokenPipeError, SystemExit):  # the reader left, as `| head` does (rich then leaves, too): debates continue
            self._reader_left = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, debate: Debate, end: Ending, seconds: float | None) -> None:
        if not self._as_json:
            self._page.line(one_line(end))
            self._page.show()
            return
        more = {
            "usd": round(self._plan.usd(debate), 9),
            "seconds": None if seconds is None else round(seconds, 3),
            "kept": seconds is None,
            "transcript": str(self._plan.out),
        }
        print(json_module.dumps(as_object(end, self._plan.models) | more), flush=True)

    def summary(self) -> str:
        by = ", ".join(f"{self._by[what]} {how}" for what, how in _HOW.items() if what in self._by)
        spent = self._cost
        tokens = f"{spent.prompt:,} tokens read and {spent.sampled:,} sampled{money(spent.usd)}"
        count = sum(self._by.values())
        return f"{count} debate{'s' * (count > 1)} ({by}); {tokens}, {spent.seconds:,.1f} s; saved in {self._plan.out}"

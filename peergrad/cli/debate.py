"""The command ``peergrad debate``: on a terminal, in a pipe, and for programs."""

from __future__ import annotations

import json as json_module
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from peergrad.cli.main import FirstFlags, Flag, Inline, model_settings, run_until_done
from peergrad.debate.errors import UserError
from peergrad.debate.protocol import can_vote
from peergrad.debate.question import STYLES, Question
from peergrad.debate.settings import changed
from peergrad.debate.types import Debate
from peergrad.engines.base import Spent
from peergrad.measure.ending import as_object, ending, used
from peergrad.runs import debating
from peergrad.runs.debating import WEAK, DebatesConfig, DebatesPlan, debate_all
from peergrad.tasks.files import lines_of, lines_of_file, stem, typed_questions
from peergrad.tasks.open import is_own_task, open_questions
from peergrad.terminal.console import Output, ProgressView, money, nobody_reads
from peergrad.terminal.debate import DebateView, Page, one_line, print_ending, took

WEAK_TOKENS = 128

_WEAK = (
    f"no model was given, so {WEAK} answers: with 135M parameters it seldom keeps to the form, let alone judges. "
    "--model NAME takes another one, --model NAME@http://… one behind an API"
)
_HOW = {"votes": "decided by votes", "answers": "by how often an answer was given", "nothing": "without a winner"}


def base_settings(args: Sequence[str]) -> DebatesConfig:
    """The settings that the flags begin with: those of a run whose model debates, then of a file. A weak model rambles."""
    config = model_settings(DebatesConfig(), args, ("debate",))
    weak = replace(FirstFlags.of(args), protocol=None) == FirstFlags()
    return changed(config, {"max_tokens": WEAK_TOKENS}, "model") if weak else config


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
        if not hasattr(settings.debate.build(), "max_rounds"):
            name = settings.debate.protocol
            raise UserError(f"rounds: how many there are is no setting of the protocol {name}; leave it out")
        settings = changed(settings, {"max_rounds": rounds}, "rounds")
    plan = debating.plan(settings, *_questions(question, settings))
    if len(plan.questions) == 1 and not json:
        _one(plan)
    else:
        _many(plan, json)


def _questions(question: str | None, config: DebatesConfig) -> tuple[Sequence[Question], str, str]:
    """What is to be debated, a name for it, and where it is from."""
    task, style, most = config.task.task, STYLES[config.seats.style], config.seats.questions or None
    if question is not None and task:
        raise UserError("task: is given beside a question; give one of them")
    if question is not None and question != "-":
        return typed_questions([question], style, "question"), question, question.strip()
    if task.lower().endswith(".txt"):
        return typed_questions(lines_of_file(Path(task)), style, task)[:most], stem(Path(task)), _origin(task)
    if task:
        opened = open_questions(config.task)
        return [opened[index] for index in range(min(most or len(opened), len(opened)))], opened.name, _origin(task)
    if sys.stdin is None or (question is None and sys.stdin.isatty()):
        raise UserError("question: is missing; give it in quotes, one a line by a pipe (-), or a file with --task")
    questions = typed_questions(lines_of(sys.stdin.buffer.read(), "stdin"), style, "stdin")[:most]
    # By the first one, so that lines added later go to the same file.
    first = questions[0].text
    return questions, f"questions {first}" if len(questions) > 1 else first, f"stdin {first}"


def _origin(task: str) -> str:
    """A task wherever it is named from: the file's full path."""
    if is_own_task(task):
        return task
    kind, colon, file = task.partition(":")
    return f"{kind}:{Path(file).resolve()}" if colon else str(Path(task).resolve())


def _advise(plan: DebatesPlan, view: DebateView | ProgressView) -> None:
    """Warn of what will disappoint."""
    if not plan.config.engine.model and len(plan.config.seats.seat) < plan.protocol.agents:
        view.warn(_WEAK)
    if plan.config.seats.judge is None and not can_vote(plan.protocol):
        more = "agents 3" if plan.protocol.agents < 3 else "max_rounds 2"
        view.warn(f"nobody can vote: a vote compares two others, and nobody is shown two; give {more} or more, or a judge")


def _one(plan: DebatesPlan) -> None:
    console, warnings = Output(), Output(stderr=True)
    with DebateView(console, console if console.is_terminal else warnings, plan.protocol, plan.models) as view:
        view.page.line(plan.questions[0].text if len(plan.questions[0].text) < 1000 else plan.questions[0].id, "bold")
        view.page.show()
        _advise(plan, view)
        (debate,) = run_until_done(lambda _: debate_all(plan, view), view, lambda: _resumes_from(plan))
    page, spent = view.page, view.spent
    print_ending(page, ending(debate))
    replies = len(debate.turns) + (debate.verdict is not None)
    usd, seconds = (spent.usd, spent.seconds) if spent else (plan.usd(debate), None)
    page.line(took(used(debate), usd, seconds, replies), "dim")
    page.line(f"saved in {plan.out}" if spent else f"kept from before in {plan.out}; --seed plays another one", "dim")
    page.show()


def _resumes_from(plan: DebatesPlan) -> str:
    return str(plan.out) if plan.out.exists() else "the beginning"


def _many(plan: DebatesPlan, as_json: bool) -> None:
    out = Output()
    console = out if out.is_terminal and not as_json else Output(stderr=True)
    with _ManyDebates(console, plan, None if as_json else Page(out)) as view:
        _advise(plan, view)
        run_until_done(lambda _: debate_all(plan, view), view, lambda: _resumes_from(plan))
    view.say(view.summary())


class _ManyDebates(ProgressView):
    """A watcher of many debates: a bar, and the outcome of each as it ends, on a page or as JSON."""

    def __init__(self, console: Console, plan: DebatesPlan, page: Page | None) -> None:
        super().__init__(console)
        self._plan, self._page = plan, page
        self._decided: Counter[str] = Counter()
        self._spent = Spent()

    def resumed(self, debates: Sequence[Debate]) -> None:
        self.say(f"{len(debates)} kept from before in {self._plan.out}")
        for debate in debates:
            self._report(debate, None)

    def cost(self, so_far: Spent) -> None:
        self._spent = so_far
        self.note(f"debates, {so_far.tokens:,} tokens{money(so_far.usd)}")

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:
        super().debate(debate)
        if debate:
            self._report(debate, seconds)

    def _report(self, debate: Debate, seconds: float | None) -> None:
        end = ending(debate)
        self._decided[end.by] += 1
        if self._page:
            self._page.line(one_line(end))
            self._page.show()
            return
        more = {
            "usd": round(self._plan.usd(debate), 9),
            "seconds": None if seconds is None else round(seconds, 3),
            "kept": seconds is None,
            "transcript": str(self._plan.out),
        }
        try:
            print(json_module.dumps(as_object(end, self._plan.models) | more), flush=True)
        except BrokenPipeError:  # debates continue
            nobody_reads(sys.stdout)

    def summary(self) -> str:
        how = ", ".join(f"{self._decided[by]} {words}" for by, words in _HOW.items() if by in self._decided)
        tokens = f"{self._spent.prompt:,} tokens read and {self._spent.sampled:,} sampled{money(self._spent.usd)}"
        debates, seconds = self._decided.total(), f"{self._spent.seconds:,.1f} s"
        return f"{debates} debate{'s' * (debates > 1)} ({how}); {tokens}, {seconds}; saved in {self._plan.out}"

"""A run before it begins: its settings with what they name, checked without a model."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from peergrad.config import TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.prompts import TEXTS
from peergrad.debate.protocol import BaseProtocol, call_protocol, can_vote, own_protocol
from peergrad.debate.protocols import Parallel
from peergrad.debate.question import Question
from peergrad.debate.settings import is_import_path
from peergrad.debate.types import Ask, Debate
from peergrad.engines.registry import engine_of, own_code
from peergrad.learn.curriculum import CurriculumRules, History, check_curriculum, choose, first
from peergrad.learn.train import next_in_epoch
from peergrad.learn.warm import Lesson
from peergrad.runs.files import Warn
from peergrad.runs.folder import Progress, Run
from peergrad.runs.lessons import OWN, lessons_given, lessons_sha256
from peergrad.runs.models import ModelRef, base_of, check_base, policy_of, weights_sha256
from peergrad.runs.opponents import OpponentsPlan, plan_opponents
from peergrad.tasks.base import Questions, Task
from peergrad.tasks.open import fingerprint, joined_tasks, left_out, open_tasks


@dataclass(frozen=True)
class Plan:
    """A run's settings with what they name, checked: nothing heavy is loaded yet."""

    config: TrainConfig
    protocol: BaseProtocol
    tasks: tuple[Questions, ...]
    task: Task
    """All of them together."""
    held_out: Task
    lessons: Sequence[Lesson]
    """Of the warm start; none yet if the model learns from its own debates."""
    opponents: OpponentsPlan | None
    """Also a judge; None: the policy debates with itself alone."""
    notes: tuple[str, ...]
    """What a person should be told about the questions."""

    @property
    def has_curriculum(self) -> bool:
        """Whether what is asked depends on more than the step."""
        return len(self.tasks) > 1 or self.config.curriculum.curriculum == "adaptive"

    @property
    def learns_from_own(self) -> bool:
        """Whether the warm start is on the model's own debates, which have to be sampled first."""
        return self.config.warm.wanted and self.config.warm.warm_from == OWN

    @property
    def fixed(self) -> tuple[str, ...]:
        """Settings that may change when other runs are resumed, but not when this one is."""
        return ("steps",) if self.config.learn.lr_falls or self.config.learn.reward.fades else ()

    @property
    def end(self) -> Progress:
        """Where the run ends: after its last step, or after the warm start if there are no steps."""
        steps = self.config.learn.steps
        return Progress(steps) if steps else self.warmed

    @property
    def warmed(self) -> Progress:
        """Where self-play begins: after the warm start, if there is one."""
        return Progress(0, self.config.warm.updates(len(self.lessons)))

    @property
    def eval_debates(self) -> int:
        """How many held-out questions are debated in an evaluation."""
        return min(self.config.held_out.eval_debates, len(self.held_out))

    @property
    def older_policies(self) -> int:
        """How many steps back the policy's checkpoints are needed: for opponents, and for batches sampled ahead."""
        return max(self.config.learn.max_staleness, self.opponents.steps_ago if self.opponents else 0)

    @property
    def asks_others(self) -> bool:
        """Whether anybody but the policy of now answers: opponents, a judge, in an evaluation its base model, or when a run
        is resumed that samples ahead the policy of then.
        """
        against_base = self.eval_debates > 0 and self.config.held_out.eval_mode == "role-averaged"
        return self.opponents is not None or against_base or self.config.learn.max_staleness > 0

    def batch(self, step: int, history: History) -> list[Question]:
        """The questions of a step, by what came of earlier ones."""
        learn, seed, ids = self.config.learn, self.config.keep.seed, self._ids
        if not self.has_curriculum:
            return [self._by_id[id] for id in next_in_epoch(ids[0], learn.batch, seed, step)]
        picked = choose(self.config.curriculum, ids, learn.batch, seed, step, history, learn.max_staleness)
        return [self._by_id[id] for id in picked]

    def first(self, count: int) -> list[Question]:
        """The first questions that the run asks."""
        picked = first(self.config.curriculum, self._ids, self.config.learn.batch, self.config.keep.seed, count)
        return [self._by_id[id] for id in picked]

    @cached_property
    def _ids(self) -> list[list[str]]:
        return [[question.id for question in task.questions] for task in self.tasks]

    @cached_property
    def _by_id(self) -> dict[str, Question]:
        return {question.id: question for task in self.tasks for question in task.questions}

    def wave(self, question: Question, name: str) -> list[Ask]:
        """What a debate about a question begins with."""
        return call_protocol(self.protocol, self.protocol.wave, Debate(name, question, self.protocol))

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is made with, for whoever wants to make it again."""
        asks = self.wave(Question("prompts", "?", style=self.task[0].style), "prompts")
        prompts = "\n".join(message.text for ask in asks for message in ask.messages)
        texts = TEXTS | dict(self.protocol.prompts)  # also those of later rounds
        prompts += "".join(f"\n{name}\n{text}" for name, text in texts.items())
        if isinstance(self.protocol, Parallel) and (self.config.debate.personas or self.protocol.temperature != 1):
            prompts += repr((self.protocol.personas, self.protocol.temperature))
        facts: dict[str, Any] = {
            "format": 1,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"python": platform.python_version()} | _versions(),
            "seed": self.config.keep.seed,
            "model": self.config.engine.model,
            "task": self.task.name,
            "questions": len(self.task),
            "questions_sha256": fingerprint([self.task[i] for i in range(len(self.task))]),
            "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
        }
        if self.opponents:
            facts |= self.opponents.facts(self.config.engine)
        if any(lesson.debate.turns for lesson in self.lessons):  # else a teacher says it
            facts["lessons_sha256"] = lessons_sha256(self.lessons)
        return facts


def plan_run(config: TrainConfig, warn: Warn = lambda _: None) -> Plan:
    """Check everything that can be checked without a model. What the settings name of somebody's own is imported: they must
    be a person's, not a folder's.
    """
    _ = config.learn.reward.function, config.keep.own
    if is_import_path(config.debate.protocol):
        own_protocol(config.debate.protocol)
    engine = engine_of(config.engine)
    apart = config.held_out
    asked, size = apart.eval_questions, config.learn.batch
    tasks, held_out = open_tasks(config.task, config.keep.seed, held_out=asked, eval_name=apart.eval_task, at_least=size)
    task, ids = joined_tasks(tasks), {task.name: [question.id for question in task.questions] for task in tasks}
    if len(tasks) > 1 or config.curriculum != CurriculumRules():
        check_curriculum(config.curriculum, ids, size)
    else:
        next_in_epoch(ids[task.name], size, config.keep.seed, 0)  # refuses a batch of more questions than there are
    if apart.eval_debates > asked:
        raise UserError(f"eval_debates: {apart.eval_debates} is more than eval_questions; give at most that")
    notes = [left_out(task), left_out(held_out)]
    if (count := len(held_out)) < asked:
        notes.append(f"eval_questions: {count} of {held_out.name} are held out, not {asked}: it has no more to spare")
    if (setting := config.learn.scores_tokens) and not engine.scores_tokens:
        raise UserError(f"{setting}: {engine.name} can't say how likely tokens are, which that needs; give 0 or constant")
    if config.learn.steps:
        _check_reward(config, task)
    with own_code(engine):
        engine.check(config.engine, config.update)
    protocol = config.debate.build(engine.temperature)
    warm, learn = config.warm, config.learn
    lessons = lessons_given(config, task, protocol, warn) if warm.wanted or warm.warm_from is not None else []
    opponents = plan_opponents(config) if learn.opponents or learn.judge is not None else None
    if config.learn.steps and not can_vote(protocol) and not _learns_without_votes(config):
        more = "agents 3" if protocol.agents < 3 else "max_rounds 2"
        notes.append(
            f"agents: nobody is shown two others, so nobody can vote, and form alone is rewarded; give {more} or more"
        )
    if config.learn.steps and learn.reward.votes == "majority" and protocol.agents < 3:
        notes.append("agents: of two answers that differ neither is the most frequent; give agents 3 or more")
    return Plan(config, protocol, tasks, task, held_out, lessons, opponents, tuple(filter(None, notes)))


def _check_reward(config: TrainConfig, task: Task) -> None:
    """Refuse a reward that this task or protocol leaves without anything to go by."""
    rules = config.learn.reward
    if rules.needs_truth and not task.known:
        given = next(iter(rules.in_force(0, 1)))
        raise UserError(f"{given}: nobody knows what is right in {task.name}; leave it out, or take a task with answers")
    if rules.votes == "shuffled" and config.learn.center != "group":
        raise UserError(
            f"center: with {config.learn.center} shuffled votes still tell which debates are agreed on; give --center group"
        )
    if rules.votes == "majority" and all(task[index].style.find is None for index in range(len(task))):
        raise UserError(f"votes: answers to {task.name} have no final value that could be in the majority; take peer")
    if config.learn.judge is not None and rules.votes in ("majority", "none"):
        raise UserError(f"judge: its votes count where votes do, and with votes {rules.votes} none do; take peer")
    nobody_votes = config.debate.protocol == "direct" or (config.debate.protocol == "ballot" and config.debate.agents < 3)
    if nobody_votes and not _learns_without_votes(config):
        raise UserError(
            f"protocol: in {config.debate.protocol} of {config.debate.agents} nobody votes, so there is nothing to learn "
            "from; give --truth-weight 1, --votes majority or a --judge, or take --protocol ballot with 3 agents or more"
        )


def _learns_without_votes(config: TrainConfig) -> bool:
    """Whether the reward has something else to go by than the debaters' votes."""
    rules = config.learn.reward
    other = rules.needs_truth or rules.votes == "majority" or is_import_path(rules.reward)
    return other or config.learn.judge is not None


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in ("peergrad", "numpy", "tinker", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def start_of(config: TrainConfig, run: Run, checkpoint: Path | None) -> tuple[ModelRef, dict[str, Any]]:
    """The model that a run starts from, and what its folder is to say of it. A run with a checkpoint needs its base model
    alone, whatever became of the run or adapter that it started from.
    """
    engine, before = engine_of(config.engine), run.facts if run.resumable else {}
    if checkpoint:
        start = ModelRef(base_of(run), checkpoint)
        if start.base != config.engine.model:
            check_base(start, engine)
        return start, {}
    start = policy_of(config.engine)
    sha256 = weights_sha256(start, engine)
    if before.get("adapter_sha256", sha256) != sha256:
        why = f"{config.engine.model} is gone, or has learned since the run in {run.path} began"
        raise UserError(f"model: {why}; give another folder (out)")
    return start, {"base": start.base, "start": start.adapter and str(start.adapter), "adapter_sha256": sha256}


def check_start(plan: Plan) -> None:
    """Refuse, without loading a model, a folder or a model that the run could not start or resume with."""
    run = Run(plan.config.keep.folder)
    run.check(plan.config, plan.facts, plan.fixed)
    newest = run.newest() if run.resumable else None
    start_of(plan.config, run, newest[1] if newest else None)

"""The warm start of a run (SPEC 9.2): its lessons, and the updates on them; debates made into lessons (SPEC 9.7)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peergrad.config import TrainConfig, WarmConfig
from peergrad.debate.errors import UserError
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.question import Question
from peergrad.debate.types import Debate, Parsed, Turn
from peergrad.engines.registry import engine_of
from peergrad.learn.train import Stopped, self_play
from peergrad.learn.trainer import RETRIED, StepStats, Trainer, joined
from peergrad.learn.warm import Keep, Lesson, kept_turns, lesson_batch, lesson_data, updates_per_epoch
from peergrad.measure.counts import known_grades
from peergrad.measure.ending import ending
from peergrad.runs.files import Warn
from peergrad.runs.folder import Progress, Run
from peergrad.tasks.arithmetic import teacher
from peergrad.tasks.base import TASKS, Grade, Grader, Task
from peergrad.tasks.datasets import solved
from peergrad.tasks.files import is_kind_of_file, questions_of, rows, stem
from peergrad.tasks.open import gradable, regrade

if TYPE_CHECKING:
    from peergrad.runs.plan import Plan
    from peergrad.runs.training import Training

OWN = Path("own")
_OWN_DEBATES = "warm_000000"
_NOT = {"readable": "can be read", "right": "is known to be right", "won": "was said by an agent that won its debate"}


def lessons_given(config: TrainConfig, task: Task, protocol: BaseProtocol, warn: Warn) -> list[Lesson]:
    """The lessons of a warm start that are there before it begins: all but those of the model's own debates."""
    warm, questions = config.warm, [task[index] for index in range(len(task))]
    if not warm.wanted:
        raise UserError("warm_from: how long to learn from it is not said; give warm_epochs or warm_steps")
    if warm.warm_from == OWN:
        return []
    if warm.warm_from is None and (sums := [question for question in questions if question.dataset in TASKS]):
        say = teacher(config.keep.seed)
        return [Lesson(Debate(f"lesson/{q.id}", q, protocol), protocol=protocol, teacher=say) for q in sums]
    if warm.warm_from is None:
        debates, origin = [_answered(q) for q in questions if q.solution], "the task"
    else:
        debates, origin = _debates(warm.warm_from, questions, config.debate.agents, warn), str(warm.warm_from)
    if not debates:
        why = f"{origin} has nothing to learn from" if warm.warm_from else "the task has neither solutions nor a teacher"
        how = "give a transcript, a run, a file of solutions or own, or no warm start (warm_steps and warm_epochs 0)"
        raise UserError(f"warm_from: {why}; {how}")
    lessons: list[Lesson] = []
    for lesson in chosen(debates, warm.warm_keep, task, origin):
        agents = lesson.debate.agents
        alone = Direct(agents=agents, max_tokens=protocol.max_tokens, temperature=1.0, prompts=protocol.prompts)
        lessons.append(replace(lesson, protocol=alone if isinstance(lesson.debate.protocol, Direct) else protocol))
    random.Random(f"{config.keep.seed} lessons").shuffle(lessons)
    return lessons


def chosen(debates: Sequence[Debate], keep: Keep, task: Task, origin: str = "the model's own debates") -> list[Lesson]:
    """The debates that have turns worth learning from, with these turns. Where there are none, it is refused."""
    ours = {task[index].text for index in range(len(task))}

    def grade(question: Question, solution: str) -> Grade:
        return task.grade(question, solution) if question.text in ours else regrade(question, solution)

    def known(question: Question) -> bool:
        return question.known if question.text in ours else gradable(question)

    graded = known_grades(debates, grade, known) if keep == "right" else [None] * len(debates)
    lessons: list[Lesson] = []
    for debate, grades in zip(debates, graded, strict=True):
        turns = kept_turns(debate, keep, lambda index, grades=grades: grades[index].right if grades else None)
        if turns:
            lessons.append(Lesson(debate, frozenset((debate.turns[i].round, debate.turns[i].agent) for i in turns)))
    if not lessons:
        why = f"no turn of {origin} {_NOT[keep]} ({len(debates):,} debates)"
        raise UserError(f"warm_keep: {why}; give another warm_keep or warm_from, or more debates")
    return lessons


def lessons_sha256(lessons: Sequence[Lesson]) -> str:
    """A hash of what is said in lessons and of what is learned."""
    hashed = hashlib.sha256()
    for lesson in lessons:
        texts = [(turn.round, turn.agent, turn.text) for turn in lesson.debate.turns]
        hashed.update(repr((lesson.debate.question.text, texts, sorted(lesson.turns or ()))).encode(errors="replace"))
    return hashed.hexdigest()


def _debates(path: Path, questions: Sequence[Question], agents: int, warn: Warn) -> list[Debate]:
    """The debates of a run or a transcript, or a file's questions, each with its worked solution as the only turn.

    About a question of the task, the task's own is taken: a file has no payload and only the name of a style.
    """
    if _has_solutions(path):
        file = questions_of(rows(path), solved, stem(path), stem(path), str(path), skip_bad=False)
        debates = [_answered(question) for question in file.questions]
    else:
        debates = list(Run.any_debates(path, warn))
    wrong = next((d for d in debates if not isinstance(d.protocol, Direct) and d.protocol.agents != agents), None)
    if wrong:
        why = f"its debate {wrong.id} has {wrong.protocol.agents} agents, not {agents}"
        raise UserError(f"warm_from: {path} can't be learned from: {why}")
    by_text, styles = {q.text: q for q in questions}, {q.style: q.style for q in questions}
    others = (replace(d.question, style=styles.get(d.question.style, d.question.style)) for d in debates)
    return [replace(d, question=by_text.get(q.text, q)) for d, q in zip(debates, others, strict=True)]


def _has_solutions(path: Path) -> bool:
    """Whether a file holds questions with solutions, by its kind; where that says nothing, by its first line."""
    if not path.is_file() or path.suffix != ".jsonl":
        return path.is_file() and is_kind_of_file(path)
    with path.open("rb") as file:
        return b'"turns"' not in next((line for line in file if line.strip()), b'"turns"')


def _answered(question: Question) -> Debate:
    """A question and its worked solution, as said by somebody who was asked it alone."""
    assert question.solution
    return Debate(f"lesson/{question.id}", question, Direct(), (Turn(0, 0, question.solution, Parsed()),))


async def warm_start(training: Training, at: Progress) -> Progress:
    """Have the policy learn from the lessons, a batch at a time. Returns the progress after the last."""
    warm, trainer, watch = training.config.warm, training.trainer, training.watch
    skipped = [line.get("warm/skipped") for line in training.run.metrics() if line["phase"] == "warm"]
    bad = len(list(takewhile(bool, reversed(skipped))))  # in a row
    if not training.plan.lessons:
        training.plan = replace(training.plan, lessons=await _sampled_lessons(training, at))
    lessons = training.plan.lessons
    updates = warm.updates(len(lessons))
    for index in range(at.warm, updates):
        watch.begin("warm start", updates, at)
        started = time.monotonic()
        stats, learned = await lesson_update(trainer, lessons, warm, index)
        bad = bad + 1 if stats.skipped else 0
        at = Progress(0, index + 1)
        metrics = {"warm/loss": stats.loss, "warm/skipped": float(stats.skipped), "lr": warm.warm_lr}
        metrics |= {"time/train_s": time.monotonic() - started} | learned
        metrics["warm/epoch"] = (index + 1) / updates_per_epoch(len(lessons), warm.warm_debates)
        if RETRIED in stats.metrics:
            metrics["warm/retried"] = stats.metrics[RETRIED]
        await training.count_updates(at, stats, "cross_entropy", warm.warm_lr)
        training.log(at, "warm", metrics)
        await training.save(at)
        if bad >= training.config.learn.stop_after_bad:
            raise Stopped(
                f"{bad} updates of the warm start in a row were not finite; the last: {stats.faults[-1].why}. "
                "Try a lower warm_lr"
            )
    return at


async def lesson_update(
    trainer: Trainer, lessons: Sequence[Lesson], warm: WarmConfig, index: int
) -> tuple[StepStats, dict[str, float]]:
    """An update of the warm start, and of how much it was made."""
    data, turns, tokens = lesson_data(trainer, lesson_batch(lessons, warm.warm_debates, index))
    if not turns:
        raise UserError("warm_from: no turn of its debates keeps to this run's contract and fits the model's context")
    stats = joined([await trainer.step(data, "cross_entropy", warm.warm_lr)])
    assert stats is not None
    trained = float(sum(map(len, data)))
    return stats, {"tokens/trained": trained, "warm/turns": float(turns), "warm/tokens": float(tokens)}


async def _sampled_lessons(training: Training, at: Progress) -> Sequence[Lesson]:
    """Sample debates to learn from, and choose. They are saved first, so that a resumed run learns from the same."""
    plan, run, watch, engine = training.plan, training.run, training.watch, training.config.engine
    questions = plan.first(plan.config.warm.warm_sample)
    if not run.saved_debates(_OWN_DEBATES):
        watch.begin("sampling", len(questions), at)
        play = self_play(plan.protocol, lambda _: questions, done=watch.debate, **engine_of(engine).batching(engine))
        run.save_debates(_OWN_DEBATES, await play(-1, await training.trainer.sampler()))
    lessons = await asyncio.to_thread(own_lessons, plan, run)
    turns = sum(len(lesson.turns or ()) for lesson in lessons)
    watch.say(f"warm start: {turns:,} turns of {len(lessons):,} debates to learn from (warm_keep)")
    return lessons


def own_lessons(plan: Plan, run: Run) -> Sequence[Lesson]:
    """What the model learns from in its own debates; nothing if they are still to be sampled."""
    saved = run.saved_debates(_OWN_DEBATES)
    try:
        return chosen(saved.debates, plan.config.warm.warm_keep, plan.task) if saved else ()
    except UserError as error:
        raise Stopped(str(error)) from None


def distilled(debate: Debate, grade: Grader, known: Callable[[Question], bool]) -> dict[str, Any] | None:
    """The question and the winner's final answer to it; ``None`` without a winner, or if its answer can't be found."""
    end, question = ending(debate), debate.question
    solution = None if end.winner is None else end.finals[end.winner].solution
    to_be_found = question.style.find and question.answer is not None
    if not solution or (to_be_found and not question.style.answer(solution)):
        return None
    right = grade(question, solution).right if known(question) else None
    row = {"id": question.id, "question": question.text, "answer": question.answer, "solution": solution}
    return row | {"right": right, "decided_by": end.by, "debate": debate.id}

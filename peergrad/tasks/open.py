"""From a task's name to its questions."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.types import Question
from peergrad.tasks.arithmetic import Arithmetic
from peergrad.tasks.base import Grade, Task
from peergrad.tasks.datasets import DATASETS
from peergrad.tasks.files import Questions, questions_of, read_questions
from peergrad.tasks.grading import grade
from peergrad.tasks.hub import hub_rows
from peergrad.tasks.own import is_own_task, own_task
from peergrad.tasks.rows import KINDS, rows, stem

BUILT_IN = ("arithmetic",)


@dataclass(frozen=True, slots=True)
class TaskRules:
    """What is needed to open a task besides its name."""

    level: int = 1
    question_field: str = "question"
    answer_field: str = "answer"
    skip_bad: bool = False
    seed: int = 0


def open_task(
    name: str, rules: TaskRules, *, held_out: int = 0, eval_name: str = "", may_import: bool = True
) -> tuple[Task, Task]:
    """The questions to train on, and ``held_out`` others to evaluate on.

    The others are the first of ``eval_name``; without it, those of a split of their own, or the last of the task's.
    ``may_import`` must be false for names that a folder gives: a task of somebody's own is code.

    Example: ``open_task("gsm8k:train.jsonl", TaskRules(), held_out=64, eval_name="gsm8k:test.jsonl")``
    """
    if not may_import and (own := next(filter(is_own_task, (name, eval_name)), None)):
        raise UserError(f"task: {own!r} is somebody's code, which is not imported because a folder names it")
    if eval_name and not held_out:
        raise UserError("eval_questions: 0 leaves nothing of eval_task to evaluate on; give at least 1")
    if not eval_name and name in DATASETS and DATASETS[name].test and held_out:
        eval_name = name
    if eval_name:
        return _questions(name, rules, "train"), _first(_questions(eval_name, rules, "test"), held_out, eval_name)
    task = _questions(name, rules, "train")
    if isinstance(task, Arithmetic):
        return task, replace(task, count=held_out, seed=0, split="eval")
    if held_out >= len(task):
        raise UserError(f"eval_questions: {held_out} of the {len(task)} questions of {name} leave none to train on")
    cut = len(task) - held_out
    return replace(task, questions=task.questions[:cut]), replace(task, questions=task.questions[cut:], skipped=())


def open_questions(name: str, rules: TaskRules) -> Task:
    """All questions of a task, to evaluate on; of a dataset with splits, those of the test split."""
    return _questions(name, rules, "test")


def gradable(question: Question) -> bool:
    """Whether ``regrade`` can tell what is right: not without an answer, nor for a task of somebody's own."""
    return question.answer is not None and not is_own_task(question.dataset)


def regrade(question: Question, solution: str) -> Grade:
    """A grade for a solution to a saved question, by the dataset that it names; the dataset's file is not needed."""
    return (Arithmetic().grade if question.dataset in BUILT_IN else grade)(question, solution)


def left_out(task: Task) -> str:
    """A sentence about rows that were left out, if any were."""
    skipped = task.skipped if isinstance(task, Questions) else ()
    rows = "1 row" if len(skipped) == 1 else f"{len(skipped)} rows"
    return f"left out {rows} of {task.name}; the first: {skipped[0]}" if skipped else ""


def _first(task: Arithmetic | Questions, count: int, name: str) -> Task:
    if isinstance(task, Arithmetic):
        return replace(task, count=count)
    if count > len(task):
        raise UserError(f"eval_questions: {count} is more than the {len(task)} questions of {name}; give at most that")
    return replace(task, questions=task.questions[:count])


def _questions(name: str, rules: TaskRules, part: str) -> Arithmetic | Questions:
    """All questions of a built-in task, a known dataset (its split for ``part``, or its file), an own task, or any file."""
    if name in BUILT_IN:
        return Arithmetic(rules.level, seed=rules.seed) if part == "train" else Arithmetic(rules.level, split="eval")
    if name in DATASETS:
        dataset = DATASETS[name]
        split = dataset.train if part == "train" or not dataset.test else dataset.test
        return questions_of(hub_rows(dataset, split), dataset.read, name, f"{name}-{split}", name, rules.skip_bad)
    kind, colon, file = name.partition(":")
    if colon and kind in DATASETS:
        path = Path(file)
        return questions_of(rows(path), DATASETS[kind].read, kind, stem(path), file, rules.skip_bad)
    if is_own_task(name):
        return own_task(name)
    _check_file(name)
    return read_questions(Path(name), rules.question_field, rules.answer_field, skip_bad=rules.skip_bad)


def _check_file(name: str) -> None:
    """Refuse what is not even the name of a file, with what may have been meant."""
    known = (*BUILT_IN, *DATASETS)
    if not name:
        raise UserError(f"task: is not set; give a dataset ({', '.join(known)}), module:name of your own, or a {KINDS}")
    kind, colon, _ = name.partition(":")
    if colon and kind.isalnum() and not Path(name).exists():
        raise UserError(f"task: {kind!r} in {name!r} is no known dataset; {nearest(kind, tuple(DATASETS))}")
    if not Path(name).suffix and "/" not in name and name not in os.listdir():
        raise UserError(f"task: {name!r} is neither a known dataset nor a file; {nearest(name, known)}")

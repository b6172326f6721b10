"""From a task's name to its questions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.types import Question
from peergrad.tasks.arithmetic import Arithmetic
from peergrad.tasks.base import Grade, Task
from peergrad.tasks.files import Questions, read_questions

BUILT_IN = ("arithmetic",)


def open_task(
    name: str, *, level: int, question_field: str, answer_field: str, held_out: int, seed: int
) -> tuple[Task, Task]:
    """The questions to train on and ``held_out`` others to evaluate on: a built-in task, or a file's, its last held out."""
    if name in BUILT_IN:
        return Arithmetic(level, seed=seed), Arithmetic(level, count=held_out, split="eval")
    if not name:
        raise UserError("task: is not set; give a .jsonl or .csv file with one question a row, or 'arithmetic'")
    path = Path(name)
    if not path.suffix and "/" not in name and name not in os.listdir():
        raise UserError(f"task: {name!r} is neither built in nor a file; {nearest(name, BUILT_IN)}")
    task = read_questions(path, question_field, answer_field)
    if held_out >= len(task):
        raise UserError(f"eval_questions: {held_out} of the {len(task)} questions of {path} leave none to train on")
    cut = len(task) - held_out
    return Questions(task.name, task.questions[:cut]), Questions(task.name, task.questions[cut:])


def grader(dataset: str) -> Callable[[Question, str], Grade]:
    """How answers to a dataset's questions are graded, by the name that each of them carries; its file is not needed."""
    return Arithmetic().grade if dataset in BUILT_IN else Questions(dataset, ()).grade


def regrade(question: Question, solution: str) -> Grade:
    """A grade for a solution to a saved question."""
    return grader(question.dataset)(question, solution)

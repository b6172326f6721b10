"""A task of somebody's own by its import path: checked whole before a model is loaded."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.imports import imported, where_it_failed
from peergrad.debate.style import STYLES, Style
from peergrad.debate.types import Question
from peergrad.tasks.base import Grade, Grader
from peergrad.tasks.files import Questions
from peergrad.tasks.rows import is_kind_of_file

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_PARTS = ("name", "known", "__len__", "__getitem__", "grade")
_FIT = "a task has a name, known, len(task), task[index] and grade(question, solution)"


def is_own_task(name: str) -> bool:
    """Whether a name is an import path, and no file's. Example: ``my_task:Puzzles``."""
    return bool(_PATH.fullmatch(name)) and not is_kind_of_file(Path(name)) and not Path(name).exists()


def own_task(path: str) -> Questions:
    """The task ``path`` stands for: an object, or a class or function that makes one without arguments."""
    where, own = f"task: {path!r}", imported(path, "task")
    try:
        task: Any = own() if isinstance(own, type) or (callable(own) and not hasattr(own, "grade")) else own
        if missing := [part for part in _PARTS if not hasattr(task, part)]:
            raise UserError(f"{where}: {type(task).__name__} has no {missing[0]}; {_FIT}")
        name, known = task.name, task.known
        questions = tuple(task[index] for index in range(len(task)))
    except (UserError, EngineError):
        raise
    except Exception as error:  # somebody's own code
        raise UserError(f"{where}: failed ({where_it_failed(error)})") from error
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"{where}: name is {name!r}; give letters, digits, '.', '_' and '-', as metrics carry it")
    _check_questions(questions, known, where)
    # By this name they are known to be graded by nobody but this task.
    named = tuple(replace(question, dataset=path) for question in questions)
    return Questions(name, named, grader=_checked(task, where))


def _check_questions(questions: tuple[Any, ...], known: object, where: str) -> None:
    if not questions:
        raise UserError(f"{where}: has no questions")
    ids: set[str] = set()
    for index, question in enumerate(questions):
        at = f"{where}, question {index}"
        if not isinstance(question, Question):
            raise UserError(f"{at}: is {type(question).__name__}, not a Question")
        if not isinstance(question.id, str) or not question.id.isprintable() or question.id in {"", *ids}:
            raise UserError(f"{at}: its id is {question.id!r}; give each a text of its own")
        if not isinstance(question.text, str) or not isinstance(question.answer, str | None):
            raise UserError(f"{at}: its text must be text, and its answer text or None")
        if not isinstance(question.style, Style):
            raise UserError(f"{at}: its style is {question.style!r}; give a Style, or leave it out")
        if STYLES.get(question.style.name, question.style) is not question.style:
            raise UserError(f"{at}: its style is called as the built-in {question.style.name!r}; give another name")
        ids.add(question.id)
    if known is not any(question.known for question in questions):
        raise UserError(
            f"{where}: known is {known!r}, but {'no' if known else 'a'} question has an answer or a payload to grade it by"
        )


def _checked(task: Any, where: str) -> Grader:
    def grade(question: Question, solution: str) -> Grade:
        try:
            result = task.grade(question, solution)
        except (UserError, EngineError):
            raise
        except Exception as error:  # somebody's own code
            raise UserError(f"{where}: grade failed ({where_it_failed(error)})") from error
        if not isinstance(result, Grade) or not isinstance(result.answer, str | None):
            raise UserError(f"{where}: grade gave {result!r}; give a Grade, its answer text or None")
        return replace(result, correct=bool(result.correct))

    return grade

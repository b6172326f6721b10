"""From a task's name to its questions: built in, from the hub, of a file, or somebody's own, checked whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import nearest
from peergrad.debate.question import STYLES, Question, Style, own_styles
from peergrad.debate.settings import imported, where_it_failed
from peergrad.tasks.arithmetic import arithmetic, grade_sum
from peergrad.tasks.base import TASKS, Grade, Grader, Questions, Task
from peergrad.tasks.datasets import DATASETS, SUBJECTS, Selection, hub_rows
from peergrad.tasks.files import KINDS, is_kind_of_file, questions_of, read_questions, rows, stem
from peergrad.tasks.grading import grade
from peergrad.tasks.judging import JUDGING, judging_questions

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ARITHMETIC = re.compile(r"(arithmetic|sums)(?::level(\d{1,9}))?")
_PARTS = ("name", "known", "__len__", "__getitem__", "grade")
_FIT = "a task has a name, known, len(task), task[index] and grade(question, solution)"


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What is debated."""

    task: str = "arithmetic"
    """Arithmetic, or sums, the same with plain numbers as answers; a known dataset (gsm8k, math, aime, svamp, longwriter,
    mt-bench) or its file (gsm8k:PATH), any file, or module:name of your own; math also by subject and level
    (math:algebra:level1-3); judging:PATH asks which of two answers in a file is right. Several have commas between them."""
    question_field: str = "question"
    """The field or column of a file that holds the question."""
    answer_field: str = "answer"
    """The field or column that holds the answer; a file without it has no truth, and needs none."""
    skip_bad: bool = False
    """Leave out rows that can't be used and say how many, instead of stopping."""
    level: int = 1
    """Arithmetic and sums: from 1, single digits, to 5, two operations."""


def task_names(name: str) -> tuple[str, ...]:
    """The tasks that a name lists. With commas in it that are a file's own, it is one task."""
    return (name,) if "," not in name or _file_is_there(name) else tuple(part.strip() for part in name.split(","))


def is_here(name: str) -> bool:
    """Whether the questions of a task are built in or in a file that is there: nothing is fetched to read them."""
    return name.partition(":")[0] in TASKS or _file_is_there(name)


def _file_is_there(name: str) -> bool:
    """Whether a task is in a file that exists; what can't be a file's name is nobody's."""
    selection = Selection.of(name)
    try:
        return Path(selection.path if selection else name).exists()
    except (OSError, ValueError):
        return False


def open_task(
    config: TaskConfig, seed: int = 0, *, held_out: int = 0, eval_name: str = "", at_least: int = 1
) -> tuple[Task, Task]:
    """The questions to train on, and ``held_out`` others to evaluate on, or as many as there are.

    The others are the first of ``eval_name``; without it, those of a split of their own, or the last of the task's, of
    which ``at_least`` so many are left to train on.
    Names must be a person's, not a folder's: a task of somebody's own is code.

    Example: ``open_task(TaskConfig(task="gsm8k:train.jsonl"), held_out=64, eval_name="gsm8k:test.jsonl")``
    """
    tasks, others = open_tasks(config, seed, held_out=held_out, eval_name=eval_name, at_least=at_least)
    return joined_tasks(tasks), others


def open_tasks(
    config: TaskConfig, seed: int = 0, *, held_out: int = 0, eval_name: str = "", at_least: int = 1
) -> tuple[tuple[Questions, ...], Questions]:
    """As ``open_task``, with the tasks that are listed one by one. Of each as many questions are held out as of another; of
    several ``at_least`` one is left to train on.
    """
    if eval_name and not held_out:
        raise UserError("eval_questions: 0 leaves nothing of eval_task to evaluate on; give at least 1")
    names = task_names(config.task)
    counts = [0 if eval_name else (held_out + at) // len(names) for at in reversed(range(len(names)))]
    left = at_least if len(names) == 1 else 1
    opened = [_open_one(replace(config, task=name), seed, count, left) for name, count in zip(names, counts, strict=True)]
    tasks = _distinct([task for task, _ in opened])
    others = (
        _held_out(config, eval_name, held_out) if eval_name else joined_tasks(_distinct([others for _, others in opened]))
    )
    return tasks, others


def _open_one(config: TaskConfig, seed: int, held_out: int, at_least: int) -> tuple[Questions, Questions]:
    task = _questions(config, "train", seed)
    if _ARITHMETIC.fullmatch(config.task) or (held_out and _has_test_split(config.task)):
        return task, _held_out(config, config.task, held_out)
    cut = max(len(task) - held_out, min(at_least, len(task)))
    if held_out and cut == len(task):
        beside = f"the {len(task)} questions of {config.task} leave none to evaluate on beside the {at_least} to train on"
        how = f"give --batch {max(1, len(task) // 2)} or less, --eval-task, or --eval-questions 0 --eval-every 0"
        raise UserError(f"eval_questions: {beside}; {how}")
    return replace(task, questions=task.questions[:cut]), replace(task, questions=task.questions[cut:], skipped=())


def _has_test_split(name: str) -> bool:
    """Whether the hub has questions of a task apart to evaluate on."""
    selection = Selection.of(name)
    return selection is not None and not selection.path and DATASETS[selection.dataset].test is not None


def _held_out(config: TaskConfig, name: str, count: int) -> Questions:
    others = open_questions(replace(config, task=name), at_least=count)
    return replace(others, questions=others.questions[:count])


def open_questions(config: TaskConfig, *, at_least: int = 0) -> Questions:
    """All questions of a task, or of several, to evaluate on; of a dataset with splits, those of the test split."""
    names = task_names(config.task)
    return joined_tasks(_distinct([_questions(replace(config, task=name), "test", at_least=at_least) for name in names]))


def _distinct(tasks: Sequence[Questions]) -> tuple[Questions, ...]:
    """The same tasks; of several each has a name of its own, and the ids of its questions begin with it."""
    named: dict[str, Questions] = {}
    for task in tasks:
        numbered = (f"{task.name}-{number}" for number in count(2))
        name = next(name for name in chain([task.name], numbered) if name not in named)
        named[name] = _renamed(task, name)
    return tuple(named.values()) if len(tasks) > 1 else tuple(tasks)


def _renamed(task: Questions, name: str) -> Questions:
    def grade(question: Question, solution: str) -> Grade:
        return task.grade(replace(question, id=question.id.partition("/")[2]), solution)

    questions = tuple(replace(question, id=f"{name}/{question.id}") for question in task.questions)
    return replace(task, name=name, questions=questions, grade=grade)


def joined_tasks(tasks: Sequence[Questions]) -> Questions:
    """Several tasks as one, a question of each in turn."""
    if len(tasks) == 1:
        return tasks[0]
    by_dataset = {task[0].dataset: task for task in tasks if len(task)}
    places = sorted((index, at) for at, task in enumerate(tasks) for index in range(len(task)))
    return Questions(
        "+".join(task.name for task in tasks),
        tuple(tasks[at][index] for index, at in places),
        lambda question, solution: by_dataset.get(question.dataset, tasks[0]).grade(question, solution),
        tuple(why for task in tasks for why in task.skipped),
    )


def is_own_task(name: str) -> bool:
    """Whether a name is an import path, and no file's, or lists one. Example: ``my_task:Puzzles``."""
    return any(
        _PATH.fullmatch(one)
        and one.partition(":")[0] not in (*TASKS, *DATASETS)
        and not is_kind_of_file(Path(one))
        and not Path(one).exists()
        for one in task_names(name)
    )


def gradable(question: Question) -> bool:
    """Whether ``regrade`` can tell what is right: not without an answer, nor for a task of somebody's own."""
    return question.answer is not None and not is_own_task(question.dataset)


def regrade(question: Question, solution: str) -> Grade:
    """A grade for a solution to a saved question, by the dataset that it names; the dataset's file is not needed."""
    return (grade_sum if question.dataset in TASKS else grade)(question, solution)


def fingerprint(questions: Sequence[Question]) -> str:
    """A hash of all that is asked and of what it is graded by."""
    hashed = hashlib.sha256()
    for question in questions:
        hashed.update(repr((question.id, question.text, question.answer, question.style.name)).encode())
        if question.payload is not None:
            hashed.update(json.dumps(question.payload, default=dict).encode())
    return hashed.hexdigest()


def left_out(task: Task) -> str:
    """A sentence about rows that were left out, if any were."""
    skipped = task.skipped if isinstance(task, Questions) else ()
    rows = "1 row" if len(skipped) == 1 else f"{len(skipped)} rows"
    return f"left out {rows} of {task.name}; the first: {skipped[0]}" if skipped else ""


def _questions(config: TaskConfig, part: str, seed: int = 0, *, at_least: int = 0) -> Questions:
    """All questions of a built-in task, a known dataset (its split for ``part``, or its file), an own task, or any file."""
    name = config.task
    if made_up := _ARITHMETIC.fullmatch(name):
        kind, level = "sums" if made_up[1] == "sums" else "arithmetic", int(made_up[2] or config.level)
        count = 1000 if part == "train" else max(1000, at_least)
        sums = partial(arithmetic, level, count, name=kind)
        made = sums(seed) if part == "train" else sums(split="eval")
        return replace(made, name=name.replace(":", "-"))
    if chosen := Selection.of(name):
        dataset = DATASETS[chosen.dataset]
        if chosen.path:
            last = chosen.path.rpartition(":")[2]
            if chosen.dataset == "math" and not is_kind_of_file(Path(last)) and "/" not in last:
                known = nearest(last, (*SUBJECTS, "level1-3"))
                raise UserError(f"task: {last!r} in {name!r} is no subject, level or file; {known}")
            origin, label, numbered = chosen.path, stem(Path(chosen.path)), rows(Path(chosen.path))
        else:
            split = dataset.train if part == "train" or not dataset.test else dataset.test
            origin, label, numbered = name, f"{chosen.dataset}-{split}", hub_rows(dataset, split)
        return questions_of(chosen.rows(numbered), dataset.read, chosen.name, label, origin, config.skip_bad)
    kind, _, path = name.partition(":")
    if kind == JUDGING and not Path(name).exists():
        if not path:
            raise UserError(f"task: {JUDGING} needs a file of answers to judge; give {JUDGING}:PATH")
        return judging_questions(Path(path), skip_bad=config.skip_bad)
    if is_own_task(name):
        return _own_task(name)
    _check_file(name)
    return read_questions(Path(name), config.question_field, config.answer_field, skip_bad=config.skip_bad)


def _check_file(name: str) -> None:
    """Refuse what is not even the name of a file, with what may have been meant."""
    known = (*TASKS, *DATASETS)
    if not name:
        raise UserError(f"task: is not set; give a dataset ({', '.join(known)}), module:name of your own, or a {KINDS}")
    kind, colon, _ = name.partition(":")
    if colon and kind.isalnum() and not Path(name).exists():
        raise UserError(f"task: {kind!r} in {name!r} is no known dataset; {nearest(kind, tuple(DATASETS))}")
    if not Path(name).suffix and "/" not in name and name not in os.listdir():
        raise UserError(f"task: {name!r} is neither a known dataset nor a file; {nearest(name, known)}")


def _own_task(path: str) -> Questions:
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
    own_styles.update({question.style.name: question.style for question in named if question.style.name not in STYLES})
    return Questions(name, named, _checked(task, where))


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
        if not isinstance(question.solution, str | None):
            raise UserError(f"{at}: its solution must be text or None")
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

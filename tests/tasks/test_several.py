"""Several tasks in a list, and parts of math by subject and level."""

import json

import pytest

from peergrad import UserError
from peergrad.tasks.open import TaskConfig, is_own_task, open_questions, open_task, open_tasks, task_names

ROWS = [
    {"problem": "1?", "answer": "1", "subject": "Algebra", "level": 1},
    {"problem": "2?", "answer": "2", "type": "Counting & Probability", "level": "Level 2"},
    {"problem": "3?", "answer": "3", "type": "counting_and_probability", "level": "Level 3"},
    {"problem": "4?", "answer": "4", "subject": "Intermediate Algebra", "level": 3},
    {"problem": "5?", "answer": "5", "subject": "Algebra", "level": "Level 5"},
    {"problem": "6?", "answer": "6", "subject": "Algebra", "level": "Level ?"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def answers(task):
    return [task[index].answer for index in range(len(task))]


@pytest.mark.parametrize(
    ("parts", "chosen"),
    [
        ("", "123456"),
        (":algebra", "156"),
        (":level1-3", "1234"),
        (":level5", "5"),
        (":algebra:level1-3", "1"),
        (":level1-3:algebra", "1"),
        (":counting-probability:intermediate-algebra", "234"),
        (":counting-probability:level2:level5", "2"),
    ],
)
def test_math_by_subject_and_level(file, parts, chosen):
    task, _ = open_task(TaskConfig(task=f"math:{file}{parts}"))
    assert answers(task) == list(chosen)
    assert task.name == "math" + parts.replace(":", "-")
    assert task[0].id == f"x-{chosen[0]}"  # of the row, whatever else was chosen
    assert task.grade(task[0], rf"\boxed{{{chosen[0]}}}").correct


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("math:{file}:precalculus", "has no questions"),
        ("math:algbra", "'algbra' in 'math:algbra' is no subject, level or file; did you mean 'algebra'"),
        ("math:{file}:algebra:levels", "is no subject, level or file"),
        ("math:{plain}:level1", "line 1: has no field 'level', so it can't be chosen by level"),
        ("math:{plain}:algebra", "line 1: has no field 'subject' or 'type'"),
        ("arithmetic:level1,nothing.jsonl", "nothing.jsonl can't be read"),
    ],
)
def test_parts_that_are_not_there(file, tmp_path, name, sentence):
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"question": "1?", "answer": "1"}\n')
    with pytest.raises(UserError, match=sentence):
        open_task(TaskConfig(task=name.format(file=file, plain=plain)))


def test_rows_without_a_level_may_be_left_out(file):
    file.write_text(file.read_text() + '\n{"problem": "7?", "answer": "7"}')
    task, _ = open_task(TaskConfig(task=f"math:{file}:level1", skip_bad=True))
    assert answers(task) == ["1"]
    assert len(task.skipped) == 1


def test_a_list_of_tasks_and_a_file_with_a_comma(file, tmp_path):
    comma = tmp_path / "a,b.jsonl"
    comma.write_bytes(file.read_bytes())
    for name in (str(comma), f"math:{comma}", f"math:{comma}:level1-3:algebra"):
        assert task_names(name) == (name,)
        assert len(open_tasks(TaskConfig(task=name, question_field="problem"))[0]) == 1
    assert task_names("gsm8k, math:algebra,x.jsonl") == ("gsm8k", "math:algebra", "x.jsonl")


def test_tasks_have_names_ids_and_graders_of_their_own(file):
    config = TaskConfig(task=f"math:{file}:level1-3,math:{file}:level1-3,arithmetic:level2")
    tasks, others = open_tasks(config, held_out=4)
    assert [task.name for task in tasks] == ["math-level1-3", "math-level1-3-2", "arithmetic-level2"]
    assert [len(task) for task in tasks] == [2, 3, 1000]  # what is held out is less, where there is no split of its own
    assert tasks[1][0].id == "math-level1-3-2/x-1"
    assert len(others) == 4
    assert [question.id.partition("/")[0] for question in others.questions] == [
        "math-level1-3",
        "math-level1-3-2",
        "arithmetic-level2",
        "math-level1-3",
    ]
    joined, _ = open_task(config)
    assert len({question.id for question in joined.questions}) == len(joined) == 1008
    assert all(joined.grade(question, rf"\boxed{{{question.answer}}}").correct for question in joined.questions[:9])
    assert not joined.grade(joined[0], r"\boxed{-1}").correct


def test_evaluating_on_several_tasks_takes_of_each_in_turn(file):
    _, others = open_tasks(TaskConfig(task="arithmetic"), held_out=3, eval_name=f"arithmetic:level5,math:{file}")
    assert [question.id.partition("/")[0] for question in others.questions] == [
        "arithmetic-level5",
        "math",
        "arithmetic-level5",
    ]
    assert open_questions(TaskConfig(task=f"arithmetic:level5,math:{file}")).name == "arithmetic-level5+math"
    assert len(open_tasks(TaskConfig(task="arithmetic"), held_out=7, eval_name=f"math:{file}")[1]) == 6, "all there are"
    tasks, others = open_tasks(TaskConfig(task=f"math:{file},math:{file}"), held_out=64, at_least=4)
    assert ([len(task) for task in tasks], len(others)) == ([1, 1], 10)


def test_code_in_a_list_is_known_as_such():
    assert is_own_task("gsm8k,my_task:Puzzles")
    assert not is_own_task("math:algebra,gsm8k:train,arithmetic:level1,x.jsonl")


def test_several_tasks_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    paths = tmp_path / "a" / "x.jsonl", tmp_path / "b" / "x.jsonl", tmp_path / "c" / "x-2.jsonl"
    for path in paths:
        path.write_text('{"question": "1?", "answer": "1"}')
    tasks, _ = open_tasks(TaskConfig(task=",".join(map(str, paths))), 0)
    assert [task.name for task in tasks] == ["x", "x-2", "x-2-2"]


def test_names_that_can_not_be_files(file):
    with pytest.raises(UserError, match="level4-1 has no levels in it"):
        open_questions(TaskConfig(task=f"math:{file}:level4-1"))
    assert len(task_names(",".join(f"topic_{n:02}_train_split.jsonl" for n in range(12)))) == 12  # too long for one file

"""Datasets by name from their files, and what is held out."""

import gzip
import json

import pytest

from peergrad import UserError
from peergrad.tasks import files
from peergrad.tasks.datasets import DATASETS
from peergrad.tasks.open import TaskConfig, left_out, open_task

# A row as each is published, in every form that is about, and what becomes of it.
PUBLISHED = [
    ("gsm8k", {"question": "How many?", "answer": "She has 2 * 9 = <<2*9=18>>18.\n#### 1,018"}, "How many?", "1,018"),
    ("math", {"problem": "Find $x$.", "solution": r"\boxed{1} and \boxed{\frac{1}{2}}"}, "Find $x$.", r"\frac{1}{2}"),
    ("math", {"problem": "Find $x$.", "solution": r"\boxed{7}", "answer": r"\pi", "unique_id": "u"}, "Find $x$.", r"\pi"),
    ("aime", {"id": 60, "problem": "Find $n$.", "answer": "025", "year": "2024"}, "Find $n$.", "025"),
    ("aime", {"problem": "Find $n$.", "answer": 25}, "Find $n$.", "25"),
    (
        "svamp",
        {"ID": "chal-1", "Body": "He has 1 dog", "Question": "How many?", "Answer": "51.0"},
        "He has 1 dog. How many?",
        "51.0",
    ),
    ("svamp", {"Body": "He has 1 dog. ", "Question": "How many?", "Answer": 51.0}, "He has 1 dog. How many?", "51.0"),
    (
        "longwriter",
        {"messages": [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "…"}]},
        "Write.",
        None,
    ),
    ("mt-bench", {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]}, "First.", None),
    ("mt-bench", {"prompt": ["First.", "Second."], "reference": []}, "First.", None),
]


@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz", "json.gz"])
@pytest.mark.parametrize(("name", "row", "question", "answer"), PUBLISHED)
def test_rows_as_they_are_published(tmp_path, name, row, question, answer, ending):
    text = (
        json.dumps([row, row])
        if ending.startswith("json.") or ending == "json"
        else json.dumps(row) + "\n" + json.dumps(row)
    )
    path = tmp_path / f"part.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    task, _ = open_task(TaskConfig(task=f"{name}:{path}"))
    assert [one.id for one in task.questions] == ["part-1", "part-2"]
    assert (task[0].text, task[0].answer, task[0].dataset) == (question, answer, name)
    assert (task[0].style, task.known) == (DATASETS[name].style, answer is not None)
    if answer is not None:
        assert task.grade(task[0], rf"\boxed{{{answer}}}").correct


@pytest.mark.parametrize("name", DATASETS)
def test_rows_of_the_plain_shape(tmp_path, name):
    (tmp_path / "x.csv").write_text('id,question,answer\na,"One, two?",3\nb,Why?,4\n')
    task, _ = open_task(TaskConfig(task=f"{name}:{tmp_path / 'x.csv'}"))
    truth = DATASETS[name].style.name == "boxed"
    assert [(one.id, one.text, one.answer) for one in task.questions] == [
        ("a", "One, two?", "3" if truth else None),
        ("b", "Why?", "4" if truth else None),
    ]


def test_unicode_line_separators_and_other_ends_of_lines(tmp_path):
    (tmp_path / "x.jsonl").write_bytes('\ufeff{"question": "a\u2028b\u0085c"}\r\n\r\n{"question": "d"}'.encode())
    task, _ = open_task(TaskConfig(task=str(tmp_path / "x.jsonl")))
    assert [(one.id, one.text) for one in task.questions] == [("x-1", "a\u2028b\u0085c"), ("x-3", "d")]
    (tmp_path / "y.csv").write_bytes('question\r\n"a\u2028b\r\nc"\r\nd\r\n'.encode())
    task, _ = open_task(TaskConfig(task=str(tmp_path / "y.csv")))
    assert [(one.id, one.text) for one in task.questions] == [("y-1", "a\u2028b\r\nc"), ("y-2", "d")]


@pytest.mark.parametrize("ids", [["a", "a"], ["a", None], [1, 2], ["a", ""], ["a", "b\n"], ["a", "b" * 201]])
def test_ids_that_can_not_be_used_are_replaced(tmp_path, ids):
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"id": id, "question": "?"}) + "\n" for id in ids))
    task, _ = open_task(TaskConfig(task=str(tmp_path / "x.jsonl")))
    assert [one.id for one in task.questions] == ["x-1", "x-2"]


def test_a_file_called_as_a_built_in_task_is_not_taken_for_it(tmp_path):
    (tmp_path / "arithmetic.jsonl").write_text('{"question": "a", "answer": "5"}\n')
    task, _ = open_task(TaskConfig(task=str(tmp_path / "arithmetic.jsonl")))
    assert task[0].dataset == task.name == "arithmetic.jsonl"


def test_what_is_evaluated_on(tmp_path):
    for name, count in (("train", 6), ("test", 4)):
        rows = [{"question": f"{name} {n}?", "answer": str(n)} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train, test = f"gsm8k:{tmp_path / 'train.jsonl'}", f"gsm8k:{tmp_path / 'test.jsonl'}"
    task, held_out = open_task(TaskConfig(task=train), held_out=2)
    assert (len(task), [one.text for one in held_out.questions]) == (4, ["train 4?", "train 5?"])
    task, held_out = open_task(TaskConfig(task=train), held_out=2, eval_name=test)
    assert (len(task), [one.text for one in held_out.questions]) == (6, ["test 0?", "test 1?"])
    task, held_out = open_task(TaskConfig(task=train), held_out=3, eval_name="arithmetic")
    assert (held_out.name, len(held_out)) == ("arithmetic", 3)
    task, held_out = open_task(TaskConfig(task=train), held_out=64, at_least=4)
    assert (len(task), [one.text for one in held_out.questions]) == (4, ["train 4?", "train 5?"]), (
        "as many as it has to spare"
    )
    task, held_out = open_task(TaskConfig(task=train), held_out=64, eval_name=test)
    assert (len(task), len(held_out)) == (6, 4)
    for more, says in (
        (
            {"held_out": 1, "at_least": 6},
            "beside the 6 to train on; give --batch 3 or less, --eval-task, or",
        ),
        ({"eval_name": test}, "eval_questions: 0 leaves nothing of eval_task to evaluate on"),
        (
            {"held_out": 1, "eval_name": "gsm9k:x.jsonl"},
            "'gsm9k' in 'gsm9k:x.jsonl' is no known dataset; did you mean 'gsm8k'?",
        ),
    ):
        with pytest.raises(UserError) as caught:
            open_task(TaskConfig(task=train), **more)
        assert says in str(caught.value)


def test_rows_left_out_are_counted(tmp_path):
    (tmp_path / "x.csv").write_text("question,answer\na,1\n,2\nc,3\nd\n")
    task, _ = open_task(TaskConfig(task=str(tmp_path / "x.csv"), skip_bad=True))
    assert [one.id for one in task.questions] == ["x-1", "x-3"]
    assert task.skipped[0].endswith("x.csv, row 2, question: is empty; every row needs a question")
    assert left_out(task).startswith("left out 2 rows of x; the first: ")
    assert left_out(open_task(TaskConfig(task="arithmetic"))[0]) == ""


def test_mathematics_needs_math_verify_and_the_rest_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "installed", lambda: False)
    (tmp_path / "x.jsonl").write_text('{"question": "a", "answer": "$1,000"}\n{"question": "b", "answer": "Mrs. Lin"}\n')
    assert len(open_task(TaskConfig(task=str(tmp_path / "x.jsonl")))[0]) == 2
    (tmp_path / "y.jsonl").write_text('{"question": "a", "answer": "x^2"}\n')
    with pytest.raises(UserError) as caught:
        open_task(TaskConfig(task=str(tmp_path / "y.jsonl")))
    assert str(caught.value).endswith(
        "answers such as \"x^2\" can only be compared as mathematics; pip install 'math-verify>=0.8'"
    )

"""Files that can't be used: each gives its sentence, and none a traceback."""

import gzip
import json
import sys

import pytest

from peergrad.cli import main as cli
from tests.commands import peergrad

GOOD = b'{"question": "1 + 1?", "answer": "2"}\n'
KINDS = "give a .jsonl, .json or .csv file, or one of them with .gz on its end"
WHOLE = "the line is torn or not JSON; each line must be one whole JSON object"
CLOSE = "close every quote that is opened"
CELLS = "has another number of cells than the header; quote cells that hold commas"


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# How the task is named (FILE stands for the file), the file's name, what is in it, and what is said; {} is its path.
MALFORMED = [
    ("FILE", "a.jsonl", b"", "task: {} has no questions"),
    ("FILE", "a.jsonl", b"\n \n\r\n", "task: {} has no questions"),
    ("FILE", "a.jsonl", GOOD + b'{"quest', "{}, line 2, column 2: Unterminated string starting at; " + WHOLE),
    ("FILE", "a.jsonl", GOOD + b"not JSON", "{}, line 2, column 1: Expecting value; " + WHOLE),
    ("FILE", "a.jsonl", GOOD.strip() + GOOD, "{}, line 1, column 38: Extra data; " + WHOLE),
    ("FILE", "a.jsonl", b"[1]\n", "{}, line 1: [1] is not an object; each line must be one JSON object"),
    ("FILE", "a.jsonl", b"null\n", "{}, line 1: null is not an object; each line must be one JSON object"),
    ("FILE", "a.jsonl", GOOD + b'{"question": "\xff"}', "{}, line 2: not UTF-8 text (byte 14); save the file as UTF-8"),
    ("FILE", "a.jsonl", GOOD.decode().encode("utf-16"), "{}, line 1: not UTF-8 text (byte 0); save the file as UTF-8"),
    (
        "FILE",
        "a.jsonl",
        b"[" * 100_000,
        "{}, line 1: can't be read as JSON (maximum recursion depth exceeded while decoding a JSON array from a unicode"
        " string); each line must be one whole JSON object",
    ),
    ("FILE", "a.jsonl", b"{}\n", "{}, line 1: has no field 'question' (question_field); it has none"),
    (
        "FILE",
        "a.jsonl",
        lines({"questions": "a"}),
        "{}, line 1: has no field 'question' (question_field); did you mean 'questions'?",
    ),
    (
        "FILE",
        "a.jsonl",
        lines({"q": "a", "a": "b"}),
        "{}, line 1: has no field 'question' (question_field); it has 'q', 'a'",
    ),
    ("FILE", "a.jsonl", lines({"question": 3}), "{}, line 1, question: 3 is not text; write it in quotes"),
    ("FILE", "a.jsonl", lines({"question": None}), "{}, line 1, question: null is not text; write it in quotes"),
    ("FILE", "a.jsonl", lines({"question": " \n"}), "{}, line 1, question: is empty; every row needs a question"),
    (
        "FILE",
        "a.jsonl",
        b'{"question": "\\ud800"}',
        "{}, line 1, question: holds half a character (a lone surrogate); write it whole",
    ),
    (
        "FILE",
        "a.jsonl",
        lines({"question": "a", "answer": [1]}),
        "{}, line 1, answer: [1] is not text; write it in quotes",
    ),
    (
        "FILE",
        "a.jsonl",
        lines({"question": "a", "answer": True}),
        "{}, line 1, answer: true is neither text nor a number; write it in quotes",
    ),
    (
        "FILE",
        "a.jsonl",
        b'{"question": "a", "answer": NaN}',
        "{}, line 1, answer: NaN is neither text nor a number; write it in quotes",
    ),
    ("FILE", "a.json", b"[", "{}, line 1, column 2: Expecting value; the file is torn or not JSON; give a list of objects"),
    (
        "FILE",
        "a.json",
        b'[{"question": "a"},\n{"question": "b"',
        "{}, line 2, column 17: Expecting ',' delimiter; the file is torn or not JSON; give a list of objects",
    ),
    ("FILE", "a.json", b"[]", "task: {} has no questions"),
    ("FILE", "a.json", b'[{"question": "a"}, 7]', "{}, row 2: 7 is not an object; each row must be one JSON object"),
    ("FILE", "a.json", b'[{"question": "\xff"}]', "{}: not UTF-8 text (byte 15); save the file as UTF-8"),
    (
        "FILE",
        "a.json",
        b'{\n "question": "a"\n}',
        "{}, line 1, column 2: Expecting property name enclosed in double quotes; " + WHOLE,
    ),
    ("FILE", "a.csv", b"", "task: {} has no questions"),
    ("FILE", "a.csv", b"question,answer\n", "task: {} has no questions"),
    ("FILE", "a.csv", b"question,answer\na\n", "{}, row 1: " + CELLS),
    ("FILE", "a.csv", b"question,answer\nb,2\na,b,c\n", "{}, row 2: " + CELLS),
    ("FILE", "a.csv", b'question\n"a', "{}, row 1: is not CSV (unexpected end of data); " + CLOSE),
    ("FILE", "a.csv", b"question\n\xff\n", "{}: not UTF-8 text (byte 9); save the file as UTF-8"),
    ("FILE", "a.csv", b"question,answer\n,3\n", "{}, row 1, question: is empty; every row needs a question"),
    ("FILE", "a.csv", b"x,x\n1,2\n", "{}, header: has 'x' twice; give every column a name of its own"),
    (
        "FILE",
        "a.csv",
        b"question\n" + b"x" * 200_000,
        "{}, row 1: is not CSV (field larger than field limit (131072)); " + CLOSE,
    ),
    ("FILE", "a.csv", b"a;b\n1;2\n", "{}, row 1: has no field 'question' (question_field); it has 'a;b'"),
    ("FILE", "a.jsonl.gz", GOOD, "task: {} can't be unpacked (Not a gzipped file (b'{\"')); pack it again with gzip"),
    (
        "FILE",
        "a.jsonl.gz",
        gzip.compress(GOOD * 99, mtime=0)[:-9],
        "task: {} can't be unpacked (Compressed file ended before the end-of-stream marker was reached);"
        " pack it again with gzip",
    ),
    (
        "FILE",
        "a.csv.gz",
        gzip.compress(b"question,answer\na\n", mtime=0),
        "{}, row 1: " + CELLS,
    ),
    ("FILE", "a.parquet", GOOD, "task: {} is of no kind that can be read; " + KINDS),
    ("FILE", "a.txt.gz", gzip.compress(GOOD, mtime=0), "task: {} is of no kind that can be read; " + KINDS),
    ("FILE", "none/a.jsonl", None, "task: {} can't be read (No such file or directory); " + KINDS),
    ("gsm8k:FILE", "a.jsonl", lines({"question": "a"}), "{}, line 1: has no answer; every row of gsm8k needs one"),
    (
        "gsm8k:FILE",
        "a.jsonl",
        lines({"question": "a", "answer": "so ####"}),
        "{}, line 1: has no answer; every row of gsm8k needs one",
    ),
    (
        "math:FILE",
        "a.jsonl",
        lines({"prompt": "a"}),
        "{}, line 1: has no field 'problem' or 'question', so it is no row of math; it has 'prompt'",
    ),
    (
        "math:FILE",
        "a.jsonl",
        lines({"problem": "a", "solution": r"so \boxed{2"}),
        "{}, line 1, solution: has no \\boxed answer; give one, or a field for it",
    ),
    ("svamp:FILE", "a.json", b'[{"Body": "a", "Answer": 1}]', "{}, row 1, Question: is missing"),
    ("longwriter:FILE", "a.jsonl", lines({"messages": "a"}), '{}, line 1, messages: "a" is not a list'),
    (
        "longwriter:FILE",
        "a.jsonl",
        lines({"messages": [{"role": "system", "content": "a"}]}),
        "{}, line 1, messages: has no message of the role 'user'",
    ),
    ("longwriter:FILE", "a.jsonl", lines({"messages": [7]}), "{}, line 1, messages[0]: 7 is not an object"),
    ("mt-bench:FILE", "a.jsonl", lines({"turns": []}), "{}, line 1, turns: is empty; every row needs a question"),
    ("mt-bench:FILE", "a.jsonl", lines({"turns": [5]}), "{}, line 1, turns[0]: 5 is not text; write it in quotes"),
]


def given(tmp_path, task, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    return [
        "train",
        "--preset",
        "demo-parallel",
        "--dry-run",
        "--eval-questions",
        "0",
        "--eval-debates",
        "0",
        "--task",
        task.replace("FILE", str(path)),
    ], path


@pytest.mark.parametrize(("task", "name", "content", "says"), MALFORMED)
def test_a_malformed_file_gives_its_sentence(tmp_path, monkeypatch, capsys, task, name, content, says):
    args, path = given(tmp_path, task, name, content)
    monkeypatch.setattr(sys, "argv", ["peergrad", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"peergrad: {says.replace('{}', str(path))}\n")


@pytest.mark.parametrize("index", [2, 30, 37])
def test_the_same_through_the_real_command(tmp_path, index):
    task, name, content, says = MALFORMED[index]
    args, path = given(tmp_path, task, name, content)
    done = peergrad(*args, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"peergrad: {says.replace('{}', str(path))}\n")
    assert len({(task, name, content) for task, name, content, _ in MALFORMED}) >= 40


def test_bad_rows_can_be_left_out(tmp_path, monkeypatch, capsys):
    rows = GOOD * 30 + b'torn {\n{"question": ""}\n' + GOOD
    args, path = given(tmp_path, "FILE", "a.jsonl", rows)
    monkeypatch.setattr(sys, "argv", ["peergrad", *args, "--skip-bad", "--warm-steps", "0"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, errors = capsys.readouterr()
    assert (ended.value.code, errors) == (0, "")
    assert f"# left out 2 rows of a; the first: {path}, line 31, column 1: Expecting value; {WHOLE}\n" in out
    assert "times 31 questions" in out


def test_a_file_of_nothing_but_bad_rows_is_still_refused(tmp_path, monkeypatch, capsys):
    args, path = given(tmp_path, "FILE", "a.csv", b"question,answer\na\nb\n")
    monkeypatch.setattr(sys, "argv", ["peergrad", *args, "--skip-bad"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    says = f"peergrad: task: none of the 2 rows of {path} can be used; the first: {path}, row 1: {CELLS}\n"
    assert capsys.readouterr().err == says

"""Questions: the built-in sums, and people's files."""

import json
import re
from fractions import Fraction

import pytest

from peergrad import UserError
from peergrad.debate.ballot import Ballot
from peergrad.debate.types import Debate
from peergrad.tasks.arithmetic import LEVELS, arithmetic, teacher
from peergrad.tasks.base import Grade
from peergrad.tasks.files import read_questions
from peergrad.tasks.numbers import as_number
from peergrad.tasks.open import TaskConfig, fingerprint, open_task, regrade


@pytest.mark.parametrize("level", range(1, LEVELS + 1))
def test_sums_are_right_and_held_out_ones_are_apart(level):
    train, held = arithmetic(level), arithmetic(level, count=200, split="eval")
    asked, kept = {train[i].text for i in range(1000)}, {held[i].text for i in range(200)}
    assert not {"".join(sorted(text)) for text in asked} & {
        "".join(sorted(text)) for text in kept
    }  # nor the other way round
    for index in range(100):
        question = train[index]
        sum_ = question.text.removeprefix("What is ").removesuffix("?")
        assert re.fullmatch(r"[-+*() \d]+", sum_)
        assert eval(sum_) == int(question.answer)
        assert train.grade(question, rf"so \boxed{{{question.answer}}}") == Grade(True, question.answer)
        assert not train.grade(question, rf"\boxed{{{int(question.answer) + 1}}}").correct
        assert train.grade(question, f"1, 2 or {question.answer}.").correct
        assert not train.grade(question, rf"{question.answer}, no: \boxed{{x}}").format
    assert train.grade(train[0], "no number, 1.5, v2").answer is None
    assert arithmetic(level)[5] == train[5]
    assert fingerprint([train[0]]) != fingerprint([train[1]])


def test_plain_sums_are_those_of_arithmetic_without_a_box():
    (boxed, _), (plain, held) = (
        open_task(TaskConfig(task=f"{name}:level3"), 3, held_out=50) for name in ("arithmetic", "sums")
    )
    assert [question.text for question in plain.questions] == [question.text for question in boxed.questions]
    assert not {question.text for question in plain.questions} & {question.text for question in held.questions}
    question = plain[0]
    sum_ = question.text.removeprefix("What is ").removesuffix("?")
    assert "box" in boxed[0].style.instruction
    assert "box" not in question.style.instruction
    for said, found in ((f"{sum_} = {question.answer}.", question.answer), (f"{sum_} = {question.answer}0", None)):
        assert plain.grade(question, said).correct is regrade(question, said).correct is (found is not None)
        assert question.style.answer(said) == (found or f"{question.answer}0")
    assert question.style.answer("sixteen, or 1.5") is None
    debate = Debate("d", question, Ballot(agents=40))
    said = {teacher(0)(debate, ask) for ask in debate.protocol.wave(debate)}
    assert all(re.fullmatch(rf"{re.escape(sum_)} = -?\d+", line) for line in said)
    assert f"{sum_} = {question.answer}" in said


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        (" $1,234.50 ", Fraction(2469, 2)),
        ("-7", -7),
        ("\u22127", -7),
        (".5", Fraction(1, 2)),
        ("3.", 3),
        ("1,23", None),
        ("1/2", Fraction(1, 2)),
        ("", None),
        (".", None),
        ("4 2", None),
        ("9" * 10_000, None),
        ("\u0664\u0662", None),
    ],
)
def test_numbers(text, number):
    assert as_number(text) == number


def test_files(tmp_path):
    rows = [{"q": "1+1?", "a": 2}, {"q": "1+2?", "a": "3"}, {"q": "2+2?", "a": "$4.0$"}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    task = read_questions(tmp_path / "x.jsonl", "q", "a")
    assert [question.text for question in task.questions] == ["1+1?", "1+2?", "2+2?"]
    assert task.grade(task[2], r"\boxed{4}").correct
    (tmp_path / "y.csv").write_text('question,answer\n"a, b?","x  Y"\n"multi\nline",z\n')
    table = read_questions(tmp_path / "y.csv")
    assert [question.text for question in table.questions] == ["a, b?", "multi\nline"]
    assert table.grade(table[0], r"\boxed{X y}").correct
    (tmp_path / "open.jsonl").write_text('{"question": "Write a poem."}\n')
    essay = read_questions(tmp_path / "open.jsonl")
    assert not essay.known
    assert essay[0].style.name == "open"
    train, held = open_task(TaskConfig(task=str(tmp_path / "x.jsonl"), question_field="q", answer_field="a"), held_out=1)
    assert (len(train), len(held)) == (2, 1)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.jsonl", b"", "has no questions"),
        ("x.jsonl", b'{"question": "a"}\n{"quest', "line 2, column"),
        ("x.jsonl", b'{"questions": "a"}', "line 1: has no field 'question' (question_field); did you mean 'questions'?"),
        ("x.jsonl", b'{"question": 3}', "line 1, question: 3 is not text"),
        ("x.jsonl", b'{"question": "  "}', "question: is empty"),
        ("x.jsonl", b'{"question": "a", "answer": [1]}', "answer: [1] is not text"),
        ("x.jsonl", b'{"question": "\xff"}', "not UTF-8"),
        ("x.jsonl", b"[1]", "is not an object"),
        ("x.csv", b"question,answer\na\n", "row 1: has another number of cells"),
        ("x.csv", b"question,answer\na,b,c\n", "row 1: has another number of cells"),
        ("x.csv", b'question\n"a', "is not CSV"),
        ("x.csv", b"question\n\xff\n", "not UTF-8"),
        ("x.csv", b"question,answer\n,3\n", "question"),
    ],
)
def test_a_bad_row_is_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_questions(tmp_path / name)
    assert says in str(caught.value)


def test_the_teacher_keeps_to_the_contract():
    from peergrad import Parallel, score
    from peergrad.debate.types import Debate, Reply

    protocol, say = Parallel(agents=4, max_rounds=3), teacher(0)
    for index in range(20):
        debate = Debate(f"d{index}", arithmetic(2)[index], protocol)
        while wave := protocol.wave(debate):
            debate = debate.extend(wave, [Reply(say(debate, ask)) for ask in wave])
        scored = score(debate)
        assert not any(turn.parsed.error for turn in debate.turns)
        assert not scored.tally.missing
        assert not scored.tally.counts.malformed

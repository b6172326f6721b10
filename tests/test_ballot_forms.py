"""The benchmark of votes: its ballots are read, its prompts are not, and no answer has a better place than another."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.ballot_forms import (
    FORMS,
    SHOWN,
    Answer,
    asked_about,
    messages,
    read_choice,
    read_grades,
    read_letter,
    read_ranking,
    read_verdicts,
    rotated,
)
from peergrad import Question

ANSWERS = [Answer(f"It is \\boxed{{{value}}}.", value == 4, str(value), -0.5, False) for value in range(8)]


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("A: right\nB: wrong", (1.0, 0.0)),
        ("I say:\n**A**: Incorrect.\n- Answer B: correct", (0.0, 1.0)),
        ("A: right\nB: wrong\nNo, I was mistaken.\nA: wrong\nB: wrong", (0.0, 0.0)),
        ("A: right", None),
        ("A: <verdict>\nB: <verdict>", None),
        ("A: rightly so\nB: wrong", None),
        ("A and B: right", None),
        ("", None),
    ],
)
def test_verdicts(text, points):
    assert read_verdicts(text, 2) == points


def test_grades():
    assert read_grades("A: 5\nB: 2 (weak)", 2) == (5.0, 2.0)
    assert read_grades("A: 55\nB: 2", 2) is None
    assert read_grades("A: 0\nB: 2", 2) is None


def test_ranking():
    assert read_ranking("First thoughts.\nRanking: B > A = C", 3) == (-1.0, 0.0, -1.0)
    assert read_ranking("ranking: b > a > c", 3) == (-1.0, 0.0, -2.0)
    assert read_ranking("Ranking: B > A", 3) is None
    assert read_ranking("Ranking: B > A > A > C", 3) is None
    assert read_ranking("Ranking: <letters>", 3) is None
    assert read_ranking("Ranking: B < A < C", 3) is None


def test_choice():
    assert read_choice("A is fine. Better: A\nBetter: B", 2) == (0.0, 1.0)
    assert read_choice("Better: C", 2) is None
    assert read_choice("Better: <letter>", 2) is None
    assert read_letter(" **B**, because", 2) == (0.0, 1.0)
    assert read_letter("I would say\nB", 2) is None


@pytest.mark.parametrize("agents", range(2, 10))
def test_every_answer_stands_at_every_place_equally_often_and_never_before_its_author(agents):
    for seed in map(str, range(20)):
        shown = rotated(agents, SHOWN, seed)
        assert all(voter not in answers and len(set(answers)) == len(answers) for voter, answers in enumerate(shown))
        for place in zip(*shown, strict=True):
            assert Counter(place) == dict.fromkeys(range(agents), 1)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("own", [None, ANSWERS[7]])
def test_no_prompt_reads_as_a_ballot(name, own):
    form = FORMS[name]
    for part in asked_about(form, (1, 2, 3, 4)):
        for message in messages(form, Question("q", "What is 2 + 2?", "4", "boxed"), ANSWERS, part, own):
            assert form.read is None or form.read(message.text, len(part)) is None
            assert "{" not in message.text.replace("\\boxed{", "")


def test_pairs_are_asked_in_both_orders():
    parts = asked_about(FORMS["soft"], (1, 2, 3, 4))
    assert len(parts) == 12
    assert {part[::-1] for part in parts} == set(parts)

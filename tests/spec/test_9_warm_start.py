"""What a warm start learns from: which turns, in which order, and what rows and debates become (SPEC 9.2, 9.7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peergrad.debate.ballot import Ballot
from peergrad.debate.fields import Field
from peergrad.debate.question import BOXED, Question
from peergrad.learn.warm import Lesson, kept_turns, lesson_batch, lesson_data, updates_per_epoch, winners
from peergrad.reward.pairwise import win_rate
from peergrad.reward.tally import tally
from peergrad.tasks.datasets import worked_solution
from tests.helpers import parallel, played
from tests.test_properties import build, said


@given(said(), st.data())
def test_9_7_what_is_kept(spoken, data):  # SPEC 9.7
    debate = build(*spoken)
    truth = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(debate.turns), max_size=len(debate.turns)))
    kept = {keep: kept_turns(debate, keep, truth.__getitem__) for keep in ("readable", "right", "won")}
    readable = [index for index, turn in enumerate(debate.turns) if turn.parsed.error is None]
    assert kept["readable"] == tuple(readable)
    assert kept["right"] == tuple(index for index in readable if truth[index] is True)
    rates = win_rate(debate.agents, tally(debate).votes)
    best = max((rates[debate.turns[index].agent] for index in readable), default=0.0)
    won = [index for index in readable if best > 0.5 and rates[debate.turns[index].agent] == best]
    assert kept["won"] == tuple(won)
    assert {debate.turns[index].agent for index in won} == set(winners(debate))


def test_9_7_a_turn_of_choices_has_no_words_to_learn():  # SPEC 9.7
    question = Question("q", "What is 17 + 25?", "42", BOXED)
    debate = played(
        Ballot(agents=3), lambda _: "\\boxed{42}", question, lambda _, options: [1 / len(options)] * len(options)
    )
    assert len(debate.turns) == 6
    assert kept_turns(debate, "readable", lambda _: True) == kept_turns(debate, "right", lambda _: True) == (0, 1, 2)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_9_2_every_lesson_once_an_epoch(count, size, epoch):  # SPEC 9.2
    lessons = [Lesson(parallel(2, ["N/A", "N/A"], id=f"d{index}")) for index in range(count)]
    updates = updates_per_epoch(count, size)
    shown = [lesson_batch(lessons, size, epoch * updates + update) for update in range(updates)]
    assert [lesson.debate.id for batch in shown for lesson in batch] == [f"d{index}" for index in range(count)]
    assert all(len(batch) == size for batch in shown[:-1])


def test_9_2_the_mean_is_over_the_tokens_that_count():  # SPEC 9.2
    class Short:
        context = 10**6

    class Tiny:
        context = 1

    question = Question("q", "What is 17 + 25?")
    debate = played(Ballot(agents=4, ballot_form="pairs"), lambda ask: "no" * (ask.agent + 1), question)
    chosen = frozenset({(0, 1), (0, 3)})
    data, turns, tokens = lesson_data(Short(), [Lesson(debate, chosen)])
    by_hand = [len(debate.turns[index].tokens.ids_T) for index in (1, 3)]
    assert (turns, tokens) == (2, sum(by_hand))
    assert [datum.agent for datum in data] == [1, 3]
    for datum, count in zip(data, by_hand, strict=True):
        assert datum.advantages_T[datum.mask_T > 0].tolist() == pytest.approx([1 / sum(by_hand)] * count)
    assert lesson_data(Tiny(), [Lesson(debate, chosen)]) == ([], 0, 0)


@pytest.mark.parametrize(
    ("row", "answer", "solution"),
    [
        ({"answer": "He has 48/2 = <<48/2=24>>24.\n#### 24"}, "24", "He has 48/2 = 24.\n\\boxed{24}"),
        ({"answer": "24", "solution": "It is $<<1+1=2>>2.\n"}, "24", "It is $2.\n\\boxed{24}"),
        ({"solution": "So $\\boxed{\\frac12}$ it is."}, "1/2", "So $\\boxed{\\frac12}$ it is."),
        ({"solution": "Once upon a time."}, None, "Once upon a time."),
        ({"solution": "a << b and b >> c"}, None, "a << b and b >> c"),
        ({"answer": "24"}, "24", None),
        ({"solution": 24, "answer": 24}, "24", None),
        ({"solution": "x" * 100_001}, None, None),
    ],
)
def test_9_2_worked_solutions(row, answer, solution):  # SPEC 9.2
    assert worked_solution(Field(row, "file"), answer) == solution

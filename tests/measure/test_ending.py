"""Who won, from the transcript alone; and a judge (SPEC 9.6)."""

import asyncio

import pytest

from peergrad import Parallel, Question, Sequential, dump, load, play
from peergrad.debate.judge import JUDGE, judge_asks, read_verdict
from peergrad.debate.types import Turn
from peergrad.engines.scripted import Scripted
from peergrad.measure.ending import as_object, ending, used
from peergrad.reward.rewards import score
from peergrad.reward.tally import verdict_votes
from peergrad.tasks.files import lines_of, typed_questions
from tests.helpers import full, parallel, short
from tests.hostile.corpus import ATTEMPTS

NONE = ("N/A", "N/A", "N/A")


def boxed(*answers, rounds=1):
    """A debate without votes."""
    turns = [
        {"agent": agent, "text": "hm" if answer is None else short(solution=f"\\boxed{{{answer}}}")}
        for _ in range(rounds)
        for agent, answer in enumerate(answers)
    ]
    return parallel(len(answers), turns=turns)


def test_the_best_win_rate_wins():
    end = ending(parallel(3, NONE, ("Agent 1 > Agent 2", "Agent 0 = Agent 2", "Agent 1 > Agent 0")))
    assert (end.winner, end.winners, end.by) == (1, (1,), "votes")
    assert [final.win_rate for final in end.finals] == [0.25, 1.0, 0.25]
    assert [(final.won, final.tied, final.lost) for final in end.finals] == [(0, 1, 1), (2, 0, 0), (0, 1, 1)]


def test_ties_are_named():
    end = ending(parallel(3, NONE, ("Agent 1 = Agent 2", "N/A", "N/A")))
    assert (end.winner, end.winners, end.by) == (None, (1, 2), "votes")
    assert as_object(end, ["m"] * 3)["answer"] is None


def test_ties_on_the_same_answer_have_a_winner():
    line = boxed(7, 8, 8, rounds=2)
    turns = [{"agent": turn.agent, "text": turn.text} for turn in line.turns]
    turns[3] = {"agent": 0, "text": short("Agent 1 = Agent 2", "\\boxed{7}")}
    end = ending(parallel(3, turns=turns))
    assert (end.winner, end.winners, end.by) == (1, (1, 2), "votes")


def test_nobody_wins_whom_nobody_can_read():
    end = ending(parallel(3, (None, "N/A", None), ("Agent 2 > Agent 1", None, None)))
    assert (len(end.votes), end.by, end.winners) == (1, "nothing", ())  # agent 2 has the vote, but no answer
    end = ending(parallel(3, (None, None, None)))
    assert (end.winner, end.winners, end.by) == (None, (), "nothing")


@pytest.mark.parametrize(
    ("answers", "winners"),
    [
        (("7", "7.0", "8"), (0, 1)),
        (("Yes", "no", "yes."), (0, 2)),
        (("7", "8", "9"), ()),
        (("7", "7", "8", "8"), ()),
        ((None, "8", None), (1,)),
        (("1,000", None, "1000"), (0, 2)),
    ],
)
def test_without_votes_the_most_frequent_answer_wins(answers, winners):
    end = ending(boxed(*answers))
    assert (end.winners, end.by) == (winners, "answers" if winners else "nothing")
    assert end.winner == (winners[0] if winners else None)


def test_open_answers_without_votes_are_not_compared():
    assert ending(parallel(3, NONE)).by == "nothing"
    assert ending(parallel(1, ("N/A",))).winner == 0  # alone


def test_the_final_solution_is_the_last_that_can_be_read():
    end = ending(parallel(3, NONE, ("N/A", None, "N/A")))
    assert [final.round for final in end.finals] == [1, 0, 1]
    assert [final.last for final in end.finals] == [True, False, True]


def verdict(text, protocol=None, said=short):
    sampler = Scripted(lambda ask: text if ask.agent == 3 else said(solution=f"answer of {ask.agent}"))
    return asyncio.run(play(protocol or Parallel(max_rounds=2), Question("q", "?"), sampler, judge_tokens=5000))


JUDGED = (
    "<evaluation>2 is best.</evaluation><comparison>Agent 2 > Agent 0\nAgent 2 > Agent 1\nAgent 0 = Agent 1</comparison>"
)


@pytest.mark.parametrize(("protocol", "said"), [(Parallel(max_rounds=2), short), (Sequential(max_rounds=2), full)])
def test_a_judge_decides(protocol, said):
    debate = verdict(JUDGED, protocol, said)
    assert len(debate.turns) == 6
    assert (debate.verdict.agent, debate.verdict.seen) == (3, 6)
    end = ending(debate)
    assert (end.winner, [final.win_rate for final in end.finals]) == (2, [0.25, 0.25, 1.0])
    assert [(vote.author, vote.turn, vote.judged) for vote in end.votes] == [(3, 6, (5, 3)), (3, 6, (5, 4)), (3, 6, (3, 4))]
    assert used(debate).sampled == sum(turn.used.sampled for turn in (*debate.turns, debate.verdict))
    assert load(dump(debate)) == debate
    assert load(dump(debate, thin=True), thin=True).verdict.parsed == debate.verdict.parsed
    assert verdict_votes(load(dump(debate), thin=True)) == verdict_votes(debate)


def test_rewards_do_not_count_a_verdict():
    debate = verdict(JUDGED)
    assert score(debate).tally.votes == ()
    assert [stream.values for stream in score(debate).streams] == [(None,) * 6, (None,) * 6, (0, 0, 0, -0.5, -0.5, -0.5)]


def test_a_judge_sees_final_solutions_and_nothing_else():
    (ask,) = judge_asks(parallel(3, NONE, ("Agent 1 > Agent 2", None, "Agent 0 > Agent 1")), 50)
    shown = ask.messages[1].text
    assert shown.count("final answer:\n| solution: 42") == 3
    assert " > " not in shown
    assert "fine" not in shown
    assert (ask.agent, ask.turn, ask.stop, ask.temperature) == (3, 6, (JUDGE.stop,), 0.0)
    assert judge_asks(parallel(3, (None, "N/A", None)), 50) == []  # nothing to compare


@pytest.mark.parametrize(
    ("comparison", "votes"),
    [
        ("Agent 3 > Agent 0", []),  # the judge itself
        ("Agent 0 > Agent 0\nAgent 0 > Agent 9", []),
        ("Agent 0 > Agent 1\n" * 50, [(0, ">", 1)]),
        ("Agent 0 > Agent 1\nAgent 1 > Agent 0", []),
        ("Agent 1 < Agent 2", [(2, ">", 1)]),
    ],
)
def test_a_judges_votes_are_counted_like_others(comparison, votes):
    debate = verdict(f"<evaluation>x</evaluation><comparison>{comparison}</comparison>")
    assert [(vote.a, vote.op, vote.b) for vote in verdict_votes(debate)] == votes


def test_an_unreadable_verdict_is_data():
    debate = verdict("I refuse.")
    assert str(debate.verdict.parsed.error) == "missing <evaluation>"
    assert ending(debate).by == "nothing"
    assert load(dump(debate)) == debate


def test_a_judge_is_told_nothing_by_hostile_solutions():
    for attempt in ATTEMPTS[::7]:
        debate = parallel(3, turns=[{"agent": agent, "text": attempt.short} for agent in range(3)])
        for ask in judge_asks(debate, 50):
            ours = ("Question:", "What is 17", "Agent ", "| ", "Evaluate the answers of Agent", "")
            lines = ask.messages[1].text.split("\n")
            assert all(line.startswith(ours[:5]) or not line for line in lines), attempt
            assert sum(line.startswith("Agent ") for line in lines) == 3


def test_typed_questions_keep_their_names():
    asked = typed_questions(["What is 17 + 25?", " ", "b?", "b? "], "boxed", "x")
    assert [question.id for question in asked] == [asked[0].id, asked[1].id, f"{asked[1].id}-2"]
    assert asked[0] == typed_questions(["What is 17 + 25?"], "boxed", "x")[0]
    assert asked[0].id.startswith("what-is-17-25-")
    assert lines_of("\ufeffa\nb\u2028c\n".encode(), "x") == ["a", "b\u2028c", ""]


def test_a_verdict_is_a_turn_of_nobody():
    assert isinstance(read_verdict(JUDGED).votes, tuple)
    assert Turn(3, 0, "", read_verdict("")).parsed.error

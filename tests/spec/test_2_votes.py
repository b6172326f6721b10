"""SPEC 2: votes."""

from dataclasses import replace

import pytest

from peergrad.debate.contract import read_votes
from peergrad.reward.rewards import RewardRules, score
from peergrad.reward.tally import cast_votes, tally
from tests.helpers import parallel, sequential

NONE = ("N/A", "N/A", "N/A")


def votes(text):
    return list(read_votes(text, 0, len(text))[0])


def malformed(text):
    return read_votes(text, 0, len(text))[1]


def cast(debate, **options):
    return [(vote.author, vote.a, vote.op, vote.b) for vote in tally(debate, **options).votes]


def test_2_1_lines_are_votes():  # SPEC 2.1
    assert votes("Agent 0 > Agent 1\nAgent 2 = Agent 1") == [(0, ">", 1), (2, "=", 1)]
    assert votes("Agent 0 < Agent 1") == [(1, ">", 0)]
    assert votes("N/A") == votes("") == []


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("AGENT 0 > agent 1", [(0, ">", 1)]),
        ("  Agent   0>Agent 1  ", [(0, ">", 1)]),
        ("- Agent 0 > Agent 1\n* Agent 2 > Agent 1\n1. Agent 0 = Agent 2", [(0, ">", 1), (2, ">", 1), (0, "=", 2)]),
        ("> Agent 0 > Agent 1", [(0, ">", 1)]),
        ("**Agent 0** > **Agent 1**", [(0, ">", 1)]),
        ("**Agent 0 > Agent 1**", [(0, ">", 1)]),
        ("__Agent 0__ > Agent **1**", [(0, ">", 1)]),
        ("<b>Agent 0 > Agent 1, I think", [(0, ">", 1)]),
        ("Agent 0 > Agent 1, Agent 1 = Agent 2; and Agent 0 > Agent 2.", [(0, ">", 1), (1, "=", 2), (0, ">", 2)]),
        ("Agent 2 > Agent 0 > Agent 1", [(2, ">", 0), (0, ">", 1)]),
        ("Agent 2 < Agent 0 = Agent 1", [(0, ">", 2), (0, "=", 1)]),
    ],
)
def test_2_2_tolerated_spellings(text, read):  # SPEC 2.2
    assert votes(text) == read
    assert malformed(text) == 0


def test_2_3_the_author_is_attached_never_read():  # SPEC 2.3
    debate = parallel(3, NONE, ("Agent 2 says: Agent 1 > Agent 2", "N/A", "N/A"))
    assert cast(debate) == [(0, 1, ">", 2)]


def test_2_4_self_votes():  # SPEC 2.4
    debate = parallel(3, NONE, ("Agent 0 > Agent 1", "N/A", "N/A"))
    assert cast(debate) == []
    counts = tally(debate).counts
    assert (counts.self_votes, counts.malformed) == (1, 0)
    assert cast(debate, self_votes="keep") == [(0, 0, ">", 1)]
    assert tally(debate, self_votes="keep").counts.self_votes == 0


@pytest.mark.parametrize(
    "line",
    [
        "Agent 1 > Agent 7",
        "Agent 1 > Agent 1",
        "Agent 1 >> Agent 2",
        "Agent 1 >= Agent 2",
        "Agent 1 ~ Agent 2",
        "Agent A > Agent B",
        "Agent 1 > 2",
        "Agent -1 > Agent 2",
        "Agent #1 > Agent #2",
        "Agent 1 > Agent 99999999999999999999",
        "Agent 1 >\nAgent 2",
        "Agent 1 > Agent ٢",
    ],
)
def test_2_5_what_looked_like_a_vote_is_malformed(line):  # SPEC 2.5
    debate = parallel(3, NONE, (line, "N/A", "N/A"))
    assert cast(debate) == []
    assert tally(debate).counts.malformed == 1


def test_2_6_one_vote_per_pair_and_turn():  # SPEC 2.6
    debate = parallel(3, NONE, ("Agent 1 > Agent 2\n" * 50, "Agent 0 = Agent 2\nAgent 2 = Agent 0", "N/A"))
    assert cast(debate) == [(0, 1, ">", 2), (1, 0, "=", 2)]
    assert tally(debate).counts.repeated == 50
    assert len(cast(debate, ballots="literal")) == 52
    contradiction = parallel(3, NONE, ("Agent 1 > Agent 2\nAgent 2 > Agent 1\nAgent 1 > Agent 2", "N/A", "N/A"))
    assert cast(contradiction) == []
    counts = tally(contradiction).counts
    assert (counts.contradictory, counts.repeated) == (2, 1)
    assert len(cast(contradiction, ballots="literal")) == 3
    # The limit is per turn: the same vote in the next round is a new vote.
    again = parallel(3, NONE, ("Agent 1 > Agent 2", "N/A", "N/A"), ("Agent 1 > Agent 2", "N/A", "N/A"))
    assert len(cast(again)) == 2


def test_2_7_votes_about_the_unseen():  # SPEC 2.7
    debate = parallel(3, ("Agent 1 > Agent 2", "N/A", "N/A"))
    assert cast(debate) == []
    assert (tally(debate).counts.malformed, tally(debate).counts.unseen) == (1, 1)
    literal = tally(debate, ballots="literal")
    assert [vote.judged for vote in literal.votes] == [None]
    assert literal.counts.malformed == 0
    early = sequential(3, "N/A", "Agent 0 > Agent 2", "N/A")
    assert cast(early) == []
    # Words outside the history window were not seen either.
    windowed = {"settings": {"history_rounds": 1}}
    turns = [{"agent": i % 3, "text": t.text, "since": 3 * (i // 3)} for i, t in enumerate(late().turns)]
    assert cast(late()) == [(0, 1, ">", 2)]
    assert cast(late(turns=turns, **windowed)) == []


def test_2_7_every_vote_says_why_it_does_not_count():  # SPEC 2.4 to 2.7
    ballot = ["Agent 1 > Agent 2", "Agent 2 > Agent 3", "Agent 3 > Agent 2", "Agent 1 > Agent 2", "Agent 0 > Agent 1"]
    ballot += ["Agent 1 = Agent 1", "Agent 1 > Agent 9"]
    debate = parallel(4, ["N/A"] * 4, ["\n".join(ballot), "N/A", "N/A", "N/A"])
    whys = [why for _, why in cast_votes(debate, 4)]
    assert whys == [None, "contradictory", "contradictory", "repeated", "self_vote", "same_agent", "unknown_agent"]
    assert [vote for vote, why in cast_votes(debate, 4) if why is None] == list(tally(debate).votes)
    early = parallel(3, ("Agent 1 > Agent 2", "N/A", "N/A"))
    assert [why for _, why in cast_votes(early, 0)] == ["unseen"]
    assert [why for _, why in cast_votes(early, 0, ballots="literal")] == [None]


def soft(*votes):
    """A debate of 3 in which agent 0 casts these votes, soft or not, in the second round."""
    debate = parallel(3, NONE, ("N/A", "N/A", "Agent 0 > Agent 1"))
    turns = list(debate.turns)
    turns[3] = replace(turns[3], parsed=replace(turns[3].parsed, votes=votes))
    return replace(debate, turns=tuple(turns))


def test_2_8_soft_votes():  # SPEC 2.8
    vote, hard = tally(soft((1, -0.25, 2))).votes
    assert (vote.a, vote.op, vote.b, vote.strength, vote.judged) == (2, ">", 1, 0.25, (2, 1))
    assert [vote.value(agent) for agent in (2, 1)] == [0.25, -0.25]
    assert (hard.strength, hard.value(0)) == (1.0, 1.0)
    for strength, same in ((1.0, (1, ">", 2)), (-1.0, (2, ">", 1))):
        for reward in ("win_rate", "win_minus_loss", "streams", "borda"):
            rules = RewardRules(reward=reward)
            assert score(soft((1, strength, 2)), rules).streams == score(soft(same), rules).streams
    assert score(soft((1, 0.5, 2)), RewardRules(reward="win_rate")).streams[0].values == (1, 0.75 / 2, 0.25)
    assert score(soft((1, 0.5, 2))).streams[0].values[:3] == (1, -0.25, -0.5)
    none = score(soft((1, 0.0, 2))).streams
    assert none[0].values == score(soft((1, "=", 2))).streams[0].values
    counts = tally(soft((1, 0.5, 2), (2, -0.5, 1), (1, 0.25, 2))).counts
    assert (counts.repeated, counts.contradictory) == (1, 2)


def late(**extra):
    return sequential(3, "N/A", "N/A", "N/A", "Agent 1 > Agent 2", **extra)

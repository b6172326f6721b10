"""SPEC 4: scores from votes."""

import sys
from types import ModuleType

import pytest

from peergrad.reward.pairwise import win_minus_loss, win_rate
from peergrad.reward.rewards import RewardRules, score
from peergrad.reward.stream import Stream
from peergrad.reward.streams import default_consensus
from peergrad.reward.tally import tally
from tests.helpers import parallel, sequential

NONE3 = ["N/A"] * 3
# Agent 0 says 1 > 2, agent 1 says 2 > 0, agent 2 says 0 = 1.
CIRCLE = parallel(3, NONE3, ["Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 0 = Agent 1"])


def values(debate, name, **rules):
    rules = RewardRules(**({"reward": name} if name.startswith("win") else {}), **rules)
    return {stream.name: stream for stream in score(debate, rules).streams}[name].values


def test_4_1_no_votes_no_scores():  # SPEC 4.1
    debate = parallel(3, NONE3, NONE3)
    assert values(debate, "win_rate") == values(debate, "win_minus_loss") == (0, 0, 0)


def test_4_2_win_rate():  # SPEC 4.2
    assert values(CIRCLE, "win_rate") == (0.25, 0.75, 0.5)
    kept = parallel(3, NONE3, ["Agent 0 > Agent 1", "N/A", "N/A"])
    assert win_rate(3, tally(kept, self_votes="keep").votes) == [0, 0, 0]  # never its own voter
    loud = parallel(3, NONE3, ["Agent 1 > Agent 2\n" * 3, "N/A", "Agent 0 > Agent 1"])
    assert values(loud, "win_rate") == (1, 0.5, 0)
    assert values(loud, "win_rate", ballots="literal") == (1, 0.75, 0)


def test_4_3_win_minus_loss():  # SPEC 4.3
    assert values(CIRCLE, "win_minus_loss") == (-0.5, 0.5, 0)
    kept = parallel(3, NONE3, ["Agent 0 > Agent 1", "N/A", "N/A"])
    assert win_minus_loss(3, tally(kept, self_votes="keep").votes) == [0, -1, 0]


def test_4_2_and_4_3_count_unseen_votes_only_literally():  # SPEC 2.7
    early = parallel(3, ["Agent 1 > Agent 2", "N/A", "N/A"])
    assert values(early, "win_rate") == (0, 0, 0)
    assert values(early, "win_rate", ballots="literal") == (0, 1, 0)
    assert values(early, "gen", ballots="literal") == values(early, "judge", ballots="literal") == (None,) * 3
    # An unseen vote has no part in a consensus, nor is it the vote that was due.
    both = parallel(4, ["N/A", "N/A", "Agent 0 > Agent 1", "N/A"], ["N/A", "N/A", "N/A", "Agent 1 > Agent 0"])
    assert values(both, "judge", ballots="literal", consensus="all") == (None,) * 7 + (1,)
    assert values(both, "judge", ballots="literal", consensus="others") == (None,) * 8
    assert values(both, "gen", ballots="literal")[:2] == (-1, 1)
    hidden = sequential(3, "N/A", "N/A", "Agent 0 > Agent 2", self_votes="keep")
    assert values(hidden, "format", ballots="literal", self_votes="keep") == (0, 0, -0.5)


def test_4_4_returns_add_step_rewards():  # SPEC 4.4
    debate = sequential(3, "N/A", "N/A", "Agent 0 > Agent 1", None)
    assert values(debate, "win_rate") == (0, 0, 0)
    assert values(debate, "win_minus_loss") == (0, -1, 0)
    # The parallel protocol has no step rewards: a bad reply is the format stream's affair.
    assert values(parallel(3, [None, "N/A", "N/A"]), "win_rate") == (0, 0, 0)


def test_4_5_generator_reward():  # SPEC 4.5
    assert values(CIRCLE, "gen") == (-0.5, 0.5, 0, None, None, None)
    assert values(CIRCLE, "gen", unjudged="literal") == (-0.5, 0.5, 0, -1, -1, -1)
    kept = parallel(3, NONE3, ["Agent 0 > Agent 1", "N/A", "N/A"])
    assert values(kept, "gen", self_votes="keep") == (None, -1, None, None, None, None)
    unreadable = parallel(3, ["N/A", None, "N/A"], ["N/A", "N/A", "Agent 0 > Agent 1"])
    assert values(unreadable, "gen")[:3] == (1, -1, None)


def test_4_6_format_penalty():  # SPEC 4.6
    debate = parallel(3, [None, "N/A", "N/A"], ["Agent 1 > Agent 2", "N/A", None])
    assert values(debate, "format") == (-1, 0, 0, 0, -0.5, -1)
    assert score(debate).tally.counts.missing == 1
    # Sequential: due from the third turn on, as in "not in the first two turns".
    assert values(sequential(3, *["N/A"] * 6), "format") == (0, 0, -0.5, -0.5, -0.5, -0.5)
    # Never due with two agents: there are no two others.
    assert values(parallel(2, ["N/A"] * 2, ["N/A"] * 2), "format") == (0, 0, 0, 0)
    # A ballot that cancels itself out is no valid vote; a self-vote is one only where kept.
    odd = parallel(3, NONE3, ["Agent 1 > Agent 2\nAgent 2 > Agent 1", "Agent 1 > Agent 0", "Agent 0 = Agent 1"])
    assert values(odd, "format")[3:] == (-0.5, -0.5, 0)
    assert values(odd, "format", self_votes="keep")[3:] == (-0.5, 0, 0)
    names = [stream.name for stream in score(debate, RewardRules(format_penalty=False)).streams]
    assert names == ["gen", "judge"]


def test_4_7_judge_reward():  # SPEC 4.7
    assert values(CIRCLE, "judge", consensus="all") == (None, None, None, 1, 1, 0)
    # Pair (0, 1): two say 0 > 1, one says 1 > 0, one says =. Pair (2, 3): one vote.
    debate = parallel(
        6,
        ["N/A"] * 6,
        [
            "N/A",
            "N/A",
            "Agent 0 > Agent 1",
            "Agent 0 > Agent 1",
            "Agent 1 > Agent 0\nAgent 2 > Agent 3",
            "Agent 0 = Agent 1",
        ],
    )
    assert values(debate, "judge", consensus="all")[6:] == (None, None, 1, 1, 0, -1)


def test_4_8_consensus():  # SPEC 4.8
    alone = parallel(3, NONE3, ["Agent 1 > Agent 2", "N/A", "N/A"])
    assert values(alone, "judge", consensus="all")[3] == 1  # a judge agreeing with itself
    assert values(alone, "judge", consensus="others") == (None,) * 6
    votes = ["N/A", "N/A", "Agent 0 > Agent 1", "Agent 0 > Agent 1", "Agent 1 > Agent 0"]
    five = parallel(5, ["N/A"] * 5, votes)
    assert values(five, "judge", consensus="all")[5:] == (None, None, 1, 1, -1)
    assert values(five, "judge", consensus="others")[5:] == (None, None, 0, 0, -1)
    # An author's votes of other rounds are its own too.
    twice = parallel(4, ["N/A"] * 4, *[["N/A", "N/A", "Agent 0 > Agent 1", "N/A"]] * 2)
    assert values(twice, "judge", consensus="others") == (None,) * 12
    # All votes of the debate count, whichever turns they judge.
    later = parallel(4, ["N/A"] * 4, ["N/A", "N/A", "Agent 0 > Agent 1", "N/A"], ["N/A", "N/A", "N/A", "Agent 0 > Agent 1"])
    assert [v for v in values(later, "judge", consensus="others") if v is not None] == [1, 1]
    assert [default_consensus(agents) for agents in (1, 2, 3, 4, 9)] == ["all", "all", "all", "others", "others"]
    assert values(twice, "judge") == values(twice, "judge", consensus="others")
    assert values(alone, "judge") == values(alone, "judge", consensus="all")
    # Self-votes, where kept, take part in the consensus.
    with_self = parallel(4, ["N/A"] * 4, ["Agent 0 > Agent 1", "N/A", "Agent 0 > Agent 1", "N/A"])
    assert values(with_self, "judge", self_votes="keep")[6] == 1


@pytest.mark.parametrize("reward", ["win_rate", "win_minus_loss", "streams"])
def test_4_9_streams_name_the_votes_behind_each_number(reward):  # SPEC 4.9
    votes = ["N/A", "N/A", "Agent 0 > Agent 1", "Agent 1 > Agent 0", "Agent 3 = Agent 0"]
    scored = score(parallel(5, ["N/A"] * 5, votes), RewardRules(reward=reward))
    by_name = {stream.name: stream.votes for stream in scored.streams}
    if reward == "streams":
        assert by_name["gen"][:5] == ((0, 1, 2), (0, 1), (), (2,), ())
        assert by_name["judge"][5:] == ((), (), (0, 1), (0, 1), ())
    else:
        assert by_name[reward] == ((0, 1, 2), (0, 1), (), (2,), ())


def test_4_10_own_rewards(monkeypatch):  # SPEC 4.10
    module = ModuleType("spec_4_10")
    module.right = lambda debate, tally, truth: [
        Stream("right", "agent", tuple(len(tally.votes) if truth(agent) else None for agent in range(debate.agents)))
    ]
    monkeypatch.setitem(sys.modules, "spec_4_10", module)
    rules = RewardRules(reward="spec_4_10:right")
    (stream,) = score(CIRCLE, rules, lambda turn: turn > 0).streams
    assert (stream.name, stream.values) == ("right", (None, 3.0, 3.0))
    assert score(CIRCLE, rules).streams[0].values == (None, None, None)  # nobody knows

"""SPEC 4: scores from votes."""

import json
import sys
from dataclasses import replace
from itertools import combinations
from types import ModuleType

import pytest

from peergrad import Question, dump, load
from peergrad.debate.ballot import Ballot
from peergrad.debate.contract import SHORT, read
from peergrad.reward.pairwise import win_minus_loss, win_rate
from peergrad.reward.rewards import RewardRules, score
from peergrad.reward.stream import Stream
from peergrad.reward.streams import default_consensus
from peergrad.reward.tally import tally
from tests.helpers import parallel, played, sequential

NONE3 = ["N/A"] * 3
# Agent 0 says 1 > 2, agent 1 says 2 > 0, agent 2 says 0 = 1.
CIRCLE = parallel(3, NONE3, ["Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 0 = Agent 1"])


def values(debate, name, **rules):
    reward = name if name.startswith("win") else "borda" if name in ("borda", "diagnosis") else "streams"
    rules = RewardRules(reward=reward, **rules)
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
    for form in ("graded", "literal"):
        assert values(hidden, "format", ballots="literal", self_votes="keep", form=form) == (0, 0, -0.5)


def test_4_4_returns_add_step_rewards():  # SPEC 4.4
    debate = sequential(3, "N/A", "N/A", "Agent 0 > Agent 1", None)
    assert values(debate, "win_rate") == (0, 0, 0)
    assert values(debate, "win_minus_loss") == (0, -1, 0)
    # Ours: a bad reply costs as much where it does not end the debate; as published it costs nothing there.
    at_once = parallel(3, [None, "N/A", "N/A"])
    assert values(at_once, "win_rate") == values(at_once, "win_minus_loss") == (-1, 0, 0)
    assert values(at_once, "win_rate", form="literal") == (0, 0, 0)


def test_4_5_generator_reward():  # SPEC 4.5
    assert values(CIRCLE, "gen") == (-0.5, 0.5, 0, None, None, None)
    assert values(CIRCLE, "gen", unjudged="literal") == (-0.5, 0.5, 0, -1, -1, -1)
    kept = parallel(3, NONE3, ["Agent 0 > Agent 1", "N/A", "N/A"])
    assert values(kept, "gen", self_votes="keep") == (None, -1, None, None, None, None)
    unreadable = parallel(3, ["N/A", None, "N/A"], ["N/A", "N/A", "Agent 0 > Agent 1"])
    assert values(unreadable, "gen")[:3] == (1, -1, None)


@pytest.mark.parametrize("form", ["graded", "literal"])
def test_4_6_format_penalty(form):  # SPEC 4.6
    debate = parallel(3, [None, "N/A", "N/A"], ["Agent 1 > Agent 2", "N/A", None])
    assert values(debate, "format", form=form) == (-1, 0, 0, 0, -0.5, -1)
    assert score(debate).tally.counts.missing == 1
    # Sequential: due from the third turn on, as in "not in the first two turns".
    assert values(sequential(3, *["N/A"] * 6), "format", form=form) == (0, 0, -0.5, -0.5, -0.5, -0.5)
    # Never due with two agents: there are no two others.
    assert values(parallel(2, ["N/A"] * 2, ["N/A"] * 2), "format", form=form) == (0, 0, 0, 0)
    # A ballot that cancels itself out is no valid vote; a self-vote buys off the literal penalty alone, and where kept.
    odd = parallel(3, NONE3, ["Agent 1 > Agent 2\nAgent 2 > Agent 1", "Agent 1 > Agent 0", "Agent 0 = Agent 1"])
    assert values(odd, "format", form=form)[3:] == (-0.5, -0.5, 0)
    kept = values(odd, "format", form=form, self_votes="keep")[3:]
    assert kept == (-0.5, -0.5 if form == "graded" else 0, 0)
    names = [stream.name for stream in score(debate, RewardRules(format_penalty=False)).streams]
    assert names == ["gen", "judge"]


def test_4_6_form_is_graded():  # SPEC 4.6
    # Of the three pairs of others one line leaves two without a vote.
    some = parallel(
        4,
        ["N/A"] * 4,
        ["Agent 1 > Agent 2\nAgent 1 > Agent 2", "N/A", "Agent 0 > Agent 1 = Agent 3\nAgent 0 > Agent 3", None],
    )
    assert values(some, "format")[4:] == pytest.approx((-1 / 3, -0.5, 0, -1))
    assert values(some, "format", form="literal")[4:] == (0, -0.5, 0, -1)
    # Nearly in form costs a tenth, and what is missing besides; the literal rule knows no such thing.
    loose = parallel(3, NONE3, ["Agent 1 > Agent 2"] * 3, settings={"reading": "tolerant"})
    turns = list(loose.turns)
    for index, text in ((3, "4 <comparison>Agent 1 > Agent 2"), (4, "4")):
        turns[index] = replace(turns[index], text=text, parsed=read(text, SHORT, reading="tolerant"))
    loose = replace(loose, turns=tuple(turns))
    assert values(loose, "format")[3:] == pytest.approx((-0.1, -0.6, -0.5))
    assert values(loose, "format", form="literal")[3:] == (0, -0.5, -0.5)
    # No more than 64 pairs are due: a ballot holds no more votes.
    order = " > ".join(f"Agent {agent}" for agent in range(1, 14))
    lines = "\n".join(f"Agent {a} > Agent {b}" for a, b in combinations(range(1, 14), 2))
    crowd = parallel(14, ["N/A"] * 14, [lines, *[order] * 13])
    assert values(crowd, "format")[14] == 0  # 64 votes of 78 pairs
    assert values(crowd, "format")[15] == pytest.approx(-0.5 * (1 - 11 / 64))
    assert {stream.name: stream.weight for stream in score(some, RewardRules(lambda_form=0.25)).streams}["format"] == 0.25


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
    # An agent that says the same in three rounds is one voice, its last; as published, three.
    loud = ["N/A", "N/A", "Agent 0 > Agent 1", "N/A", "N/A"]
    last = ["N/A", "N/A", "Agent 0 > Agent 1", "Agent 1 > Agent 0", "Agent 1 > Agent 0"]
    repeated = parallel(5, ["N/A"] * 5, loud, loud, last)
    assert values(repeated, "judge", consensus="all")[15:] == (None, None, -1, 1, 1)
    assert values(repeated, "judge", consensus="all", voices="votes")[15:] == (None, None, 1, -1, -1)
    turned = parallel(5, ["N/A"] * 5, loud, ["N/A", "N/A", "Agent 1 > Agent 0", "Agent 1 > Agent 0", "N/A"])
    assert values(turned, "judge", consensus="all")[5:] == (None, None, -1, None, None, None, None, 1, 1, None)
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


# Four answer (0 and 2 the same), then each judges two others, and all say A is right and B wrong.
BOXES = Question("q", "?", "4", "boxed")


def ballots(ask):
    return "A: right\nB: wrong" if ask.candidates else f"\\boxed{{{ask.agent % 2}}}"


def test_4_11_borda():  # SPEC 4.11
    debate = played(Ballot(agents=4, shown=2, ballot_form="verdicts"), ballots, BOXES)
    assert values(debate, "borda") == (0,) * 4 + (None,) * 4  # everybody is once first and once second
    assert [stream.name for stream in score(debate, RewardRules(reward="borda")).streams] == [
        "borda",
        "judge",
        "diagnosis",
        "format",
    ]
    # A mean over ballots, not over votes: agent 0 is for once among three, and against once among two.
    line = json.loads(dump(debate))
    line["turns"] = line["turns"][:4]
    spec = {"seen": 4, "since": 0, "contract": ["evaluation", "comparison"]}
    line["turns"] += [
        {"agent": 1, "text": "A: right\nB: wrong\nC: wrong", "candidates": [[0], [2], [3]]} | spec,
        {"agent": 2, "text": "A: wrong\nB: right", "candidates": [[0], [1]]} | spec,
    ]
    uneven = load(json.dumps(line))
    assert values(uneven, "borda", pool_equal=False)[:4] == (0, 1, -0.5, -0.5)
    # Answers with the same final value share the mean: 0 and 2, and 1 and 3.
    assert values(uneven, "borda")[:4] == (-0.25, 0.25, -0.25, 0.25)
    assert values(uneven, "gen")[0] == pytest.approx(1 / 3)
    stream = score(uneven, RewardRules(reward="borda", lambda_gen=0.5)).streams[0]
    assert (stream.sections, stream.weight, stream.follows) == (("solution",), 0.5, "solution")


def test_4_12_diagnosis():  # SPEC 4.12
    protocol = Ballot(agents=4, shown=3, ballot_form="verdicts", revise=True)

    def said(ask):
        """Agent 0's answer is found wrong by all but agent 1 at first, and right by all in the end."""
        if not ask.candidates:
            return "x"
        first = "right" if ask.round == 3 or ask.agent == 1 else "wrong"
        others = "wrong" if first == "right" else "right"
        return "\n".join(
            f"{x}: {first if agents == (0,) else others}" for x, agents in zip("ABC", ask.candidates, strict=True)
        )

    debate = played(protocol, said, BOXES)
    got = values(debate, "diagnosis")
    assert got[:4] == (None,) * 4
    assert got[8:] == (None,) * 8  # the last ballots
    # Agent 1 was for agent 0, on whom the votes of 2 and 3 rose from -1 to 1: 1 · (1 - -1) / 2. It was against 2 by half (a
    # loss and a tie), on whom the votes of 0 (ties) and 3 fell from 1/4 to -1/4: -1/2 · -1/2 / 2. And so with 3.
    assert got[5] == pytest.approx((1 + 1 / 8 + 1 / 8) / 3)
    assert got[6] < 0
    assert got[7] < 0
    stream = score(debate, RewardRules(reward="borda", lambda_diagnosis=0.5)).streams[2]
    assert (stream.sections, stream.weight) == (("evaluation",), 0.5)
    once = played(Ballot(agents=4, shown=3, ballot_form="verdicts"), said, BOXES)
    assert values(once, "diagnosis") == (None,) * 8

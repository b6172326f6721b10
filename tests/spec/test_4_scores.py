"""SPEC 4: scores from votes."""

import json
import math
import sys
from dataclasses import replace
from itertools import combinations
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peergrad import Question, UserError, dump, load
from peergrad.debate.ballot import Ballot
from peergrad.debate.contract import SHORT, read
from peergrad.debate.question import BOXED
from peergrad.reward.pairwise import win_minus_loss, win_rate
from peergrad.reward.rewards import RewardRules, Schedule, score
from peergrad.reward.streams import Stream, default_consensus
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


def test_4_6_a_final_answer_is_part_of_the_form():  # SPEC 4.6
    said = {0: "\\boxed{4}", 1: "4", 2: "\\boxed{ }"}
    alone = played(
        Ballot(agents=3), lambda ask: said[ask.agent], Question("q", "?", style="boxed"), likely=lambda *_: (0.5, 0.5)
    )
    assert values(alone, "format") == (0, -0.5, -0.5, None, None, None)  # choices have no form
    assert values(alone, "format", form="literal")[:3] == (0,) * 3
    no_form = played(Ballot(agents=3), lambda ask: said[ask.agent], Question("q", "?"), likely=lambda *_: (0.5, 0.5))
    assert values(no_form, "format")[:3] == (0,) * 3  # an open question asks for none
    assert values(parallel(3, NONE3, ["N/A"] * 3), "format")[0] == 0


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


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1200", r"\$1,200.00", True),
        ("1e1000000", "1e1000001", False),  # beyond what decimals are written with
        ("1e-1999999", "0", False),
        ("1" * 35, "1" * 34 + "2", False),
        ("1" * 200, "1" * 199 + "2", False),
        ("Blue", "blue", True),
    ],
)
def test_4_11_equal_values(one, other, equal):  # SPEC 4.11
    first, second = (BOXED.value(f"\\boxed{{{answer}}}") for answer in (one, other))
    assert (first == second) == equal


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


# Four agents whose answers are 1, 1, 2 and none; agents 0 and 3 are judged alone, one for each.
FOUR = json.loads(dump(parallel(4, ["N/A"] * 4, ["N/A", "Agent 0 > Agent 3", "Agent 0 > Agent 3", "N/A"])))
for turn, answer in zip(FOUR["turns"], (r"\boxed{1}", r"\boxed{1.0}", r"\boxed{2}", "none") * 2, strict=True):
    turn["text"] = turn["text"].replace("42", answer)
FOUR = load(json.dumps(FOUR))


def test_4_13_shuffled():  # SPEC 4.13
    votes = ["Agent 1 > Agent 2\nAgent 2 > Agent 3", "Agent 2 > Agent 0", "Agent 0 = Agent 1", "Agent 2 > Agent 1"]
    debate = parallel(4, ["N/A"] * 4, votes, votes[::-1])
    drawn = set()
    for reward, names in (("streams", ["gen", "judge"]), ("borda", ["borda", "judge", "diagnosis"])):
        peer = score(debate, RewardRules(reward=reward))
        for number in range(40):
            other = replace(debate, id=f"d{number}")
            mixed = score(other, RewardRules(reward=reward, votes="shuffled"))
            assert mixed == score(other, RewardRules(reward=reward, votes="shuffled"))
            assert [stream.name for stream in mixed.streams] == [*names, "format"]
            assert mixed.streams[-1] == peer.streams[-1]
            for before, after in zip(peer.streams[:-1], mixed.streams[:-1], strict=True):
                assert [value is None for value in after.values] == [value is None for value in before.values]
                for first in (0, 4, 8):  # a round keeps its values, and the votes that made them
                    of_round = [list(zip(s.values, s.votes, strict=True))[first : first + 4] for s in (before, after)]
                    assert sorted(of_round[0], key=str) == sorted(of_round[1], key=str)
            drawn.add((reward, mixed.streams[0].values[:4]))
    # Every turn gets every one of the four values of the first round, in some debate.
    assert len({*peer.streams[0].values[:4]}) == 4
    assert all({order[turn] for _, order in drawn} >= {*peer.streams[0].values[:4]} for turn in range(4))


def test_4_13_shuffled_after_pooling():  # SPEC 4.13
    protocol = Ballot(agents=4, shown=3)
    boxes = {0: "1", 1: "1", 2: "2", 3: "3"}
    debate = played(
        protocol,
        lambda ask: rf"\boxed{{{boxes[ask.agent]}}}",
        Question("q", "?", style="boxed"),
        likely=lambda ask, _: (0.9, 0.1) if "1" in ask.messages[-1].text else (0.2, 0.8),
    )
    pooled = values(debate, "borda")[:4]
    assert pooled[0] == pooled[1]
    assert sorted(values(debate, "borda", votes="shuffled")[:4]) == sorted(pooled)


def test_4_13_majority_and_none():  # SPEC 4.13
    assert values(FOUR, "gen") == (1, None, None, -1) + (None,) * 4
    assert values(FOUR, "gen", votes="majority") == (1, 1, -1, -1) * 2
    # Two values are as frequent: of a fair draw each has half a chance. And three: a third.
    line = json.loads(dump(FOUR))
    for turn, text in ((3, "2"), (5, "3")):
        line["turns"][turn]["text"] = line["turns"][turn]["text"].replace("none", rf"\boxed{{{text}}}").replace("1.0", text)
    assert values(load(json.dumps(line)), "gen", votes="majority") == pytest.approx((0, 0, 0, 0, -1 / 3, -1 / 3, -1 / 3, -1))
    assert values(parallel(3, NONE3, [None] * 3), "gen", votes="majority") == (None,) * 6  # nobody gives a value
    cut = parallel(3, NONE3)
    cut = replace(cut, turns=(replace(FOUR.turns[0], agent=0), *parallel(3, [None] * 3).turns[1:]))
    assert values(cut, "gen", votes="majority") == (1, -1, -1)
    ballot = played(Ballot(agents=4, shown=2), lambda _: r"\boxed{1}", likely=lambda *_: (0.5, 0.5))
    assert values(ballot, "borda", votes="majority") == (1,) * 4 + (None,) * 4  # ballots answer nothing
    for votes in ("majority", "none"):
        for reward, name in (("streams", "gen"), ("borda", "borda")):
            streams = score(FOUR, RewardRules(reward=reward, votes=votes)).streams
            assert [stream.name for stream in streams] == [name, "format"]
            assert streams[0].votes == ((),) * 8
            assert streams[1] == score(FOUR).streams[-1]
    assert values(FOUR, "gen", votes="none") == (None,) * 8


@pytest.mark.parametrize("reward", ["win_rate", "win_minus_loss", "my_rewards:agreement"])
@pytest.mark.parametrize("rule", [{"votes": "none"}, {"truth_weight": 0.3}, {"outcome_bonus": "0 -> 1"}])
def test_4_13_and_4_14_need_a_stream_for_answers(reward, rule):  # SPEC 4.13, 4.14
    with pytest.raises(UserError, match=f"{next(iter(rule))}: the reward '{reward}' has no stream for answers"):
        RewardRules(reward=reward, **rule)


def test_4_14_truth():  # SPEC 4.14
    right = (True, True, False, False, None, False, True, True)

    def mixed(debate=FOUR, **rules):
        streams = score(debate, RewardRules(**rules), right.__getitem__).streams
        assert streams[1:] == score(debate, RewardRules(votes=rules.get("votes", "peer"))).streams[1:]
        return streams[0].values

    assert mixed(truth_weight=0.0) == values(FOUR, "gen") == (1, None, None, -1) + (None,) * 4
    assert mixed(truth_weight=0.25) == (1, 0.25, -0.25, -1, None, -0.25, 0.25, 0.25)
    assert mixed(truth_weight=1.0) == (1, 1, -1, -1, None, -1, 1, 1)
    assert mixed(truth_weight=1.0, votes="none") == (1, 1, -1, -1, None, -1, 1, 1)
    assert mixed(truth_weight=0.25, votes="majority") == (1, 1, -1, -1, 0.75, 0.5, -0.5, -0.5)
    assert mixed(outcome_bonus=0.5) == (1, None, None, -1, None, 0, 0.5, 0.5)  # the last turns are the final answers
    assert mixed(truth_weight=0.25, outcome_bonus=0.5) == (1, 0.25, -0.25, -1, None, -0.25, 0.75, 0.75)
    with pytest.raises(UserError, match=r"truth_weight: 1\.5 is not possible; give numbers from 0 to 1"):
        RewardRules(truth_weight=1.5)
    with pytest.raises(UserError, match="outcome_bonus: -1 is not possible; give 0 or more"):
        RewardRules(outcome_bonus=-1)
    # Where nobody knows what is right, only votes are left; ballots are asked nothing.
    assert values(FOUR, "gen", truth_weight=0.5) == (0.5, None, None, -0.5) + (None,) * 4
    asked = []
    score(FOUR, RewardRules(), asked.append)
    assert asked == []  # graded only if it counts


def test_4_15_schedules():  # SPEC 4.15
    assert [Schedule.of("1.0 -> 0.0", "x").at(step, 4) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
    assert [Schedule.of("0->1 over 2", "x").at(step, 400) for step in range(4)] == [0, 0.5, 1, 1]
    half = Schedule.of("1.0 -> 0.5 over 100 cosine", "x")
    assert [half.at(step, 7) for step in (0, 25, 50, 100)] == pytest.approx([1, 0.75 + math.sqrt(2) / 8, 0.75, 0.5])
    assert Schedule.of("2 -> 0 cosine", "x") == Schedule(2, 0, None, cosine=True)
    assert [Schedule.of(given, "x").at(step, 3) for given in (0.7, "0.7", 1) for step in (0, 2)] == [0.7] * 4 + [1] * 2
    over = ("1 -> 0 over", "1 -> 0 over 0", "1 -> 0 over 1.5", "1 -> 0 cosine over 3")
    for bad in ("", "->", "1 ->", "1 ->x", "1 -> 0 sine", "nan", "1 -> inf", "1 0", *over):
        with pytest.raises(UserError, match=r"x: .* is not possible; give a number, or '1.0 -> 0.0'"):
            Schedule.of(bad, "x")
    fading = RewardRules(truth_weight="1 -> 0", outcome_bonus="0.5 -> 0 over 2")
    assert fading.in_force(3, 4) == {"truth_weight": 0.25, "outcome_bonus": 0}
    assert RewardRules().in_force(3, 4) == {}
    assert (fading.fades, RewardRules(truth_weight="1 -> 0 over 9").fades, RewardRules().fades) == (True, False, False)
    # Outside a run it is the first value.
    assert values(FOUR, "gen", truth_weight="0.5 -> 0") == values(FOUR, "gen", truth_weight=0.5)


def verdict(comparison):
    return {"verdict": {"text": f"<evaluation>fine</evaluation><comparison>{comparison}</comparison>"}}


def test_4_16_a_judge_with_authority():  # SPEC 4.16
    said = ["Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 0 = Agent 1"]
    debate = parallel(3, NONE3, said, **verdict("Agent 2 > Agent 0\nAgent 2 > Agent 1\nAgent 0 = Agent 1"))
    # Unasked for, it counts for nothing. The votes in the debate are on the first round, the judge's on the last.
    assert values(debate, "gen") == (-0.5, 0.5, 0, None, None, None)
    assert values(debate, "gen", judge_weight=1) == values(debate, "gen", judge_weight=3) == (-0.5, 0.5, 0, -0.5, -0.5, 1)
    assert values(debate, "gen", judge_weight=0.25) == (-0.5, 0.5, 0, -0.25, -0.25, 0.5)  # less than a vote is less
    assert values(debate, "gen", judge_weight="2 -> 0") == values(debate, "gen", judge_weight=2)
    # Agent 0 stands alone with 1 > 2, against the judge; agent 1 agrees with it.
    assert values(debate, "judge") == (None, None, None, 1, 1, 0)
    for weight, alone in ((0.5, 1), (1, 0), (2, -1)):
        assert values(debate, "judge", judge_weight=weight) == (None, None, None, alone, 1, 0)
    assert values(debate, "win_rate", judge_weight=2) == pytest.approx((1.5 / 6, 2.5 / 6, 5 / 6))
    assert values(debate, "win_minus_loss", judge_weight=2) == pytest.approx((-3 / 6, -1 / 6, 4 / 6))
    # It is no agent: form, and the votes that are counted, are as they were.
    tallied = score(debate, RewardRules(judge_weight=2)).tally
    assert (tallied.votes, tallied.counts) == (score(debate).tally.votes, score(debate).tally.counts)
    assert [tallied.all_votes[i].author for i in score(debate, RewardRules(judge_weight=2)).streams[0].votes[3]] == [3, 3]
    for bad in (-1, "1 -> -1"):
        with pytest.raises(UserError, match=r"judge_weight: .* is not possible; give 0 or more"):
            RewardRules(judge_weight=bad)
    assert RewardRules(judge_weight="5 -> 0").fades


def test_4_16_in_ballots():  # SPEC 4.16
    debate = played(Ballot(agents=4, shown=2, ballot_form="verdicts"), ballots, BOXES)
    line = json.loads(dump(debate)) | verdict("Agent 3 > Agent 0")
    spec = {"seen": 4, "since": 0, "contract": ["evaluation", "comparison"]}
    line["turns"][4:] = [
        {"agent": 1, "text": "A: right\nB: wrong\nC: wrong", "candidates": [[0], [2], [3]]} | spec,
        {"agent": 2, "text": "A: wrong\nB: right", "candidates": [[0], [1]]} | spec,
    ]
    judged = load(json.dumps(line))
    # Its verdict is a ballot that counts twice: of 0, +1, -1 and twice -1; of 3, -0.5 and twice 1.
    assert values(judged, "borda", pool_equal=False, judge_weight=2)[:4] == (-0.5, 1, -0.5, 0.5)
    assert values(judged, "borda", pool_equal=False)[:4] == (0, 1, -0.5, -0.5)
    # The first ballot says 0 > 3, on which nobody else has voted but the judge.
    assert values(judged, "judge") == (None,) * 6
    assert values(judged, "judge", judge_weight=0.1) == (None,) * 4 + (-1, None)


@given(st.lists(st.sampled_from(["0 > 1", "1 > 2", "2 > 0", "0 = 2"]), max_size=4), st.integers(1, 5))
def test_4_16_a_weight_of_k_is_k_votes(said, weight):  # SPEC 4.16
    comparison = "\n".join(f"Agent {vote[0]} {vote[2]} Agent {vote[4]}" for vote in said)
    debate = parallel(3, NONE3, ["Agent 1 > Agent 2", "N/A", "N/A"], **verdict(comparison))
    tallied = tally(debate, judge_weight=weight)
    repeated = (*tallied.votes, *tallied.verdict * weight)
    assert values(debate, "win_rate", judge_weight=weight) == pytest.approx(win_rate(3, repeated))
    for index, value in enumerate(values(debate, "gen", judge_weight=weight)):
        outcomes = [
            vote.value(agent)
            for vote in repeated
            for agent, turn in zip((vote.a, vote.b), vote.judged, strict=True)
            if turn == index
        ]
        assert value == (pytest.approx(sum(outcomes) / len(outcomes)) if outcomes else None)

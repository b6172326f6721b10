"""SPEC 3.21, 3.22: debates that end when answers agree, and go on or get more agents while they do not."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peergrad import Question, UserError, dump, load, score
from peergrad.debate.ballot import Ballot
from peergrad.debate.judge import judge_asks, read_verdict
from peergrad.debate.protocol import answers_agree
from peergrad.debate.protocols import Parallel
from peergrad.debate.types import Debate, Reply, Turn
from peergrad.learn.data import advantages
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.reward.rewards import RewardRules
from peergrad.tasks.base import Questions
from peergrad.tasks.open import regrade
from tests.helpers import played, short

SUM = Question("q", "What is 1 + 1?", "2", style="boxed")


def answers(*rounds):
    """A script: what each agent answers in each round of answers; the last row is said again."""

    def say(ask):
        if ask.candidates:
            return "\n".join(f"{letter}: fine.\n{letter}: right" for letter in "ABCDEFGH"[: len(ask.candidates)])
        row = rounds[min(ask.round // (1 if ask.contract else 2), len(rounds) - 1)]
        text = rf"\boxed{{{row[ask.agent]}}}" if row[ask.agent] else "Who knows?"
        return short(solution=text) if ask.contract else text

    return say


def rounds_played(protocol, *rows, question=SUM):
    debate = played(protocol, answers(*rows), question)
    assert load(dump(debate)) == debate
    assert protocol.wave(debate) == []
    return debate.rounds


def test_3_21_ending_early():  # SPEC 3.21
    parallel = Parallel(agents=3, max_rounds=3, end_early=True)
    assert rounds_played(parallel, ["2", "2.0", "$2"]) == 1, "one value, written in three ways"
    assert rounds_played(parallel, ["2", "3", "2"], ["2", "2", "2"]) == 2
    assert rounds_played(parallel, ["2", "3", "2"]) == 3
    assert rounds_played(parallel, ["", "", ""]) == 3, "answers without a value do not agree"
    assert rounds_played(parallel, ["2", "2", ""]) == 3
    assert rounds_played(Parallel(agents=3, max_rounds=3), ["2", "2", "2"]) == 3, "not unless it is asked for"
    assert rounds_played(Parallel(agents=1, max_rounds=2, end_early=True), ["2"]) == 2, "nobody agrees alone"
    ballot = Ballot(agents=3, ballot_form="verdicts", revise=True, end_early=True)
    assert rounds_played(ballot, ["2", "2", "2"]) == 1, "there is nothing to vote on"
    assert rounds_played(ballot, ["2", "3", "2"], ["2", "2", "2"]) == 3
    assert rounds_played(ballot, ["2", "3", "2"]) == 4


def test_3_21_extra_rounds():  # SPEC 3.21
    parallel = Parallel(agents=3, max_rounds=1, extra_rounds=2)
    assert rounds_played(parallel, ["2", "2", "2"]) == 1
    assert rounds_played(parallel, ["2", "3", "2"], ["2", "2", "2"]) == 2
    assert rounds_played(parallel, ["2", "3", "2"]) == 3
    assert parallel.rounds == 3
    assert rounds_played(Parallel(agents=3, max_rounds=2, extra_rounds=2), ["2", "2", "2"]) == 2
    ballot = Ballot(agents=3, ballot_form="verdicts", revise=True, extra_rounds=1)
    assert rounds_played(ballot, ["2", "3", "2"], ["2", "2", "2"]) == 4
    assert rounds_played(ballot, ["2", "3", "2"], ["2", "3", "2"], ["2", "2", "2"]) == 6
    assert ballot.rounds == 6
    last = played(ballot, answers(["2", "3", "2"], ["4", "5", "4"], ["2", "2", "2"]), SUM).turns[12]
    assert [message.text for message in last.asked if message.role == "assistant"] == [r"\boxed{2}", r"\boxed{4}"]


def test_3_21_what_is_refused():  # SPEC 3.21
    with pytest.raises(UserError, match="extra_rounds: -1 is not possible; give 0 or more"):
        Parallel(extra_rounds=-1)
    with pytest.raises(UserError, match="extra_rounds: 1 is not possible where nobody answers again; give --revise"):
        Ballot(extra_rounds=1)


def test_3_21_somebody_alone_corrects_itself_as_often_as_before():  # SPEC 3.21, 9.1
    alone = Parallel(agents=3, max_rounds=2, end_early=True, extra_rounds=4).alone(1)
    assert (alone.rounds, rounds_played(alone, ["2", "2"])) == (2, 2)


def test_3_21_lines_from_before_are_written_as_before():  # SPEC 3.21
    settings_of = [json.loads(dump(Debate("d", SUM, one)))["settings"] for one in (Parallel(), Ballot())]
    assert not {"end_early", "extra_rounds", "agents_min"} & {name for one in settings_of for name in one}


def agents_asked(protocol, *rows):
    debate = played(protocol, answers(*rows), SUM)
    assert load(dump(debate)) == debate
    assert {turn.agent for turn in debate.turns} == set(range(debate.agents))
    return debate


def test_3_22_more_agents_only_where_the_first_do_not_agree():  # SPEC 3.22
    parallel, unlimited = Parallel(agents=5, agents_min=3, max_rounds=2), Parallel(agents=5, max_rounds=2)
    same = agents_asked(parallel, ["2", "2.0", "$2", "3", "3"])
    assert (same.agents, len(same.turns), same.rounds) == (3, 6, 2)
    differ = agents_asked(parallel, ["2", "3", "2", "2", "2"])
    assert (differ.agents, len(differ.turns)) == (5, 10)
    assert [turn.seen for turn in differ.turns] == [0] * 5 + [5] * 5, "those asked later answer alone too"
    assert [turn.agent for turn in differ.turns] == [0, 1, 2, 3, 4] * 2
    asked_first = [ask.messages for ask in parallel.wave(Debate("d", SUM, parallel))]
    assert asked_first == [ask.messages for ask in unlimited.wave(Debate("d", SUM, unlimited))][:3], "the same prompts"
    early = agents_asked(Parallel(agents=5, agents_min=3, end_early=True), ["2", "2", "2", "3", "3"])
    assert (early.agents, len(early.turns)) == (3, 3)


def test_3_22_in_ballots():  # SPEC 3.22, 3.16
    ballot = Ballot(agents=6, agents_min=4, ballot_form="verdicts", shown=3)
    same, differ = (agents_asked(ballot, row) for row in (["2"] * 6, ["2", "3"] * 3))
    assert (same.agents, len(same.turns), differ.agents, len(differ.turns)) == (4, 8, 6, 12)
    for debate in (same, differ):
        places = [letter for turn in debate.turns if turn.candidates for letter in enumerate(turn.candidates)]
        assert len(set(places)) == len(places) == 3 * debate.agents, "every answer stands at every place once"
    two = agents_asked(Ballot(agents=6, agents_min=2), ["2"] * 6)
    assert (two.agents, len(two.turns)) == (2, 2), "a vote compares two others"


def test_3_22_those_never_asked_have_no_part():  # SPEC 3.22, 4.1, 5.1
    debate = agents_asked(Parallel(agents=5, agents_min=3, max_rounds=2), ["2"] * 5)
    (stream,) = score(debate, RewardRules(reward="win_rate")).streams
    assert len(stream.values) == 3
    assert Parallel(agents=5, agents_min=3).alone(4).agents_min == Ballot(agents_min=2).alone(0).agents_min == 0
    for wrong in (-1, 1, 6):
        with pytest.raises(UserError, match=f"agents_min: {wrong} is not possible; give 0, for all at once, or from 2 to 5"):
            Parallel(agents=5, agents_min=wrong)


def test_3_22_a_judge_sits_after_the_last_seat():  # SPEC 3.22, 4.16
    debate = agents_asked(Parallel(agents=5, agents_min=3), ["2"] * 5)
    (ask,) = judge_asks(debate, 10)
    assert ask.agent == 5
    text = "<evaluation>a</evaluation><comparison>Agent 2 > Agent 0</comparison>"
    judged = replace(debate, verdict=Turn.of(ask, Reply(text), read_verdict(text)))
    assert load(dump(judged)) == judged
    values = [score(judged, RewardRules(reward="win_rate", judge_weight=w)).streams[0].values for w in (0, 0.5, 1)]
    assert [value[2] for value in values] == [0, 0.5, 1]


@st.composite
def varied(draw):
    agents, value = draw(st.integers(2, 5)), st.sampled_from(["2", "2.0", "3", ""])
    rows = draw(st.lists(st.lists(value, min_size=agents, max_size=agents), min_size=1, max_size=4))
    length = {"end_early": draw(st.booleans()), "extra_rounds": draw(st.integers(0, 2))}
    length["agents_min"] = draw(st.sampled_from([0, *range(2, agents + 1)]))
    if draw(st.booleans()):
        return Parallel(agents=agents, max_rounds=draw(st.integers(1, 3)), **length), rows
    return Ballot(agents=agents, ballot_form="verdicts", revise=True, **length), rows


@given(st.lists(varied(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_debates_of_any_length_are_played_scored_and_measured(cases):  # SPEC 3.21, 5.4, 8
    debates = [played(protocol, answers(*rows), SUM, id=f"d{i}") for i, (protocol, rows) in enumerate(cases)]
    for debate in debates:
        protocol = debate.protocol
        assert debate.rounds <= protocol.rounds
        for end in range(len(debate.turns)):  # from every point, also within a round, it goes on as it was played
            wave = protocol.wave(load(dump(Debate(debate.id, SUM, protocol, debate.turns[:end]))))
            asked = [(ask.round, ask.agent) for ask in wave]
            assert asked == [(turn.round, turn.agent) for turn in debate.turns[end : end + len(asked)]]
            assert asked
        last = max(turn.round for turn in debate.turns if turn.asked_to_answer)
        assert debate.rounds == protocol.rounds or answers_agree(debate, last)
    for rules in (RewardRules(), RewardRules(reward="borda"), RewardRules(reward="win_rate")):
        scored = [score(debate, rules) for debate in debates]
        for of_debate in advantages(scored):
            for values in of_debate:
                assert sum(value for value in values if value is not None) == pytest.approx(0, abs=1e-9)
    metrics = measure(DebateBatch.of([*map(score, debates)], Questions("sums", (SUM,), regrade), "train_sums"))
    assert metrics["env/all/total_turns"] == sum(len(debate.turns) for debate in debates)
    assert metrics["env/all/total_episodes"] == sum(debate.agents for debate in debates)


@given(varied(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_transcript_breaks_a_wave(case, data):  # SPEC 3.12, 3.21
    """Turns left out, in another order, and rounds that never were."""
    protocol, rows = case
    line = json.loads(dump(played(protocol, answers(*rows), SUM)))
    turns = data.draw(st.permutations(line["turns"]))[: data.draw(st.integers(0, len(line["turns"])))]
    spoken = set()
    line["turns"] = []
    for index, turn in enumerate(turns):
        turn = {"agent": turn["agent"], "text": turn["text"], "round": data.draw(st.integers(0, index))}
        if (turn["round"], turn["agent"]) not in spoken:
            spoken.add((turn["round"], turn["agent"]))
            turn["round"] = min(turn["round"], len(line["turns"]))
            line["turns"].append(turn)
    try:
        debate = load(json.dumps(line))
    except UserError:
        return
    asks = protocol.wave(debate)
    assert len({ask.agent for ask in asks}) == len(asks) <= protocol.agents

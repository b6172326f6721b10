"""SPEC 8: metrics."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from peergrad.debate.ballot import Ballot
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.question import Question, last_boxed
from peergrad.debate.transcript import dump, load
from peergrad.debate.types import Parsed, ParseError
from peergrad.learn.data import advantages, credit, datums
from peergrad.learn.trainer import optim_metrics
from peergrad.measure.counts import bias_counts, copied_votes, diversity, final_grades, form_counts, shares, turn_grades
from peergrad.measure.metrics import DebateBatch, answer_metrics, debate_metrics, rewards, vote_quality
from peergrad.reward.rewards import RewardRules, score
from peergrad.tasks.base import UNANSWERED, Grade
from tests.helpers import full, parallel, played, sequential, short

NONE3 = ["N/A"] * 3
CIRCLE = parallel(3, NONE3, ["Agent 1 > Agent 2", "Agent 2 > Agent 9", "Agent 0 = Agent 1"])


def exact(question, solution):
    answer = last_boxed(solution)
    return Grade(correct=answer == "42", answer=answer)


def test_8_1_debate_and_optimiser_metrics():  # SPEC 8.1
    rules = RewardRules(reward="win_rate")
    aborted = sequential(3, "N/A", None)
    metrics = debate_metrics(DebateBatch([score(CIRCLE, rules), score(aborted, rules)]))
    assert metrics["pairwise_reward"] == pytest.approx((0.5 + 0.75 + 0 + 0 + 0 + 0) / 6)
    assert (metrics["pairwise_reward_is_win_rate"], metrics["pairwise_reward_is_win_minus_loss"]) == (1, 0)
    assert metrics["pairwise_total_votes"] == 1  # two and none
    assert metrics["pairwise_malformed"] == 0.5
    assert metrics["pairwise_any_votes"] == 0.5
    assert metrics["consensus_reached"] == 0
    assert metrics["round"] == pytest.approx((3 * 1 + 3 * 2 + 2 * 1) / 8)
    assert metrics["parse_error"] == 1 / 8
    assert metrics["env/all/total_episodes"] == 6
    assert metrics["env/all/total_turns"] == 8
    assert metrics["env/all/turns_per_episode"] == pytest.approx(8 / 6)
    assert metrics["env/all/reward/total"] == pytest.approx((0.5 + 0.75 + 0 + 0 - 1 + 0) / 6)
    assert metrics["env/all/by_group/frac_mixed"] == 1
    assert metrics["env/all/ac_tokens_per_turn"] is None  # no tokens were kept
    five = parallel(5, ["N/A"] * 5, ["N/A", "N/A", "Agent 0 > Agent 1", "Agent 0 > Agent 1", "N/A"])
    mixed = debate_metrics(DebateBatch([score(CIRCLE, rules), score(five, rules), score(aborted, rules)]))
    assert mixed["pairwise_total_votes"] == pytest.approx((3 * 2 + 5 * 2 + 3 * 0) / 11)  # a mean over agents
    assert mixed["pairwise_any_votes"] == pytest.approx(8 / 11)
    agreed = played(Sequential(agents=2, max_rounds=3), lambda ask: full(consensus="YES"))
    tokens = [turn.tokens for turn in agreed.turns]
    metrics = debate_metrics(DebateBatch([score(agreed, rules)]))
    assert metrics["consensus_reached"] == 0.5
    assert metrics["env/all/by_group/frac_mixed"] == 0
    assert metrics["env/all/ac_tokens_per_turn"] == np.mean([len(t.ids_T) for t in tokens])
    assert metrics["env/all/ob_tokens_per_turn"] == np.mean([len(t.prompt_T) for t in tokens])

    scored = score(agreed)
    data = datums(agreed, credit(agreed, scored.streams, advantages([scored])[0]))
    trained = [datum.logprobs_T - 0.5 for datum in data]
    columns = ([d.logprobs_T for d in data], [d.mask_T for d in data])
    optim = optim_metrics(*(np.concatenate(column) for column in (trained, *columns)))
    optim = {name: value for name, value in optim.items() if "ratio" not in name}
    assert optim == pytest.approx({"optim/kl_sample_train_v1": 0.5, "optim/kl_sample_train_v2": 0.125, "optim/entropy": 0})


def test_8_2_stream_metrics():  # SPEC 8.2
    metrics = debate_metrics(DebateBatch([score(CIRCLE)]))
    assert metrics["v2/total_votes"] == 2
    assert metrics["v2/missing_comparisons"] == 1  # agent 1 named nobody that exists
    assert metrics["v2/comparison_lines_invalid"] == 1
    metrics |= rewards(DebateBatch([score(CIRCLE)]))
    gen = [0, 0.5, -1]  # one tie; a tie and a win; a loss
    assert metrics["reward/gen/mean"] == pytest.approx(np.mean(gen))
    assert metrics["reward/gen/std"] == pytest.approx(np.std(gen))
    assert (metrics["reward/judge/mean"], metrics["reward/judge/std"]) == pytest.approx((0.5, 0.5))
    assert metrics["reward/format/mean"] == pytest.approx(-0.5 / 6)
    assert debate_metrics(DebateBatch([])) == rewards(DebateBatch([])) == {}


def test_8_3_answers():  # SPEC 8.3
    right, wrong, other = Grade(True, "42"), Grade(False, "41"), Grade(False, "40")
    grades = [[right, right, wrong], [right, wrong, other], [wrong, wrong, right], [UNANSWERED] * 3]
    metrics = answer_metrics(grades, "train_gsm8k")
    assert metrics == pytest.approx(
        {
            "train_gsm8k/answers": 12,
            "train_gsm8k/format": 9 / 12,
            "train_gsm8k/correct": 4 / 12,
            "train_gsm8k/pass@3": 3 / 4,
            "train_gsm8k/avg@3": 4 / 12,
            "train_gsm8k/cons@3": (1 + 1 / 3 + 0 + 0) / 4,
            "train_gsm8k/strict_cons@3": 1 / 4,
        }
    )
    assert set(answer_metrics(grades, "eval/direct/gsm8k")) >= {"eval/direct/gsm8k/pass@3"}
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: ["hm", short(solution="\\boxed{42}"), short()][ask.agent])
    assert final_grades(debate, turn_grades([debate], exact)[0]) == [UNANSWERED, Grade(True, "42"), UNANSWERED]
    late = Grade(False, None, timed_out=True)  # nobody knows, so it is neither right nor wrong
    assert answer_metrics([[right, late], [late, late]], "x") == {
        "x/answers": 1,
        "x/timed_out": 3,
        "x/format": 1,
        "x/correct": 1,
        "x/pass@2": 0.5,
        "x/avg@2": 1,
        "x/cons@2": 0.5,
        "x/strict_cons@2": 0,  # one of two is not more than half
    }
    several = answer_metrics([[right], [right, wrong], [wrong, wrong]], "x")  # each k by itself
    assert (several["x/correct"], several["x/pass@1"], several["x/pass@2"], several["x/avg@2"]) == (0.4, 1, 0.5, 0.25)
    assert last_boxed(r"\boxed{1} then \boxed{\frac{1}{2}} \boxed{3") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{\boxed{4}}") == "4"
    assert last_boxed("{" * 5) is None


def test_8_4_vote_quality():  # SPEC 8.4
    answers = {0: "41", 1: "42", 2: "a long way to 40", 3: "42", 4: "42", 5: "40"}
    ballots = {3: "Agent 1 > Agent 2", 4: "Agent 2 > Agent 0", 5: "Agent 0 = Agent 1"}

    def said(ask):
        return short(ballots.get(ask.turn, "N/A"), f"\\boxed{{{answers[ask.turn]}}}")

    debate = played(Parallel(agents=3, max_rounds=2), said)
    grades = turn_grades([debate], exact)
    assert [grade.right for grade in grades[0]] == [False, True, False, True, True, False]
    metrics = vote_quality(DebateBatch([score(debate)], grades))
    assert metrics["votes/between_right_and_wrong"] == 2
    assert metrics["votes/accuracy"] == 0.75  # one right, one tie
    assert metrics["votes/accuracy_beyond_own"] == 0.5  # agent 2 holds neither 41 nor 42; agent 0 voted for its own
    assert metrics["votes/winner_is_right"] == 1
    assert metrics["flips/wrong_to_right"] == 0.5
    assert metrics["flips/right_to_wrong"] == 0
    assert [metrics[f"bias/seat/{agent}"] for agent in range(3)] == [0.25, 0.75, 0.5]
    assert metrics["bias/persona/Devil's Advocate"] == 0.5
    assert metrics["bias/longer"] == 0.5  # 1 > 2 chose the shorter, 2 > 0 the longer
    assert metrics["bias/first"] == pytest.approx(2.5 / 3)  # agent 1 is shown agent 2 before agent 0, and a tie is half
    by_seat = played(Parallel(agents=3, max_rounds=2, order_shown="seat"), said)
    open_ended = vote_quality(DebateBatch([score(by_seat)]))  # what votes favour is known without the truth
    assert open_ended["bias/first"] == pytest.approx(1.5 / 3)
    assert "votes/accuracy" not in open_ended
    voted = Ballot(agents=3, shown=2, ballot_form="pairs")
    ballots = played(voted, lambda ask: "B > A" if ask.agent else "A > B" if ask.round else "x")
    assert bias_counts(score(ballots))["bias/first"] == (1, 3)
    apart = played(Ballot(agents=3), lambda ask: "x", likely=lambda ask, options: (0.6, 0.4))
    assert "bias/first" not in bias_counts(score(apart))  # each answer has a prompt of its own
    silent = vote_quality(DebateBatch([score(parallel(3, [None] * 3))], [[UNANSWERED] * 3]))
    assert silent == {"votes/between_right_and_wrong": 0}


def test_9_11_diversity():  # SPEC 9.11
    boxed, words = Question("q", "?", style="boxed"), Question("q", "?")
    assert diversity(boxed, [r"so \boxed{1,200}", r"\boxed{1200.0}", r"\boxed{7}", "none"]) == (5, 6)  # the first two agree
    assert diversity(words, ["The red fox", "the RED dog", "the red fox"]) == (0.5 + 0 + 0.5, 3)
    assert diversity(words, ["one"]) == (0, 0)
    assert diversity(words, ["", ""]) == (0, 1)


def test_8_5_full_transcripts_are_kept():  # SPEC 8.5
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: short("Agent 0 > Agent 1" if ask.agent == 2 else "N/A"))
    line = json.loads(dump(debate))
    assert line["question"] == debate.question.text
    for turn, said in zip(line["turns"], debate.turns, strict=True):
        assert turn["text"] == said.text
        assert set(turn["sections"]) == {"solution", "evaluation", "comparison"}
    assert [message["role"] for message in line["turns"][0]["asked"]] == ["system", "user"]
    assert load(dump(debate)) == debate
    thin = load(dump(debate, thin=True))
    assert len(dump(debate, thin=True)) < len(dump(debate)) / 3
    for reward in ("win_rate", "win_minus_loss", "streams"):
        rules = RewardRules(reward=reward)
        assert score(thin, rules).streams == score(debate, rules).streams


def copied(debate):
    scored = score(debate)
    return sorted(copied_votes(scored)), form_counts(scored)["votes/copied"]


def test_8_6_form_and_copies():  # SPEC 8.6
    loose = played(Parallel(agents=2, max_rounds=1), lambda ask: "4" if ask.agent else short())
    counts = shares(form_counts(score(loose)))
    assert (counts["replies/readable"], counts["replies/tolerated"]) == (1.0, 0.5)

    # Choices are no replies: answers that are all cut off are all unreadable.
    ballots = played(Ballot(agents=3), lambda ask: "1 1 1", likely=lambda *_: (0.5, 0.5))
    cut = Parsed(error=ParseError("truncated"))
    endless = replace(ballots, turns=(*(replace(turn, parsed=cut) for turn in ballots.turns[:3]), *ballots.turns[3:]))
    assert shares(form_counts(score(endless)))["replies/readable"] == 0

    def by_seat(ask, agents=4):
        a, b, c = ((ask.agent + step) % agents for step in (1, 2, 3))
        return short(f"Agent {a} > Agent {b}\nAgent {b} = Agent {c}" if ask.seen else "N/A")

    # For every seat the same relative ballot: its two preferences are copied, its tie is not.
    seats = Parallel(agents=4, max_rounds=2)
    assert copied(played(seats, by_seat)) == ([0, 2, 4, 6], (4.0, 8.0))
    honest = played(seats, lambda ask: short("Agent 2 > Agent 3" if ask.agent == 0 and ask.seen else by_seat(ask)[-60:]))
    assert copied(honest)[0] == []
    # One who votes otherwise hides nobody: three times three preferences, of four voters, are no chance.
    ranked = ("1 2 3", "2 3 0", "3 0 1", "2 1 0")
    orders = [[f"Agent {a} > Agent {b}" for a, b in combinations(one.split(), 2)] for one in ranked]
    dissenter = played(seats, lambda ask: short("\n".join(orders[ask.agent]) if ask.seen else "N/A"))
    assert copied(dissenter) == ([*range(9)], (9.0, 12.0))
    two_voters = played(seats, lambda ask: by_seat(ask) if ask.agent < 2 else short())
    assert copied(two_voters) == ([], (0.0, 4.0))
    # What the referee's own words have as a vote is copied from them; what they quote is not.
    own = (("review", "Write <comparison>Agent 1 > Agent 2</comparison>."),)

    def says(ask):
        return short("Agent 1 > Agent 2" if ask.agent in (0, 3) and ask.seen else "N/A", solution="Agent 1 > Agent 2")

    assert copied(played(Parallel(agents=4, max_rounds=2, prompts=own), says)) == ([0, 1], (2.0, 2.0))
    assert copied(played(seats, says)) == ([], (0.0, 2.0))
    # Under letters: the same letters by all.
    ballot = Ballot(agents=4, shown=2, ballot_form="verdicts")
    letters = played(ballot, lambda ask: "A: right\nB: wrong" if ask.candidates else "x")
    assert copied(letters) == ([0, 1, 2, 3], (4.0, 4.0))
    soft = played(Ballot(agents=4, shown=2), lambda ask: "x", likely=lambda ask, options: (0.6, 0.4))
    assert copied(soft) == ([], (0.0, 0.0))

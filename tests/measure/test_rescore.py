"""Rewards held against the truth on saved debates, by hand and as a person runs it."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peergrad.config import TrainConfig
from peergrad.debate.play import Played
from peergrad.debate.transcript import dump, load
from peergrad.measure.rescore import candidates, rescore, verdict
from peergrad.measure.statistics import Interval
from peergrad.reward.rewards import RewardRules
from peergrad.runs.folder import Run
from peergrad.tasks.base import TIMED_OUT, UNANSWERED
from peergrad.tasks.open import regrade
from tests.commands import peergrad
from tests.helpers import parallel, short

GOLDEN = Path(__file__).parent.parent / "golden"
NONE = "N/A"
# Agent 0 alone is right; the votes say so, say the opposite, or say little.
SEEN = ["Agent 1 = Agent 2", "Agent 0 > Agent 2", "Agent 0 > Agent 1"]
MISSED = ["Agent 1 = Agent 2", "Agent 2 > Agent 0", "Agent 1 > Agent 0"]
VAGUE = [NONE, "Agent 0 = Agent 2", NONE]


def debate(name, answers, votes, truth="42", question=None):
    """Two rounds in which nobody changes an answer; the votes are the second round's."""
    turns = [
        {"agent": agent, "text": short(said, f"\\boxed{{{answers[agent]}}}")}
        for said_by in ([NONE] * len(answers), votes)
        for agent, said in enumerate(said_by)
    ]
    line = {"id": name, "question_id": question or name, "question": "?", "agents": len(answers), "protocol": "parallel"}
    return load(json.dumps(line | {"turns": turns, "answer": truth, "dataset": "sums"}))


def found(*debates, grade=regrade, **rules):
    return rescore(debates, RewardRules(**rules), grade)


def reward(result, name):
    return next(one for one in result.rewards if one.name == name)


def test_numbers_by_hand():
    result = found(debate("a", [42, 7, 7], SEEN), debate("b", [42, 7, 7], VAGUE))
    assert (result.debates, result.with_truth, result.mixed, result.timed_out) == (2, 2, 2, 0)
    # Win rates less their mean: 1/2, -1/4, -1/4 and 1/6, -1/3, 1/6; being right: 2/3, -1/3, -1/3 in both.
    rate = reward(result, "win_rate")
    assert rate.follows.value == pytest.approx((1 / 2 + 1 / 6) / math.sqrt((3 / 8 + 1 / 6) * 4 / 3))
    assert (rate.signal.value, rate.top_right.value) == (1, pytest.approx((1 + 1 / 2) / 2))
    # Generator stream: 1, -1/2, -1/2 and nothing, for a tie judges nobody better.
    gen = reward(result, "gen")
    assert gen.follows.value == pytest.approx(1 / math.sqrt(3 / 2 * 4 / 3))
    assert (gen.signal.value, gen.top_right.value) == (0.5, pytest.approx((1 + 1 / 3) / 2))
    assert (result.random_right.value, result.some_right.value) == (pytest.approx(1 / 3), 1)
    names = [one.name for one in result.rewards]
    assert result.agreement[names.index("win_rate")][names.index("gen")] == pytest.approx(
        (1 / 2 + 1 / 8 + 1 / 8) / math.sqrt((3 / 8 + 1 / 6) * 3 / 2)
    )
    assert [row[i] for i, row in enumerate(result.agreement)] == pytest.approx([1] * len(names))
    # The votes of the second round are the same line for line, so only what is not judged sets the published rules apart.
    assert result.same == ("win_rate literal", "win_minus_loss literal")


def test_votes_against_the_truth_count_against_a_reward():
    result = found(debate("a", [42, 7, 7], SEEN), debate("b", [42, 7, 7], MISSED))
    assert reward(result, "win_rate").follows.value == pytest.approx(0)
    assert reward(result, "win_rate").top_right.value == 0.5
    assert reward(found(debate("b", [42, 7, 7], MISSED)), "win_rate").follows == Interval(pytest.approx(-1), -1, 1)


def test_streams_by_turn():
    """Agents 1, 3 and 4 judge 0, who is right, against 2, who is not: two for, one against."""
    votes = [NONE, "Agent 0 > Agent 2", NONE, "Agent 2 > Agent 0", "Agent 0 > Agent 2"]
    result = found(debate("a", [42, 7, 7, 42, 7], votes))
    streams = {one.name: one for one in result.streams}
    assert (streams["gen"].turns, streams["gen"].follows.value) == (2, pytest.approx(1))
    # Held to all votes, the judges get 1, -1, 1; to the others' votes alone 0, -1, 0.
    for name in ("judge all", "judge others"):
        assert (streams[name].turns, streams[name].follows.value, streams[name].signal.value) == (3, pytest.approx(1), 1)
    # With every unjudged turn at -1, being right in the last round looks bad: ten turns, of them 0's first at 1/3.
    literal = streams["gen literal"]
    right, x = [1, 0, 0, 1, 0] * 2, [1 / 3, -1, -1 / 3, *[-1] * 7]
    mean_x, mean_y = sum(x) / 10, sum(right) / 10
    xy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, right, strict=True))
    xx, yy = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in right)
    assert (literal.turns, literal.follows.value) == (10, pytest.approx(xy / math.sqrt(xx * yy)))
    # Three agents: nobody else judges a pair, so the others can't be agreed with, and all is oneself (SPEC 4.8).
    alone = {one.name: one for one in found(debate("a", [42, 7, 7], [NONE, *SEEN[1:]])).streams}
    assert (alone["judge all"].signal.value, alone["judge others"].signal.value) == (0, 0)
    assert alone["judge all"].follows is None


def test_a_reward_that_can_be_gamed_is_found_out():
    """Three judges see that 0 is right; the fourth writes its three wrong votes twenty times each."""
    stuffed = "\n".join(f"Agent {agent} > Agent 0" for agent in (1, 3, 4) for _ in range(20))
    seen = {judge: "\n".join(f"Agent 0 > Agent {other}" for other in {1, 2, 3, 4} - {judge}) for judge in (1, 3, 4)}
    debates = [debate(f"d{i}", [42, 7, 7, 7, 7], [NONE, seen[1], stuffed, seen[3], seen[4]]) for i in range(30)]
    result = found(*debates)
    honest, gamed = reward(result, "win_rate"), reward(result, "win_rate literal")
    assert honest.follows.low > 0 > gamed.follows.high
    assert (honest.top_right.value, gamed.top_right.value) == (1, 0)
    assert result.lead["win_rate literal"].low > 0
    # A mean over ballots, shared by equal answers, is not even moved by the wrong votes as long as they are fewer.
    assert verdict(result).startswith("Train with borda")
    several = replace(result, best="gen", lead={name: gap for name, gap in result.lead.items() if name != "streams all"})
    assert "literal" not in verdict(several).split("less closely than")[-1]


def test_controls_stand_beside_the_votes_and_outside_the_contest():  # SPEC 4.13, 4.14
    """Agent 0 alone is right and found so by the votes; the majority is wrong."""
    result = found(*(debate(f"d{i}", [42, 7, 7], SEEN) for i in range(40)))
    follows = {one.name: one.follows.value for one in result.rewards}
    assert [follows["gen"], follows["truth"]] == pytest.approx([1, 1])
    assert follows["majority"] == pytest.approx(-1)
    assert abs(follows["gen shuffled"]) < 0.5  # 1, -1/2, -1/2 in any order
    assert {one.name for one in result.rewards} - {*result.lead} == {result.best, "majority", "gen shuffled", "truth"}
    assert result.best not in ("majority", "gen shuffled", "truth")
    names = [one.name for one in result.rewards]
    assert names[-3:] == ["majority", "gen shuffled", "truth"]
    assert result.agreement[names.index("majority")][names.index("gen")] == pytest.approx(-1)
    streams = {one.name: one.follows.value for one in result.streams if one.follows}
    assert (streams["gen"], streams["majority"]) == (pytest.approx(1), pytest.approx(-1))
    # What a person asks for is not what is compared, nor do labels leak into the votes.
    asked = candidates(RewardRules(votes="none", truth_weight="1 -> 0", outcome_bonus=1))
    assert asked == candidates(RewardRules())


def test_one_question_is_one_piece_of_evidence():
    one = found(*(debate(f"d{i}", [42, 7, 7], SEEN if i % 5 else MISSED, question="same") for i in range(30)))
    many = found(*(debate(f"d{i}", [42, 7, 7], SEEN if i % 5 else MISSED) for i in range(30)))
    assert reward(one, "win_rate").follows.value == pytest.approx(reward(many, "win_rate").follows.value)
    assert (reward(one, "win_rate").follows.low, reward(one, "win_rate").follows.high) == (-1, 1)
    assert reward(many, "win_rate").follows.low > 0


def test_options_reach_the_candidates():
    literal = candidates(RewardRules(ballots="literal", unjudged="literal", lambda_judge=0.5, self_votes="keep"))
    assert literal["gen"] == literal["gen literal"]
    assert literal["streams all"].lambda_judge == 0.5
    assert all(rules.self_votes == "keep" for rules in literal.values())
    assert literal["gen"].lambda_judge == 0
    assert set(found(debate("a", [42, 7, 7], SEEN), ballots="literal", unjudged="literal").same) == {
        name for name in literal if name.endswith(" literal")
    }
    unreadable = parallel(3, [NONE] * 3, [None, *SEEN[1:]], answer="42")
    punished, spared = found(unreadable), found(unreadable, format_penalty=False)
    assert reward(punished, "streams all").signal.value == 1
    assert reward(spared, "gen") == reward(punished, "gen")


def test_what_the_grader_could_not_tell_is_left_out():
    def grade(question, solution):
        return TIMED_OUT if "slow" in solution else regrade(question, solution)

    slow = found(debate("a", [42, 7, "slow"], SEEN), grade=grade)
    assert (slow.timed_out, slow.mixed) == (2, 1)
    assert slow.random_right.value == 0.5
    assert reward(slow, "win_rate").follows.value == pytest.approx(1)
    nobody = found(debate("a", ["slow"] * 3, SEEN), grade=grade)
    assert (nobody.with_truth, nobody.random_right, reward(nobody, "win_rate").top_right) == (1, None, None)
    assert "does not decide" in verdict(nobody)


def test_without_truth_there_is_still_signal_and_agreement():
    result = found(debate("a", [42, 7, 7], SEEN, truth=None), debate("b", [42, 7, 7], VAGUE, truth=None))
    assert (result.with_truth, result.mixed, result.random_right, result.best) == (0, 0, None, None)
    assert reward(result, "win_rate").follows is None
    assert (reward(result, "win_rate").signal.value, reward(result, "gen").signal.value) == (1, 0.5)
    assert result.agreement[0][0] == pytest.approx(1)
    assert "no known answers" in verdict(result)


def test_without_votes_nothing_is_said():
    result = found(debate("a", [42, 7, 7], [NONE] * 3), debate("b", [42, 42, 42], SEEN), format_penalty=False)
    assert reward(found(debate("a", [42, 7, 7], [NONE] * 3)), "win_rate").signal.value == 0
    assert reward(result, "win_rate").follows is None
    assert "does not decide" in verdict(result)
    quiet = found(debate("a", [42, 7, 7], [NONE] * 3), format_penalty=False)
    assert set(quiet.agreement[0]) == {None}
    assert quiet.rewards[0].top_right.value == pytest.approx(1 / 3)  # all are equally high
    assert found().rewards[0].signal is None
    never = found(
        load(json.dumps({"id": "x", "question": "?", "agents": 3, "protocol": "parallel", "turns": [], "answer": "1"}))
    )
    assert never.random_right.value == 0


def test_the_sentence_claims_no_more_than_the_intervals():
    result = found(debate("a", [42, 7, 7], SEEN), debate("b", [42, 7, 7], SEEN))
    sure, ahead, may_be_level = Interval(0.5, 0.4, 0.6), Interval(0.1, 0.05, 0.15), Interval(0.1, -0.05, 0.25)
    rewards = tuple(replace(one, follows=sure) for one in result.rewards[:3])
    result = replace(result, rewards=rewards, best="gen", lead={"win_rate": ahead, "win_minus_loss": ahead})
    assert verdict(result) == "Train with gen: it follows the truth more closely than every other reward here."
    some = replace(result, lead={"win_rate": ahead, "win_minus_loss": may_be_level})
    assert verdict(some) == (
        "win_rate follows the truth less closely than gen; the data does not decide between gen and win_minus_loss."
    )
    none = replace(result, lead={"win_rate": may_be_level, "win_minus_loss": may_be_level})
    assert "does not decide which" in verdict(none)
    weak = tuple(replace(one, follows=Interval(0.5, -0.1, 0.8)) for one in rewards)
    assert "No reward is known to follow the truth" in verdict(replace(result, rewards=weak))


def run(*arguments):
    return peergrad("rescore", *arguments, env=os.environ | {"COLUMNS": "80"})


def test_the_command_on_golden_transcripts():
    files = [GOLDEN / "debates.jsonl", GOLDEN / "worked.jsonl"]
    shown = run(*files)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "debates 13, of them with known answers 9, with right and wrong agents 6" in shown.stdout
    assert "…" not in shown.stdout  # nothing is cut off at the width of a usual terminal
    made = json.loads(run(*files, "--json", "--ballots", "literal").stdout)
    assert made["debates"] == 13
    assert made["verdict"] == " ".join(made["verdict"].split())
    assert {"name", "follows", "signal", "top_right"} == set(made["rewards"][0])


def test_the_command_on_a_run(tmp_path):
    kept = Run(tmp_path / "run")
    kept.begin(TrainConfig(), {})
    kept.save_debates("step_000001", Played((debate("a", [42, 7, 7], SEEN),), {}))
    kept.save_debates("step_000002", Played((debate("b", [42, 7, 7], VAGUE),), {}))
    kept.save_debates("eval_debate_000002", Played((debate("c", [42, 7, 7], MISSED),), {}))
    torn = tmp_path / "run" / "debates" / "step_000003.jsonl"
    torn.write_text(dump(debate("d", [42, 7, 7], SEEN))[:200] + "\x1b[31m")
    result = run(tmp_path / "run", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["debates"] == 2  # what it was trained on
    assert result.stderr.startswith("warning: ")
    assert "\x1b" not in result.stderr


def test_bad_paths_get_one_sentence(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.jsonl").write_text('{"id": 3}\n')
    Run(tmp_path / "new").begin(TrainConfig(), {})
    for arguments, words in (
        ([], "PATH: is missing"),
        ([tmp_path / "nothing"], "can't be read"),
        ([tmp_path], "is no run"),
        ([tmp_path / "empty.jsonl"], "no debate is kept there"),
        ([tmp_path / "new"], "no debate is kept there"),
        ([tmp_path / "bad.jsonl"], "bad.jsonl, line 1, protocol: is missing"),
    ):
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, ""), words
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


def test_no_heavy_library_is_loaded():
    code = (
        "import sys\nfrom peergrad.cli.main import main\n"
        f"sys.argv = ['peergrad', 'rescore', {str(GOLDEN / 'worked.jsonl')!r}, '--json']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "assert not {'torch', 'transformers', 'scipy', 'rich.table'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300).returncode == 0


def test_unanswered_is_wrong():
    assert found(debate("a", [42, "", 7], SEEN), grade=lambda q, s: UNANSWERED).random_right.value == 0

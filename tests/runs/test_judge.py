"""A judge with authority in a training run: its votes are in the reward as a hand calculation has them, and they fade."""

import json
import re

import pytest

from peergrad import UserError
from peergrad.measure.rescore import rescore
from peergrad.reward.rewards import RewardRules, score
from peergrad.runs.plan import plan_run
from tests import commands
from tests.openai.server import Response, Server, completion
from tests.runs.test_rewards import mean, saved, train
from tests.runs.test_run import adapter, run, settings

pytestmark = pytest.mark.slow


def first_is_best(request):
    """Whoever is shown first is better than everybody else."""
    first, *others = re.findall(r"^Agent (\d+)'s final answer:", request.body["messages"][-1]["content"], re.MULTILINE)
    votes = "\n".join(f"Agent {first} > Agent {other}" for other in others)
    return Response(completion(f"<evaluation>-</evaluation><comparison>{votes}</comparison>"))


def test_its_votes_are_the_reward_and_fade(tmp_path):  # SPEC 4.16
    with Server(first_is_best) as server:
        fade = {"judge": f"wise@{server.url}", "judge_weight": "1 -> 0 over 2", "protocol": "direct", "agents": 3}
        lines = train(tmp_path / "run", steps=3, wording="full", **fade)
    assert [line["judge_weight"] for line in lines] == [1, 0.5, 0]
    # Agent 0 wins twice: 1, or two halves. The others lose once each.
    assert lines[0]["reward/gen/mean"] == pytest.approx((1 - 1 - 1) / 3)
    assert lines[1]["reward/gen/mean"] == pytest.approx((1 - 0.5 - 0.5) / 3, abs=1e-12)
    assert [line["v2/total_votes"] for line in lines] == [0, 0, 0]
    assert [line.get("v2/judge_votes") for line in lines] == [6, 6, None]
    assert "reward/gen/mean" not in lines[2]
    assert len(server.requests) == 6  # of two steps: with a weight of 0 it is not asked
    debates = [debate for step in (1, 2, 3) for debate in saved(tmp_path / "run", step)]
    assert [debate.verdict and debate.verdict.by for debate in debates] == ["wise"] * 6 + [None] * 3
    shown = rescore(debates, RewardRules())
    assert "gen judged" in [reward.name for reward in shown.rewards]
    assert shown.best != "gen judged"
    assert "gen judged" not in [reward.name for reward in rescore(debates[6:], RewardRules()).rewards]


def test_beside_votes_of_agents(tmp_path):  # SPEC 4.16
    with Server(first_is_best) as server:
        (line,) = train(tmp_path / "run", steps=1, judge=f"wise@{server.url}")
    assert line["judge_weight"] == 1
    peers, judged = [], []
    for debate in saved(tmp_path / "run", 1):
        final = [index for index, turn in enumerate(debate.turns) if turn.round == 1]
        ends = {agent: debate.final_turn(agent) for agent in range(3)}
        able = [agent for agent in range(3) if ends[agent] is not None]
        by_peers = score(debate).streams[0].values
        assert all(by_peers[index] is None for index in final)  # nobody sees the last round but the judge
        for index, value in enumerate(by_peers):
            outcomes = [1.0] * (len(able) - 1) if len(able) > 1 and index == ends[able[0]] else []
            outcomes += [-1.0 for agent in able[1:] if index == ends[agent]]
            outcomes += [vote.value(debate.turns[index].agent) for vote in score(debate).tally.votes if index in vote.judged]
            peers += [value] if value is not None else []
            judged += [mean(outcomes)] if outcomes else []
    assert line["reward/gen/mean"] == pytest.approx(mean(judged))
    assert line["v2/judge_votes"] > 0
    assert len(judged) > len(peers)
    # The commands on what was saved: the judge's votes come last, by the seat after the last.
    transcript = tmp_path / "run" / "debates" / "step_000001.jsonl"
    scored = peergrad("score", transcript, "--judge-weight", 1, "--json")["debates"]
    by_command = [value for one in scored for value in one["streams"][0]["values"] if value is not None]
    assert mean(by_command) == pytest.approx(mean(judged))
    assert sum(vote["author"] == 3 for one in scored for vote in one["votes"]) == line["v2/judge_votes"]
    names = [reward["name"] for reward in peergrad("rescore", transcript, "--json")["rewards"]]
    assert names[-1] == "gen judged"


def peergrad(*args):
    return json.loads(commands.peergrad(*args).stdout)


def test_a_run_resumed_within_a_fade_ends_with_the_same_bytes(tmp_path):  # SPEC 4.15, 4.16
    with Server(first_is_best) as server:
        fade = {"judge": f"wise@{server.url}", "judge_weight": "4 -> 0 cosine"}
        whole = run(tmp_path / "whole", **fade)
        kept = run(tmp_path / "parts", save_every=1, **fade)
        for folder in sorted((kept.path / "checkpoints").iterdir())[2:]:
            for path in folder.iterdir():
                path.unlink()
        for path in (kept.path / "debates").glob("step_00000[23]*"):
            path.unlink()
        asked = len(server.requests)
        resumed = run(tmp_path / "parts", save_every=1, **fade)
        assert len(server.requests) > asked
        assert adapter(resumed) == adapter(whole)
        for name in ("step_000002.jsonl", "step_000003.jsonl"):
            assert (resumed.path / "debates" / name).read_bytes() == (whole.path / "debates" / name).read_bytes()
        lines = [
            [{k: v for k, v in line.items() if "time" not in k and "per_s" not in k} for line in made.metrics()]
            for made in (whole, resumed)
        ]
        assert lines[0] == lines[1]
        with pytest.raises(UserError, match="steps"):
            run(tmp_path / "parts", steps=5, save_every=1, **fade)
        with pytest.raises(UserError, match="judge"):
            run(tmp_path / "parts", save_every=1, **fade | {"judge": "base"})


def test_a_judge_that_can_not_be_is_refused_before_a_model_is_loaded(tmp_path):
    for rules, sentence in (
        ({"judge_weight": 2.0}, "judge_weight: there is no judge whose votes would count"),
        ({"judge": " "}, "judge: is empty; name a model"),
        ({"judge": "base", "votes": "majority"}, "judge: its votes count where votes do"),
        ({"judge": "base", "votes": "none"}, "judge: its votes count where votes do"),
        ({"judge": "base", "protocol": "direct", "agents": 1}, "judge: has nothing to compare"),
        ({"judge": "base", "judge_weight": "much"}, "judge_weight: 'much' is not possible; give a number, or"),
        ({"judge": "x@ftp://y"}, "base_url"),
        ({"judge": "smolm2"}, "'smolm2' is not known"),
    ):
        with pytest.raises(UserError, match=sentence):
            plan_run(settings(tmp_path / "run", model="nowhere", **rules))
    plan = plan_run(settings(tmp_path / "run", judge="base", protocol="direct"))
    assert (plan.opponents.seats, plan.opponents.judge) == ({3: "base"}, 3)


def test_the_weight_in_a_file_of_settings(tmp_path):
    from peergrad.debate.settings import changed, read_settings, to_toml

    config = settings(tmp_path / "run", judge="base", judge_weight="5 -> 0")
    (tmp_path / "mine.toml").write_text(to_toml(config))
    assert changed(settings(tmp_path / "run"), read_settings(tmp_path / "mine.toml"), "mine.toml") == config
    assert json.loads(json.dumps(config.learn.in_force(0))) == {"judge_weight": 5}

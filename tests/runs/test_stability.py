"""What keeps training steady, as a person trains with it: what is in the metrics is what a hand calculation gives."""

import asyncio
import shutil

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from peergrad import UserError, score
from peergrad.config import preset, with_protocol
from peergrad.debate.settings import changed
from peergrad.debate.transcript import read_file
from peergrad.reward.rewards import nobody_knows
from peergrad.runs.folder import Progress, Run
from peergrad.runs.plan import plan_run
from peergrad.runs.training import train_run
from tests.commands import peergrad
from tests.helpers import short
from tests.openai.server import Response, Server, completion
from tests.runs.test_run import PARROT, adapter, run, settings

pytestmark = pytest.mark.slow

QUICK = {"model": str(PARROT), "steps": 2, "batch": 3, "rank": 4, "threads": 1, "lr": 3e-3, "warm_steps": 1}
QUICK |= {"warm_debates": 8, "eval_questions": 0, "eval_debates": 0, "max_tokens": 40, "save_every": 1}


def train(out, **more):
    """The run of a command, and its lines of metrics."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (QUICK | more).items()]
    done = peergrad("train", "--preset", "demo-parallel", "--out", out, *flags)
    assert done.returncode == 0, done.stderr
    made = Run(out)
    return made, [line for line in made.metrics() if line["phase"] == "train"]


def again(out, **more):
    """The same in this process, which takes less long."""
    made = run(out, **(QUICK | more))
    return made, [line for line in made.metrics() if line["phase"] == "train"]


def learned_from(made, step, **more):
    """The debates of a step that have signal, and the advantages that they give by votes alone."""
    debates = list(read_file(made.path / "debates" / f"step_{step:06}.jsonl"))
    rules = settings(made.path, **(QUICK | more)).learn
    data = rules.training_data(debates, lambda _: nobody_knows).data
    return [debate for debate in debates if debate.id in {datum.debate for datum in data}], data


def gaps(debates, model):
    """Of every sampled token, its log-probability when it was sampled less that of a model of transformers."""
    differences = []
    for turn in (turn for debate in debates for turn in debate.turns):
        tokens = turn.tokens
        ids = torch.tensor(np.concatenate((tokens.prompt_T, tokens.ids_T)).astype(np.int64))
        with torch.no_grad():
            scores = (model(ids[None]).logits[0] / tokens.temperature).log_softmax(-1)
        said = scores[len(tokens.prompt_T) - 1 : -1].gather(1, ids[len(tokens.prompt_T) :, None])[:, 0]
        differences.append(tokens.logprobs_T - said.numpy())
    return np.concatenate(differences).astype(np.float64)


@pytest.fixture
def base():
    return AutoModelForCausalLM.from_pretrained(PARROT)


def test_5_5_kl_to_the_base_model(base, tmp_path):  # SPEC 5.5
    made, lines = train(tmp_path / "run", kl=0.5)
    for step, line in enumerate(lines, 1):
        debates, data = learned_from(made, step, kl=0.5)
        by_hand = gaps(debates, base)
        assert line["tokens/trained"] == sum(map(len, data))
        assert sum(int(datum.mask_T.sum()) for datum in data) == len(by_hand)  # all that was said in them
        assert line["optim/kl_base"] == pytest.approx(by_hand.mean(), abs=1e-5)
        assert line["optim/kl_base"] > 1e-3  # the warm start has moved it
        # On-policy the loss is minus the sum of all advantages, and the penalty's sum to nothing.
        votes = sum(float(datum.advantages_T.sum()) for datum in data)
        assert line["optim/loss"] == pytest.approx(-votes, abs=1e-3 * len(by_hand))
    without, plain = again(tmp_path / "without")
    assert "optim/kl_base" not in plain[0]
    assert adapter(without, 2) != adapter(made, 2)
    again(tmp_path / "resumed", kl=0.5, steps=1)
    resumed, same = again(tmp_path / "resumed", kl=0.5)
    assert adapter(resumed, 2) == adapter(made, 2)
    assert [line["optim/kl_base"] for line in same] == [line["optim/kl_base"] for line in lines]


def test_7_6_the_learning_rate_of_a_step(tmp_path):  # SPEC 7.6
    _, lines = train(tmp_path / "run", steps=3, lr_schedule="linear", lr_warmup=1)
    assert [line["lr"] for line in lines] == pytest.approx([1.5e-3, 3e-3, 1.5e-3])


def test_7_6_an_adaptive_learning_rate(base, tmp_path):  # SPEC 7.6
    adaptive = {"lr_schedule": "adaptive", "lr_max_kl": 1e-9}
    made, lines = train(tmp_path / "run", steps=3, **adaptive)
    assert [line["lr"] for line in lines] == [3e-3, 1.5e-3, 0.75e-3]  # every update goes so far
    after = PeftModel.from_pretrained(base, str(made.folder(Progress(1))))
    debates, data = learned_from(made, 1)
    credited = {(datum.debate, datum.agent): int(datum.mask_T.sum()) for datum in data}
    moved = []
    for debate in debates:
        for agent in range(debate.agents):
            turns = [turn for turn in debate.turns if turn.agent == agent]
            one = gaps([type(debate)(debate.id, debate.question, debate.protocol, tuple(turns))], after)
            moved.append(one[: credited.get((debate.id, agent), 0)])
    by_hand = np.concatenate(moved)
    assert lines[0]["optim/kl_update"] == pytest.approx(0.5 * (by_hand**2).mean(), rel=1e-3)
    assert lines[0]["optim/ratio_update"] == pytest.approx(np.exp(np.abs(by_hand).max()), rel=1e-3)
    again(tmp_path / "resumed", steps=2, **adaptive)
    resumed, same = again(tmp_path / "resumed", steps=3, **adaptive)
    assert [line["lr"] for line in same] == [line["lr"] for line in lines]
    assert adapter(resumed) == adapter(made)
    _, far = again(tmp_path / "far", lr_schedule="adaptive", lr_max_kl=100.0, lr_max_ratio=1e9)
    assert [line["lr"] for line in far] == [3e-3, 3e-3]


def test_what_an_engine_can_not_do_is_said_before_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend("examples")
    for setting, value in (("kl", 0.1), ("lr_schedule", "adaptive")):
        with pytest.raises(UserError, match=f"{setting}: calculator can't say how likely tokens are"):
            plan_run(settings(tmp_path, engine="my_engine:CALCULATOR", **{setting: value}))
    with pytest.raises(UserError, match=r"kl: -1 is not possible; give 0, for none"):
        settings(tmp_path, kl=-1.0)
    with pytest.raises(UserError, match=r"lr_warmup: 3 leaves none of the 3 steps"):
        settings(tmp_path, lr_warmup=3)


def speakers(made, step):
    """Who spoke in each seat of a step: the policy, or a named opponent."""
    debates = read_file(made.path / "debates" / f"step_{step:06}.jsonl")
    return {(turn.agent, turn.by) for debate in debates for turn in debate.turns}


def test_7_7_frozen_opponents(tmp_path):  # SPEC 7.7, 5.6
    seats = {"opponents": ("1=base", "2=-2"), "kl": 0.1, "steps": 4, "save_every": 0}
    flags = seats | {"opponents": "1=base"}
    made, lines = again(tmp_path / "run", **seats)
    old = ["warm_000001", "warm_000001", "warm_000001", "step_000001"]  # two steps ago, or where the self-play began
    assert [speakers(made, step) for step in (1, 2, 3, 4)] == [{(0, ""), (1, "base"), (2, name)} for name in old]
    for step, line in enumerate(lines, 1):
        debates = list(read_file(made.path / "debates" / f"step_{step:06}.jsonl"))
        _, data = learned_from(made, step, **seats)
        assert {datum.agent for datum in data} == {0}
        assert line["tokens/trained"] == sum(map(len, data))
        own = [turn for debate in debates for turn in debate.turns if not turn.by]
        assert line["replies/readable"] == np.mean([turn.parsed.error is None for turn in own])
        assert {name for name in line if name.startswith("reward/format/seat/")} == {"reward/format/seat/0"}
        assert "train_arithmetic/pass@1" in line  # of the one answer that is the policy's
        base_of_first = [score(debate) for debate in debates]
        form = [one.streams[-1].values[i] for one in base_of_first for i, t in enumerate(one.debate.turns) if not t.by]
        assert line["reward/format/mean"] == pytest.approx(np.mean(form))
    again(tmp_path / "resumed", **(seats | {"steps": 3}))
    resumed, _ = again(tmp_path / "resumed", **seats)
    assert adapter(resumed, 4) == adapter(made, 4)
    for name in ("step_000003.jsonl", "step_000004.jsonl"):
        assert (resumed.path / "debates" / name).read_bytes() == (made.path / "debates" / name).read_bytes()
    assert resumed.checkpoints() == [Progress(0), *(Progress(step) for step in (1, 2, 3, 4))]
    command, _ = train(tmp_path / "command", **flags)
    assert speakers(command, 1) == {(0, ""), (1, "base"), (2, "")}


def test_7_7_in_ballots(tmp_path):  # SPEC 7.7
    first, _ = again(tmp_path / "first", steps=1, warm_steps=0)
    run_name = str(first.path)
    seats = {"protocol": "ballot", "opponents": (f"0={run_name}",), "steps": 1, "warm_steps": 0, "agents": 4, "shown": 2}
    config = changed(with_protocol(preset("demo-parallel"), "ballot"), QUICK | seats | {"out": tmp_path / "run"}, "test")
    made = asyncio.run(train_run(config))
    everybody = {(seat, run_name if seat == 0 else "") for seat in range(config.debate.agents)}
    assert speakers(made, 1) == everybody
    debates = list(read_file(made.path / "debates" / "step_000001.jsonl"))
    assert {datum.agent for datum in config.learn.training_data(debates, lambda _: nobody_knows).data} <= {1, 2, 3}
    assert len(made.facts["opponent_sha256"]) == 1
    again(first.path, steps=2, warm_steps=0)  # it learns on
    with pytest.raises(UserError, match="has another opponent"):
        asyncio.run(train_run(changed(config, {"steps": 2}, "test")))


def test_opponents_that_can_not_be(tmp_path):
    for opponents, sentence in (
        (("0=base", "1=base", "2=base"), "hold every seat"),
        (("3=base",), "opponents 3: there is none"),
        (("base",), "opponents: is not SEAT=MODEL"),
        (("1=-0",), "give -1"),
        (("1=smolm2",), "'smolm2' is not known"),
    ):
        with pytest.raises(UserError, match=sentence):
            plan_run(settings(tmp_path, opponents=opponents))
    with pytest.raises(UserError, match="a sequential debate may end before an opponent has spoken"):
        plan_run(settings(tmp_path, opponents=("1=base",), protocol="sequential"))
    with pytest.raises(UserError, match="give -2, or more steps"):
        plan_run(settings(tmp_path, opponents=("1=-1",), max_staleness=2))


def test_7_7_any_model_may_be_an_opponent(tmp_path):  # SPEC 7.7
    shutil.copytree(PARROT, tmp_path / "other")
    with Server(lambda _: Response(completion(short("Agent 0 > Agent 2")))) as server:  # it gives no tokens, and need not
        seats = (f"1=clever@{server.url}", f"2={tmp_path / 'other'}")
        made, lines = again(tmp_path / "run", agents=4, opponents=seats, steps=1)
    assert speakers(made, 1) == {(0, ""), (1, "clever"), (2, str(tmp_path / "other")), (3, "")}
    assert {datum.agent for datum in learned_from(made, 1, agents=4)[1]} == {0, 3}
    assert "optim/loss" in lines[0]

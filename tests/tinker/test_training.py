"""Self-play on a service, by the official client: it ends with the same weights whoever dies on the way."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from starlette.responses import JSONResponse

from peergrad.config import preset
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.settings import changed
from peergrad.debate.transcript import read_file
from peergrad.engines.base import EngineConfig
from peergrad.engines.tinker.engine import Tinker
from peergrad.runs.folder import Progress, Run
from peergrad.runs.training import train_run
from tests.runs.killing import PARROT, steps_logged
from tests.tinker.proxy import Proxy, unavailable

SMALL = {"engine": "tinker", "model": str(PARROT), "steps": 3, "batch": 3, "rank": 4, "lr": 1e-3, "seed": 1}
SMALL |= {"warm_debates": 2, "eval_questions": 0, "eval_debates": 0, "deadline_s": 120.0}


def run(out, url, **more):
    return asyncio.run(train_run(changed(preset("demo-parallel"), SMALL | {"out": out, "base_url": url} | more, "test")))


def kept(made, server, step=3):
    """The adapter and the optimizer of a checkpoint, as the server has them."""
    path = json.loads((made.folder(Progress(step)) / "tinker.json").read_text())["path"]
    _, _, model, kind, name = path.split("/")
    return [
        load_file(str(server.out / model / kind / name / f"{part}.safetensors")) for part in ("adapter_model", "optimizer")
    ]


def words(made):
    """All that was said in a run."""
    debates = [read_file(made.path / f"debates/step_{step:06}.jsonl") for step in (1, 2, 3)]
    return [[turn.text for turn in debate.turns] for step in debates for debate in step]


def same_as(whole, made, server):
    """Every step was made once, and every update. Where the same words were said, the weights are the same.

    How requests meet in a batch changes the last bits of a log-probability, and so, once in many tokens, which of two is
    sampled. From there on two runs say other words, and neither of them is wrong.
    """
    assert steps_logged(made.path) == [1, 2, 3]
    assert [len(list(read_file(made.path / f"debates/step_{step:06}.jsonl"))) for step in (1, 2, 3)] == [3, 3, 3]
    (ours, moments), (theirs, _) = kept(made, server), kept(whole, server)
    # A step whose debates give no signal makes no update, and logs no loss; one more update is the warm start's.
    updates = 1 + sum("optim/loss" in line for line in made.metrics() if line["phase"] == "train")
    assert {float(value) for name, value in moments.items() if name.startswith("step.")} == {updates}
    if words(made) == words(whole):
        ours, theirs = (torch.cat([one[name].flatten() for name in sorted(one)]) for one in (ours, theirs))
        assert (ours - theirs).norm() < 1e-4 * theirs.norm()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run", server.url)


@pytest.fixture
def proxy(server):
    made = Proxy(server.url)
    yield made
    made.close()
    if not alive(server):
        server.start()


def alive(server):
    try:
        os.kill(server.pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in open(f"/proc/{server.pid}/status").read() if sys.platform == "linux" else True


def test_three_steps_of_self_play(whole, server):
    assert steps_logged(whole.path) == [1, 2, 3]
    first, *_ = [line for line in whole.metrics() if line["phase"] == "train"]
    for line in whole.metrics():
        if line["phase"] == "train":  # SPEC 6.7: on-policy the ratio is 1, for every persona
            assert line["optim/ratio/min"] == pytest.approx(1, abs=1e-4)
            assert line["optim/ratio/max"] == pytest.approx(1, abs=1e-4)
    assert first["optim/grad_norm"] > 0
    debates = list(read_file(whole.path / "debates" / "step_000001.jsonl"))
    assert {turn.tokens.temperature for debate in debates for turn in debate.turns} == {1.0}
    assert whole.facts["versions"]["tinker"]


def test_the_service_keeps_what_the_run_keeps(whole, server):
    here = [kept(whole, server, at.step) for at in whole.checkpoints()]
    assert len(here) == 3  # the first, and the newest two
    model = json.loads((whole.folder(Progress(3)) / "tinker.json").read_text())["path"].split("/")[2]
    end = time.monotonic() + 300
    while len(there := list((server.out / model / "weights").iterdir())) > 3:
        assert time.monotonic() < end, there
        time.sleep(0.05)


def states(server):
    return {f"{state.parent.parent.name}/{state.name}" for state in server.out.glob("*/weights/*")}


def states_of(made):
    found = [json.loads((made.folder(at) / "tinker.json").read_text())["path"] for at in made.checkpoints()]
    return {"/".join(state.removeprefix("tinker://").split("/weights/")) for state in found}


def test_the_client_is_killed(whole, server, processes, tmp_path, cache):
    """The service keeps nothing of what was cut off; but what a copy of the run names is not removed because it does."""
    before = states(server)
    flags = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    pid, log = processes.begin(
        "train",
        "--preset",
        "demo-parallel",
        "--out",
        str(tmp_path / "run"),
        "--base-url",
        server.url,
        *flags,
        TINKER_API_KEY="tml-x",
        XDG_CACHE_HOME=str(cache),
    )
    made, end = Run(tmp_path / "run"), time.monotonic() + 300
    while Progress(1) not in made.checkpoints():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    assert processes.wait(pid) == -signal.SIGKILL
    assert Progress(3) not in made.checkpoints()
    shutil.copytree(made.path, tmp_path / "copy")
    same_as(whole, run(tmp_path / "copy", server.url), server)
    assert states_of(made) <= states(server)
    resumed = run(tmp_path / "run", server.url)
    same_as(whole, resumed, server)
    end, named = time.monotonic() + 300, states_of(resumed) | states_of(Run(tmp_path / "copy"))
    while (states(server) - before) - named:
        assert time.monotonic() < end, (states(server) - before, named)
        time.sleep(0.05)


@pytest.mark.parametrize("moved", ["a new run", "another run", "a copy"])
def test_a_run_that_was_moved_keeps_its_checkpoints(server, tmp_path, moved):
    """Another run in its old place does not take what it has kept at the service for its own."""
    one, two = tmp_path / "peer" / "checkpoints", tmp_path / "peer-2" / "checkpoints"
    at = EngineConfig(model=str(PARROT), base_url=server.url, deadline_s=120)

    async def save_and_load():
        engine = Tinker(at)
        await engine.save(one / "step_1")
        if moved == "another run":
            await engine.save(two / "step_1")
        one.parent.rename(tmp_path / "old")
        if moved == "another run":
            two.parent.rename(one.parent)
        elif moved == "a copy":
            shutil.copytree(tmp_path / "old", one.parent)
        await engine.save(one / "step_2")
        if moved == "a copy":
            shutil.rmtree(one / "step_1")
        await engine.load(one / "step_2")
        await engine.close()
        again = Tinker(at)
        await again.load(tmp_path / "old" / "checkpoints" / "step_1")
        await again.close()

    asyncio.run(save_and_load())


def test_notes_of_a_folder_end_where_a_new_run_begins(server, tmp_path):
    """The folder may be the same to the system: an id of one that was removed is given again."""
    one = tmp_path / "peer" / "checkpoints"
    at = EngineConfig(model=str(PARROT), base_url=server.url, deadline_s=120)

    async def save_and_load():
        engine = Tinker(at)
        await engine.save(one / "step_1")
        (one / "step_1").rename(tmp_path / "old")
        await engine.save(one / "step_2")
        await engine.load(one / "step_2")
        await engine.close()
        again = Tinker(at)
        await again.load(tmp_path / "old")
        await again.close()

    asyncio.run(save_and_load())


@pytest.mark.parametrize(
    ("path", "number", "done"),
    [
        pytest.param("create_model", 1, True, marks=pytest.mark.slow),
        pytest.param("forward_backward", 1, True, marks=pytest.mark.slow),  # of the warm start
        ("asample", 9, False),
        pytest.param("forward_backward", 3, False, marks=pytest.mark.slow),
        ("optim_step", 3, True),
        pytest.param("save_weights_for_sampler", 3, True, marks=pytest.mark.slow),
        ("save_weights", 4, True),
    ],
)
def test_the_server_is_killed(whole, server, proxy, tmp_path, path, number, done):
    """While sampling, training or saving; with ``done`` the server did it and nobody heard of it."""

    async def fault(asked, _, forward):
        if asked == path and proxy.seen.count(path) == number:
            if done:
                made = await forward()
                assert made.status_code == 200
                await asyncio.sleep(0.3)
            server.kill()
        return await forward()

    proxy.fault = fault
    begun = time.monotonic()
    with pytest.raises(EngineError, match="the same command resumes the run"):
        run(tmp_path / "run", proxy.url, deadline_s=30.0)
    assert time.monotonic() - begun < 300
    server.start()
    same_as(whole, run(tmp_path / "run", server.url), server)


def test_a_server_that_dies_in_the_last_wave(whole, server, proxy, tmp_path):
    """What is left of a batch is not trained on as if it were the batch."""
    replies = 0

    async def fault(asked, request, forward):
        nonlocal replies
        made = await forward()
        if replies >= 16:  # of 18: some debates are whole
            return unavailable()
        replies += asked == "retrieve_future" and request.headers["x-tinker-request-type"] == "Sample"
        return made

    proxy.fault = fault
    with pytest.raises(EngineError, match="can't be reached any more"):
        run(tmp_path / "run", proxy.url)
    assert not list((tmp_path / "run" / "debates").glob("step_*"))
    same_as(whole, run(tmp_path / "run", server.url), server)


def test_a_sampler_that_is_refused(whole, server, proxy, tmp_path):
    """The reason is told, though a checkpoint would be asked for next."""

    async def fault(asked, _, forward):
        refused = asked == "save_weights_for_sampler" and proxy.seen.count(asked) == 2
        return JSONResponse({"detail": "no room"}, 422) if refused else await forward()

    proxy.fault = fault
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"refuses a sampler \(422: no room\)"):
        run(tmp_path / "run", proxy.url)
    assert time.monotonic() - begun < 300
    same_as(whole, run(tmp_path / "run", server.url), server)


def test_a_checkpoint_that_is_lost(server, tmp_path):
    made = run(tmp_path / "run", server.url, steps=1)
    model = json.loads((made.folder(Progress(1)) / "tinker.json").read_text())["path"].split("/")[2]
    shutil.rmtree(server.out / model)
    with pytest.raises(UserError, match=r"step_000001: .* does not have its weights .*remove that folder"):
        run(tmp_path / "run", server.url, steps=2)


def test_a_burst_of_errors(whole, server, proxy, tmp_path):
    """Requests are refused, and answers lost after the work was done: what is sent again is not done again."""
    lost = set[str]()

    async def fault(asked, _, forward):
        count = proxy.seen.count(asked)
        if asked in ("optim_step", "forward_backward", "asample") and count in (3, 4) and f"{asked}{count}" not in lost:
            lost.add(f"{asked}{count}")
            if count == 3:
                await forward()
            return unavailable()
        return await forward()

    proxy.fault = fault
    same_as(whole, run(tmp_path / "run", proxy.url), server)
    assert len(lost) == 6


@pytest.mark.slow
def test_a_result_that_never_comes(whole, server, proxy, tmp_path):
    async def fault(asked, request, forward):
        if asked == "retrieve_future" and request.headers["x-tinker-request-type"] == "OptimStep":
            await asyncio.sleep(0.2)
            return unavailable()
        return await forward()

    proxy.fault = fault
    begun = time.monotonic()
    with pytest.raises(EngineError, match=re.escape("the update took longer than 20 s")):
        run(tmp_path / "run", proxy.url, deadline_s=20.0)
    assert time.monotonic() - begun < 300
    same_as(whole, run(tmp_path / "run", server.url), server)

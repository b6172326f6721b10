"""What the official client finds behind ``peergrad serve``, and what others find who send nonsense."""

import asyncio
import itertools
import json
import random
import secrets
import sys
import time
from dataclasses import replace

import httpx
import numpy as np
import pytest
import tinker
import torch
from safetensors.torch import load_file
from starlette.responses import JSONResponse, Response

from peergrad import UserError
from peergrad.cli.serve import ServeConfig, command
from peergrad.config import EngineConfig, UpdateConfig
from peergrad.debate.errors import EngineError
from peergrad.debate.types import Ask, Message
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.engines.local.sample.sampler import CompletionRequest
from peergrad.engines.shared.chat import load_chat
from peergrad.engines.tinker.engine import Tinker
from peergrad.learn import losses
from peergrad.learn.data import Datum
from peergrad.serve.samplers import RequestBatcher
from tests.runs.killing import PARROT
from tests.serve.messages import PROTOBUF, forward_backward, optim_step
from tests.tinker.processes import Server
from tests.tinker.proxy import Proxy

MODEL = str(PARROT)
OTHER = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # this machine too
LOSSES = ["importance_sampling", "ppo", "cispo", "cross_entropy"]


def engine(url, **more):
    return Tinker(EngineConfig(model=MODEL, base_url=url, deadline_s=30), UpdateConfig(rank=4, **more))


def datum(length, rng):
    mask = (rng.random(length) < 0.6).astype(np.float32)
    mask[-1] = 1
    ids = rng.integers(0, 480, length + 1).astype(np.int32)
    advantages, logprobs = mask * rng.normal(0, 1, length), mask * rng.normal(-6, 0.3, length)
    ones, floats = np.ones(length, np.float32), np.float32
    return Datum("d", 0, (0,), ids[:-1], ids[1:], logprobs.astype(floats), advantages.astype(floats), mask, ones)


def weights(server, path):
    _, _, run, kind, name = path.split("/")
    return load_file(str(server.out / run / kind / name / "adapter_model.safetensors"))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_through_the_wire_is_the_local_engines(server, loss, tmp_path):
    rng = np.random.default_rng(3)
    batches = [[datum(length, rng) for length in (40, 7, 25, 60)] for _ in range(2)]
    far, here = engine(server.url), Local.load_model(MODEL, threads=1, lora=LoraRules(rank=4, alpha=32.0))

    async def both():
        for data in batches:
            there, local = await far.step(data, loss, 1e-2), await here.step(data, loss, 1e-2)
            terms = float(sum(np.abs(d.advantages_T).sum() for d in data))  # they cancel
            assert there.loss == pytest.approx(local.loss, abs=1e-5 * terms)
            assert there.grad_norm == pytest.approx(local.grad_norm, rel=1e-5)
            assert dict(there.metrics) == pytest.approx(dict(local.metrics), abs=1e-5)
        await far.save(tmp_path)

    asyncio.run(both())
    found = weights(server, json.loads((tmp_path / "tinker.json").read_text())["path"])
    assert found.keys() == here._lora.weights.keys()
    for name, weight in here._lora.weights.items():
        assert (found[name] - weight).abs().max() < 1e-5
    assert max(float(found[name].abs().max()) for name in found if "lora_B" in name) > 1e-3  # it has learned


def test_how_likely_tokens_are_is_the_same_through_the_wire(server):  # SPEC 5.5, 7.6
    rng = np.random.default_rng(4)
    data = [datum(length, rng) for length in (40, 7, 25)]
    far, here = engine(server.url), Local.load_model(MODEL, threads=1, lora=LoraRules(rank=4, alpha=32.0))

    async def scores(one, base):
        return np.concatenate(await one.logprobs(data, base=base))

    async def both():
        start = await scores(here, True)
        assert await scores(here, False) == pytest.approx(start, abs=1e-5)  # nothing is learned yet
        await far.step(data, "importance_sampling", 1e-2)
        await here.step(data, "importance_sampling", 1e-2)
        assert (await scores(here, True) == start).all()  # the base model stays
        assert await scores(far, True) == pytest.approx(start, abs=1e-4)
        after = await scores(here, False)
        assert await scores(far, False) == pytest.approx(after, abs=1e-4)
        sampled = np.concatenate([one.mask_T for one in data]) > 0
        assert np.abs(after - start)[sampled].max() > 1e-3
        assert not after[~sampled].any()
        (loss,) = {(await here.step(data, "cross_entropy", 0.0)).loss}  # by the same pass with gradients
        weights = np.concatenate([one.advantages_T for one in data])
        assert loss == pytest.approx(-float((weights * after).sum()), abs=1e-3)

    asyncio.run(both())


def test_an_update_the_service_skipped_has_a_fault(server):
    rng = np.random.default_rng(3)
    good, bad = datum(20, rng), datum(30, rng)
    bad = replace(bad, advantages_T=np.full(30, 3e38, np.float32), mask_T=np.ones(30, np.float32))

    async def both():
        far = engine(server.url)
        return await far.step([good], "importance_sampling", 1e-2), await far.step([good, bad], "importance_sampling", 1e-2)

    made, lost = asyncio.run(both())
    assert (made.skipped, made.faults) == (False, ())
    assert lost.skipped
    (fault,) = lost.faults
    assert fault.why == "the service skipped it: loss or gradient was not finite"
    assert fault.data == (good, bad)


def test_samplers_are_frozen_and_their_logprobs_are_the_trainers(server):
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-x")
    client = service.create_lora_training_client(MODEL, rank=4, seed=1)
    prompt = tinker.ModelInput.from_ints(list(range(20, 40)))
    params = tinker.SamplingParams(max_tokens=16, seed=5, temperature=1.0)
    base = service.create_sampling_client(base_model=MODEL)
    first = client.save_weights_and_get_sampling_client()
    named = client.save_weights_for_sampler("first").result().path
    before = first.sample(prompt, 3, params).result()
    said = before.sequences[0]
    full = prompt.to_ints() + said.tokens
    inputs = {
        "target_tokens": full[1:],
        "logprobs": [0.0] * 19 + said.logprobs,
        "advantages": [0.0] * 19 + [1.0] * len(said.tokens),
    }
    data = [tinker.Datum(tinker.ModelInput.from_ints(full[:-1]), inputs)]
    made = client.forward_backward(data, "importance_sampling")
    client.optim_step(tinker.AdamParams(learning_rate=0.05)).result()
    trained = made.result().loss_fn_outputs[0]["logprobs"].tolist()[19:]
    assert trained == pytest.approx(said.logprobs, abs=1e-4)
    scored = first.compute_logprobs(tinker.ModelInput.from_ints(full)).result()
    assert scored[0] is None
    assert scored[20:] == pytest.approx(said.logprobs, abs=1e-4)
    second = client.save_weights_and_get_sampling_client()
    for sampler in (first, service.create_sampling_client(model_path=named), base):
        again = sampler.sample(prompt, 3, params).result()
        assert [s.tokens for s in again.sequences] == [s.tokens for s in before.sequences]
    assert [s.tokens for s in second.sample(prompt, 3, params).result().sequences] != [s.tokens for s in before.sequences]
    assert [
        c.checkpoint_id
        for c in tinker.RestClient(base_url=server.url, api_key="tml-x")
        .list_checkpoints(client.model_id)
        .result()
        .checkpoints
    ] == ["sampler_weights/first"]
    service.close("success")


def test_checkpoints_are_listed_and_removed_and_expire(server):
    service, rest = (make(base_url=server.url, api_key="tml-x") for make in (tinker.ServiceClient, tinker.RestClient))
    client = service.create_lora_training_client(MODEL, rank=4, seed=1, user_metadata={"renderer_name": "qwen3"})
    run, prompt = client.model_id, tinker.ModelInput.from_ints(list(range(20, 40)))

    def names():
        return [one.checkpoint_id for one in rest.list_checkpoints(run).result().checkpoints]

    def trained():
        data = [tinker.Datum(prompt, {"target_tokens": list(range(21, 41)), "weights": [1.0] * 20})]
        client.forward_backward(data, "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=0.05)).result()

    def scored(sampler):
        return sampler.compute_logprobs(prompt).result()[1:]

    assert names() == []
    state = client.save_state("1", ttl_seconds=3600).result().path
    path = client.save_weights_for_sampler("a").result().path
    old = service.create_sampling_client(model_path=path)
    before = scored(old)
    assert names() == ["weights/1", "sampler_weights/a"]
    found = rest.get_training_run_by_tinker_path(path).result()
    assert (found.training_run_id, found.lora_rank, found.user_metadata) == (run, 4, {"renderer_name": "qwen3"})
    assert found.last_checkpoint.tinker_path == state
    assert found.last_sampler_checkpoint.expires_at is None
    assert 3500 < found.last_checkpoint.expires_at.timestamp() - time.time() <= 3600
    files = list((server.out / run / "weights" / "1").iterdir())
    assert found.last_checkpoint.size_bytes == sum(file.stat().st_size for file in files)
    assert [one.tinker_path for one in rest.list_user_checkpoints(limit=2).result().checkpoints] == [path, state]
    listed = rest.list_training_runs(limit=1).result()
    assert (listed.training_runs[0].training_run_id, listed.cursor.limit) == (run, 1)
    assert listed.cursor.total_count >= 1

    rest.delete_checkpoint_from_tinker_path(path).result()
    assert names() == ["weights/1"]
    assert not (server.out / run / "sampler_weights" / "a").exists()
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.NotFoundError):
        service.create_sampling_client(model_path=path)
    trained()
    assert client.save_weights_for_sampler("a").result().path == path  # the name is free, and means other weights now
    assert scored(old) == before
    assert scored(service.create_sampling_client(model_path=path)) != pytest.approx(before, abs=0.01)

    rest.set_checkpoint_ttl_from_tinker_path(state, None).result()
    assert rest.get_training_run(run).result().last_checkpoint.expires_at is None
    rest.set_checkpoint_ttl_from_tinker_path(path, 1).result()
    time.sleep(1.1)
    assert names() == ["weights/1"]
    with pytest.raises(tinker.NotFoundError):
        service.create_sampling_client(model_path=path)
    client.save_state("2").result()  # makes room first
    assert not (server.out / run / "sampler_weights" / "a").exists()
    assert names() == ["weights/1", "weights/2"]
    service.close("success")
    assert rest.get_training_run(run).result().user_metadata == {"renderer_name": "qwen3"}  # from what is on disk


def test_stops(server):
    client = tinker.ServiceClient(base_url=server.url, api_key="tml-x").create_sampling_client(base_model=MODEL)
    chat = load_chat(MODEL)

    def said(prompt, stop, samples=1, seed=0):
        params = tinker.SamplingParams(max_tokens=60, seed=seed, stop=stop)
        made = client.sample(tinker.ModelInput.from_ints(prompt), samples, params).result().sequences
        return [(one.tokens, one.stop_reason) for one in made]

    free, seed = [*chat.ends], -1
    while chat.ends & {*free}:  # until one never ends its turn
        seed += 1
        ((free, reason),) = said(list(range(20, 40)), [], seed=seed)
        assert (len(free), reason) == (60, "length")
    assert said(list(range(20, 40)), [free[7]], seed=seed) == [(free[: free.index(free[7]) + 1], "stop")]
    # A text may be in several tokens, and end within one; what was said up to there is kept whole.
    pieces = [chat.piece(id) for id in free]
    at = next(at for at in range(5, 60) if (pieces[at - 1] + pieces[at]).isascii() and len(pieces[at]) > 2)
    text = (pieces[at - 1][-1:] + pieces[at][:-1]).decode()
    end = next(end for end in range(60) if text.encode() in b"".join(pieces[: end + 1]))
    for stop in (text, ["never said", text]):
        assert said(list(range(20, 40)), stop, seed=seed) == [(free[: end + 1], "stop")]
    question = chat.prompt((Message("user", "What is 1 + 1?"),)).tolist()
    usual, unending = said(question, None, 16), said(question, [], 16)
    assert {reason for _, reason in usual} == {"stop", "length"}
    assert {(len(tokens), reason) for tokens, reason in unending} == {(60, "length")}
    (im_end,) = chat.ends
    for (tokens, reason), (longer, _) in zip(usual, unending, strict=True):
        assert tokens == (longer[: longer.index(im_end) + 1] if reason == "stop" else longer)


def test_the_first_token_has_no_logprob(server):
    client = tinker.ServiceClient(base_url=server.url, api_key="tml-x").create_sampling_client(base_model=MODEL)
    one, three = tinker.ModelInput.from_ints([5]), tinker.ModelInput.from_ints([5, 6, 7])
    assert client.compute_logprobs(one).result() == [None]
    assert client.compute_logprobs(one, prompt_logprobs_last_n=1).result() == [None]
    whole = client.compute_logprobs(three).result()
    assert client.compute_logprobs(three, prompt_logprobs_last_n=3).result() == pytest.approx(whole)
    assert client.compute_logprobs(three, prompt_logprobs_last_n=1).result() == [None, None, pytest.approx(whole[2])]


@pytest.mark.parametrize(("loss", "oracle"), [("ppo", losses.ppo), ("cispo", losses.cispo)])
def test_a_program_has_its_own_thresholds(server, loss, oracle):
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-x")
    client, rng = service.create_lora_training_client(MODEL, rank=4, seed=1), np.random.default_rng(0)
    ids, sampled, advantages = rng.integers(20, 400, 41), rng.normal(-6, 1, 40), rng.normal(0, 1, 40)
    inputs = {"target_tokens": ids[1:].tolist(), "logprobs": sampled.tolist(), "advantages": advantages.tolist()}
    data = [tinker.Datum(tinker.ModelInput.from_ints(ids[:-1].tolist()), inputs)]
    found = []
    for low, high in ((None, None), (0.9, 1.05), (0.5, 3.0)):
        config = {} if low is None else {"clip_low_threshold": low, "clip_high_threshold": high}
        made = client.forward_backward(data, loss, config).result()
        new = np.array(made.loss_fn_outputs[0]["logprobs"].tolist())
        bounds = {} if low is None else {"bounds": (low, high)}
        found.append(made.metrics["loss:sum"])
        assert found[-1] == pytest.approx(oracle(new, sampled, advantages, np.ones(40), **bounds).value, abs=1e-3)
    assert len({round(value, 2) for value in found}) == 3
    for config in ({"clip_low_threshold": 9.0}, {"clip_high_threshold": float("nan")}, {"clip_low_threshold": -1.0}):
        with pytest.raises(tinker.RequestFailedError, match="are not possible"):
            client.forward_backward(data, loss, config).result()
    with pytest.raises(tinker.RequestFailedError, match=r"beta: .* takes no such setting"):
        client.forward_backward(data, loss, {"beta": 1.0}).result()
    service.close("success")


def test_a_service_that_says_and_takes_less(server):
    """Such as SkyRL: no length of the context, seeds of 31 bits, no ends of its own, a gradient under another name."""
    asked, proxy = list[dict](), Proxy(server.url)

    async def less(path, request, forward):
        answer = await forward()
        if path == "get_server_capabilities":
            return JSONResponse({"supported_models": [{"model_name": MODEL}]})
        if path == "asample":
            asked.append(json.loads(await request.body())["sampling_params"])
        if path == "retrieve_future" and request.headers["x-tinker-request-type"] == "OptimStep":
            return Response(answer.body.replace(b'"grad_norm"', b'"some.where/grad_norm"'), media_type="application/json")
        return answer

    proxy.fault = less
    far = engine(proxy.url)
    assert far.context == 2048  # the parrot's own

    async def go():
        ask = Ask("d", 0, 0, 0, (Message("user", "What is 2 + 3?"),), (), max_tokens=200, temperature=1.0)
        await (await far.sampler()).sample([ask, replace(ask, agent=1), replace(ask, stop=("</x>",))])
        return await far.step([datum(20, np.random.default_rng(0))], "importance_sampling", 1e-3)

    assert asyncio.run(go()).grad_norm > 0
    proxy.close()
    assert all(0 <= one["seed"] < 2**31 for one in asked)
    assert len({one["seed"] for one in asked}) == 2
    assert sorted(map(str, (one["stop"] for one in asked))) == ["['</x>', '<|im_end|>']", "[1]", "[1]"]


def test_requests_are_sampled_together():
    here, batcher = Local.load_model(MODEL, threads=1), RequestBatcher()
    first, second = here.base_sampler(), asyncio.run(here.sampler())

    async def go():
        prompt_T = np.arange(20, 30, dtype=np.int32)
        requests = [CompletionRequest(prompt_T, 5, 1.0, (), frozenset(), str(i)) for i in range(20)]
        samplers = [(first, second)[i % 2] for i in range(20)]
        return await asyncio.gather(*(batcher.sample(s, [r]) for s, r in zip(samplers, requests, strict=True)))

    made = asyncio.run(go())
    assert [len(one.ids) for (one,) in made] == [5] * 20
    assert batcher.batches == 2


class Raw:
    """The wire itself."""

    def __init__(self, url):
        self.client = httpx.Client(base_url=f"{url}/api/v1/", headers={"X-API-Key": "tml-x"}, timeout=30)
        self.session = self.post("create_session", {}).json()["session_id"]
        made = self.post(
            "create_model", {"session_id": self.session, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 2}}
        )
        self.model = self.result(made.json()["request_id"]).json()["model_id"]

    def post(self, path, body):
        kind = {"content": body, "headers": PROTOBUF} if isinstance(body, bytes) else {"json": body}
        return self.client.post(path, **kind)

    def result(self, id):
        return self.post("retrieve_future", {"request_id": id})

    def forward_backward(self, number, weight=1.0, **more):
        return forward_backward(self.model, number, weight, **more)

    def optim_step(self, number):
        return optim_step(self.model, number)

    def saved(self, server, number):
        name = secrets.token_hex(4)
        made = self.result(
            self.post("save_weights", {"model_id": self.model, "seq_id": number, "path": name}).json()["request_id"]
        )
        assert made.json()["path"] == f"tinker://{self.model}/weights/{name}"
        folder = server.out / self.model / "weights" / name
        return load_file(str(folder / "adapter_model.safetensors")), load_file(str(folder / "optimizer.safetensors"))


def test_nothing_is_done_twice_and_everything_in_order(server):
    once, twice = Raw(server.url), Raw(server.url)
    for body in (once.forward_backward(1), once.forward_backward(2, 0.5)):
        once.post("forward_backward", body)
    once.post("optim_step", once.optim_step(3))
    expected, _ = once.saved(server, 4)
    ids = [twice.post("forward_backward", twice.forward_backward(2, 0.5)).json()]  # a later part comes first
    ids += [twice.post("optim_step", twice.optim_step(3)).json()]
    ids += [twice.post("forward_backward", twice.forward_backward(1)).json() for _ in range(3)]
    ids += [twice.post("optim_step", twice.optim_step(3)).json() for _ in range(3)]
    assert len({one["request_id"] for one in ids}) == 3
    found, moments = twice.saved(server, 4)
    for _ in range(2):
        assert twice.result(ids[1]["request_id"]).json()["metrics"]["skipped"] == 0
        twice.post("optim_step", twice.optim_step(3))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert {float(value) for name, value in moments.items() if name.startswith("step.")} == {1.0}
    again, _ = twice.saved(server, 5)
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_a_gradient_that_is_not_whole_is_not_applied(server):
    raw = Raw(server.url)
    before, _ = raw.saved(server, 1)
    raw.post("forward_backward", raw.forward_backward(2))
    broken = raw.post("forward_backward", raw.forward_backward(3, loss_fn_config={"beta": 1.0}))
    update = raw.post("optim_step", raw.optim_step(4))
    assert raw.result(broken.json()["request_id"]).json()["category"] == "user"
    assert "no update was made" in raw.result(update.json()["request_id"]).json()["error"]
    after, _ = raw.saved(server, 5)
    assert all(torch.equal(before[name], after[name]) for name in before)
    raw.post("forward_backward", raw.forward_backward(6))
    assert raw.result(raw.post("optim_step", raw.optim_step(7)).json()["request_id"]).json()["metrics"]["grad_norm"] > 0


NONSENSE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b"{" * 5000,
    b'{"session_id": 3, "model_id": [], "request_id": {}}',
]
PATHS = ["session_heartbeat", "create_model", "get_info", "optim_step", "save_weights", "load_weights"]
PATHS += [
    "save_weights_for_sampler",
    "weights_info",
    "create_sampling_session",
    "asample",
    "retrieve_future",
    "forward_backward",
]


def test_nonsense_is_refused(server):
    raw = Raw(server.url)
    for path, body in itertools.product(PATHS, NONSENSE):
        answer = raw.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (path, body, answer.text)
        assert "Traceback" not in answer.text
    sampler = raw.post(
        "create_sampling_session", {"session_id": raw.session, "sampling_session_seq_id": 0, "base_model": MODEL}
    ).json()["sampling_session_id"]
    good = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]},
        "sampling_params": {"max_tokens": 2},
    }
    assert raw.post("asample", good).status_code == 200
    for changes in (
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [512]}]}},
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-1]}]}},
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1] * 100_000}]}},
        {"prompt": {"chunks": []}},
        {"prompt": {"chunks": [{"type": "image", "data": ""}]}},
        {"num_samples": 10**9},
        {"num_samples": -1},
        {"sampling_params": {"temperature": -1}},
        {"sampling_params": {"temperature": "hot"}},
        {"sampling_params": {"max_tokens": 0}},
        {"sampling_params": {"stop": [""]}},
        {"sampling_params": {"stop": ["a", 3]}},
        {"sampling_params": {"stop": [3, "a"]}},
        {"sampling_params": {"stop": {"a": 1}}},
        {"sampling_params": {"top_k": 5}},
        {"seq_id": -4},
        {"sampling_session_id": "../../etc"},
    ):
        answer = raw.post("asample", good | {"seq_id": 1} | changes)
        assert 400 <= answer.status_code < 500, (changes, answer.text)
    for path in (
        "tinker://../../etc/weights/x",
        "tinker://a/weights/..",
        "/etc/passwd",
        "tinker://a/weights/" + "x" * 1000,
        "tinker://a/weights/\0",
    ):
        assert 400 <= raw.post("weights_info", {"tinker_path": path}).status_code < 500
    for method, path in (
        ("DELETE", "training_runs/../checkpoints/weights/x"),
        ("DELETE", "training_runs/a/checkpoints/weights/%2e%2e"),
        ("DELETE", "training_runs/%2e%2e/checkpoints/weights/%2e%2e%2fx"),
        ("DELETE", f"training_runs/{raw.model}/checkpoints/other/x"),
        ("GET", "training_runs/%2a"),
        ("GET", f"training_runs?limit={'9' * 5000}"),
        ("GET", "checkpoints?offset=-1"),
        ("PUT", f"training_runs/{raw.model}/checkpoints/weights/x/ttl"),
    ):
        answer = raw.client.request(method, path, json={"ttl_seconds": -1} if method == "PUT" else None)
        assert 400 <= answer.status_code < 500, (method, path, answer.text)
    assert raw.client.get("healthz").json() == {"status": "ok"}
    assert raw.post("asample", good | {"seq_id": 2}).status_code == 200


def test_nonsense_trains_nothing(server):
    """Training data cut off, flipped and lengthened."""
    raw, rng, ids = Raw(server.url), random.Random(0), set()
    before, _ = raw.saved(server, 1)
    for number in range(2, 202):
        body = raw.forward_backward(number)
        broken = bytearray(body[: rng.randrange(len(body))] if number % 6 == 0 else body)
        for _ in range(rng.randrange(1, 3) if broken else 0):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        answer = raw.post("forward_backward", bytes(broken))
        assert answer.status_code in (200, 404, 422)
        ids |= {answer.json()["request_id"]} if answer.status_code == 200 else set()
        raw.post(
            "forward_backward", raw.forward_backward(number, forward_only=True)
        )  # the number comes, whatever became of the other
    results = [raw.result(id) for id in ids]
    refused = [one.json()["error"] for one in results if one.headers["content-type"] == "application/json"]
    assert len(results) > 60
    assert len(set(refused)) > 8  # they were read, and are wrong in many ways
    update = raw.result(raw.post("optim_step", raw.optim_step(202)).json()["request_id"])
    assert "no update was made, because a forward_backward before it failed" in update.json()["error"]
    after, _ = raw.saved(server, 203)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_who_may_come_in(processes, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="PEERGRAD_SERVE_KEY"):
        command(ServeConfig(model=MODEL, host="0.0.0.0"))
    monkeypatch.setenv("PEERGRAD_SERVE_KEY", "secret")
    with pytest.raises(UserError, match="must begin with tml-"):
        command(ServeConfig(model=MODEL))
    with Server(processes, tmp_path, "--max-models", "1", host=OTHER, PEERGRAD_SERVE_KEY="tml-right") as server:
        monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
        with pytest.raises(UserError, match=r"TINKER_API_KEY: .* does not accept the key"):
            engine(server.url)
        for headers, status in (({}, 401), ({"X-API-Key": "tml-wrong"}, 401), ({"X-API-Key": "tml-right"}, 200)):
            assert httpx.get(f"{server.url}/api/v1/get_server_capabilities", headers=headers).status_code == status
        evil = {"X-API-Key": "tml-right", "Host": "evil.example"}
        assert httpx.get(f"{server.url}/api/v1/get_server_capabilities", headers=evil).status_code == 400
        monkeypatch.setenv("TINKER_API_KEY", "tml-right")
        with pytest.raises(UserError, match=r"has no 'Qwen/Other'; it has .*parrot"):
            Tinker(EngineConfig(model="Qwen/Other", base_url=server.url))
        first, second = engine(server.url), Tinker(EngineConfig(model=MODEL, base_url=server.url, deadline_s=2))
        asyncio.run(first.sampler())
        with pytest.raises(EngineError, match=r"a new policy on .* took longer than 2 s"):  # there is room for one
            asyncio.run(second.sampler())
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UserError, match="TINKER_API_KEY: is not set"):
        Tinker(EngineConfig(model=MODEL, base_url="http://192.0.2.1:1"))
    with pytest.raises(UserError, match=r"can't be reached .*start the server"):
        engine("http://127.0.0.1:9")

"""What one client does, or fails to do, others do not notice. The server runs in this process, with little patience."""

import asyncio
import contextlib
import functools
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
import torch
from safetensors.torch import load_file
from tinker.proto import tinker_public_pb2 as pb

from peergrad import UserError
from peergrad.cli.serve import ServeConfig, bound_socket, command
from peergrad.engines.local.engine import Local
from peergrad.runs import files
from peergrad.serve import app, policies, sessions
from peergrad.serve.app import Service, application
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.messages import GoneError, Result
from peergrad.serve.sessions import Futures
from tests.runs.killing import PARROT
from tests.serve.messages import PROTOBUF, add, forward_backward, optim_step

MODEL = str(PARROT)


@functools.cache
def engine():
    return Local.load_model(MODEL, threads=1)


class Client:
    """One session."""

    def __init__(self, http, out, session):
        self.http, self.out, self.id = http, out, session

    async def post(self, path, body):
        if isinstance(body, bytes):
            return await self.http.post(path, content=body, headers=PROTOBUF)
        return await self.http.post(path, json=body)

    async def asked(self, path, body):
        """The id of a request that is accepted."""
        answer = await self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()["request_id"]

    async def result(self, id):
        return await self.post("retrieve_future", {"request_id": id})

    async def begin_model(self):
        body = {"session_id": self.id, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 2}}
        return await self.post("create_model", body)

    async def model(self):
        return (await self.result((await self.begin_model()).json()["request_id"])).json()["model_id"]

    async def base(self):
        body = {"session_id": self.id, "sampling_session_seq_id": 0, "base_model": MODEL}
        return (await self.post("create_sampling_session", body)).json()["sampling_session_id"]

    async def sampler_of(self, path):
        body = {"session_id": self.id, "sampling_session_seq_id": 1, "model_path": path}
        return (await self.post("create_sampling_session", body)).json()["sampling_session_id"]

    async def live(self, model, number):
        """A sampler in memory alone."""
        return await self.asked(
            "save_weights_for_sampler", {"model_id": model, "seq_id": number, "sampling_session_seq_id": 0}
        )

    async def sample(self, sampler, tokens, samples=1):
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [5]}]}
        body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": prompt, "num_samples": samples}
        return await self.post("asample", body | {"sampling_params": {"max_tokens": tokens, "stop": []}})

    async def weights(self, model, number):
        path = {"model_id": model, "seq_id": number, "path": f"at-{number}"}
        assert "path" in (await self.result(await self.asked("save_weights", path))).json()
        return load_file(str(self.out / model / "weights" / f"at-{number}" / "adapter_model.safetensors"))

    async def end(self):
        await self.post(f"sessions/{self.id}/finish", {})


@contextlib.asynccontextmanager
async def served(out, host="127.0.0.1", **limits):
    """A server, as a function that begins sessions."""
    app = application(Service(engine(), MODEL, out, **limits), None, loopback=host)
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url=f"http://{host}:8000/api/v1/",
        headers={"X-API-Key": "tml-x"},
        timeout=600,
    )

    async def begin(**headers):
        made = await http.post("create_session", json={}, headers=headers)
        return Client(http, out, made.json()["session_id"])

    async with app.router.lifespan_context(app), http:
        yield begin


class Others:
    """What the server does for others, counted as long as somebody looks."""

    looking, seen, held_up = False, 0, 0


@contextlib.asynccontextmanager
async def answering():
    """The server answers others meanwhile: nothing slow holds it up, and none of its turns computes for most of the time."""
    worst, begun = 0.0, time.process_time()

    async def tick():
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            worst = max(worst, time.thread_time() - before)
            Others.seen += 1

    task, Others.held_up, Others.looking = asyncio.create_task(tick()), 0, True
    await asyncio.sleep(0.02)
    yield
    await asyncio.sleep(0.02)
    task.cancel()
    Others.looking = False
    assert not Others.held_up
    assert worst < (time.process_time() - begun) / 2 + 0.25


def slow(monkeypatch, owner, name):
    """Something takes long: until the server has done something else meanwhile, or has shown that it can't."""
    real = getattr(owner, name)

    def later(*args):
        end, before = time.monotonic() + 30, Others.seen
        while Others.looking and Others.seen < before + 3:
            if time.monotonic() > end:
                Others.held_up += 1
                break
            time.sleep(0.01)
        return real(*args)

    monkeypatch.setattr(owner, name, later)


def gated(monkeypatch, owner, name):
    """Something that does not go on before the gate is opened."""
    real, gate = getattr(owner, name), threading.Event()
    monkeypatch.setattr(owner, name, lambda *args: (gate.wait(300), real(*args))[1])
    return gate


async def until(what):
    """Wait for something; only what never comes takes long."""
    for _ in range(6000):
        if await what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def test_a_session_that_ends_leaves_no_policy(tmp_path, monkeypatch):
    gate = gated(monkeypatch, Local, "new_policy")

    async def go():
        async with served(tmp_path, max_models=1) as begin:
            first, second = await begin(), await begin()
            made = (await first.begin_model()).json()["request_id"]
            await first.end()
            assert "session has ended" in (await first.result(made)).json()["error"]
            assert (await second.begin_model()).status_code == 429  # it is still being made
            gate.set()
            await until(lambda: has_room(second))

    async def has_room(client):
        return (await client.begin_model()).status_code == 200

    asyncio.run(go())


def test_a_session_that_ends_leaves_no_sampler(tmp_path, monkeypatch):
    async def go():
        async with served(tmp_path, max_samplers=1) as begin:
            first, second = await begin(), await begin()
            models = await first.model(), await second.model()
            kept = (await second.result(await second.live(models[1], 1))).json()["sampling_session_id"]
            gate = gated(monkeypatch, Local, "_snapshot")
            await first.live(models[0], 1)
            await asyncio.sleep(0.1)
            await first.end()
            gate.set()
            await asyncio.sleep(0.3)
            assert (await second.sample(kept, 1)).status_code == 200  # there is room for one, and it is this

    asyncio.run(go())


def test_a_session_that_ends_leaves_no_work(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            first, second = await begin(), await begin()
            model = await first.model()
            live = (await first.result(await first.live(model, 1))).json()["sampling_session_id"]
            long = [(await first.sample(sampler, 2000, 32)).json() for sampler in (await first.base(), live)]
            await asyncio.sleep(0.3)  # one is under way, one waits; each takes many seconds
            await first.end()
            begun = time.monotonic()
            for one in long:
                assert "session has ended" in (await first.result(one["request_id"])).json()["error"]
            made = await second.result((await second.sample(await second.base(), 3)).json()["request_id"])
            assert len(pb.SampleResponse.FromString(made.content).sequences[0].tokens) == 4 * 3
            assert time.monotonic() - begun < 300

    asyncio.run(go())


def test_a_session_nobody_hears_of_ends(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(app, "_SWEEP_S", 0.01)

    async def go():
        nonlocal now
        async with served(tmp_path) as begin:
            silent, polling, beating = [await begin() for _ in range(3)]
            models = [await one.model() for one in (silent, polling, beating)]
            for _ in range(2):
                now += sessions._IDLE_S * 0.6
                await polling.result(f"{models[1]}.0")
                assert (await beating.post("session_heartbeat", {"session_id": beating.id})).status_code == 200
                await asyncio.sleep(0.1)
            about = [(await beating.post("get_info", {"model_id": model})).status_code for model in models]
            assert about == [404, 200, 200]
            # Clients end their heartbeat for 410, and for nothing else.
            assert (await silent.post("session_heartbeat", {"session_id": silent.id})).status_code == 410

    asyncio.run(go())


def test_a_session_is_begun_once_while_it_lives(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            key = {"X-Idempotency-Key": "k"}
            first, again = await begin(**key), await begin(**key)
            assert first.id == again.id
            await first.end()
            later = await begin(**key)
            assert later.id != first.id
            assert await later.model()

    asyncio.run(go())


def test_a_request_that_never_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(policies, "_ARRIVAL_TIMEOUT_S", 0.3)

    async def go():
        async with served(tmp_path) as begin:
            one = await begin()
            model = await one.model()
            before = await one.weights(model, 1)
            first = await one.asked("forward_backward", forward_backward(model, 2))
            assert (
                await one.post("forward_backward", forward_backward(model, 3) + b"\xff")
            ).status_code == 422  # and 3 never comes
            update = await one.asked("optim_step", optim_step(model, 4))
            ahead = await one.asked("forward_backward", forward_backward(model, 6))
            assert (await one.result(first)).headers["content-type"] == PROTOBUF["Content-Type"]
            for id in (update, ahead):
                assert "request 3 did not come" in (await one.result(id)).json()["error"]
            for number in (3, 5):  # they come after all, and are not done
                id = await one.asked("forward_backward", forward_backward(model, number))
                assert "was not done" in (await one.result(id)).json()["error"]
            await one.asked("forward_backward", forward_backward(model, 7))
            refused = await one.result(await one.asked("optim_step", optim_step(model, 8)))
            assert "no update was made, because request 3 did not come" in refused.json()["error"]
            after = await one.weights(model, 9)
            assert all(torch.equal(before[name], after[name]) for name in before)
            await one.asked("forward_backward", forward_backward(model, 10))
            assert (await one.result(await one.asked("optim_step", optim_step(model, 11)))).json()["metrics"][
                "grad_norm"
            ] > 0

    asyncio.run(go())


def test_what_waits_for_its_turn_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(policies, "_MAX_AHEAD_BYTES", 700)

    async def go():
        async with served(tmp_path) as begin:
            one = await begin()
            model = await one.model()
            answers = [await one.post("forward_backward", forward_backward(model, number)) for number in range(6, 1, -1)]
            assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
            for number in (1, 2, 3, 4):  # the one that is awaited always has room
                await one.result(await one.asked("forward_backward", forward_backward(model, number)))
            await one.result(answers[0].json()["request_id"])
            assert (await one.result(await one.asked("optim_step", optim_step(model, 7)))).json()["metrics"]["skipped"] == 0

    asyncio.run(go())


def test_a_large_request_stops_nobody(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            one = await begin()
            model, sampler = await one.model(), await one.base()
            start = (
                f'{{"sampling_session_id":"{sampler}","seq_id":1,"sampling_params":{{}},"prompt":{{"chunks":[{{"tokens":['
            )
            async with answering():
                answer = await one.http.post("asample", content=start.encode() + b"1," * 15_000_000 + b"1]}]}}")
                assert answer.status_code == 413
            data = pb.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="cross_entropy")
            for _ in range(20_000):
                add(data)
            add(data, first=2000)
            async with answering():
                refused = await one.result(await one.asked("forward_backward", data.SerializeToString()))
            assert "data[20000].model_input: has a token outside" in refused.json()["error"]

    asyncio.run(go())


def test_a_slow_disk_stops_nobody(tmp_path, monkeypatch):
    slow(monkeypatch, files, "publish")

    async def go():
        async with served(tmp_path) as begin:
            one = await begin()
            model = await one.model()
            async with answering():
                assert await one.weights(model, 1)
            slow(monkeypatch, files, "remove")
            slow(monkeypatch, CheckpointStore, "all")
            async with answering():
                kept = f"training_runs/{model}/checkpoints"
                assert len((await one.http.get(kept)).json()["checkpoints"]) == 1
                assert (await one.http.delete(f"{kept}/weights/at-1")).status_code == 204
            assert not (tmp_path / model / "weights" / "at-1").exists()

    asyncio.run(go())


def test_samplers_of_a_checkpoint_that_is_removed(tmp_path):
    async def go():
        async with served(tmp_path, max_samplers=1) as begin:  # one set of weights, whoever samples with it
            clients = [await begin() for _ in range(3)]
            model = await clients[0].model()
            path = {"model_id": model, "seq_id": 1, "path": "a"}
            kept = (await clients[0].result(await clients[0].asked("save_weights_for_sampler", path))).json()["path"]
            samplers = [await one.sampler_of(kept) for one in clients]
            assert (await clients[0].http.delete(f"training_runs/{model}/checkpoints/sampler_weights/a")).status_code == 204
            for one, sampler in zip(clients, samplers, strict=True):
                made = await one.result((await one.sample(sampler, 3)).json()["request_id"])
                assert len(pb.SampleResponse.FromString(made.content).sequences) == 1
                assert (await one.http.get(f"samplers/{sampler}")).json()["model_path"] is None

    asyncio.run(go())


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", 1e300), ("learning_rate", 1e30), ("eps", 0), ("eps", 1e-40), ("beta2", 1), ("weight_decay", 1e30)],
)
def test_an_update_that_would_spoil_the_weights_is_refused(tmp_path, name, value):
    async def go():
        async with served(tmp_path) as begin:
            client = await begin()
            model = await client.model()
            await client.asked("forward_backward", forward_backward(model, 1))
            spoiling = optim_step(model, 2) | {"adam_params": {"learning_rate": 0.01} | {name: value}}
            refused = (await client.result(await client.asked("optim_step", spoiling))).json()
            assert refused["category"] == "user"
            assert f"adam_params.{name}" in refused["error"]
            before = await client.weights(model, 3)
            await client.asked("forward_backward", forward_backward(model, 4, weight=3e38))
            stepped = (await client.result(await client.asked("optim_step", optim_step(model, 5)))).json()
            assert stepped["metrics"]["skipped"] == 1.0
            await client.asked("forward_backward", forward_backward(model, 6, weight=1e25))
            await client.asked("optim_step", optim_step(model, 7))
            after = await client.weights(model, 8)
            assert all(not weight.any() for name, weight in before.items() if "lora_B" in name)
            assert all(weight.isfinite().all() for weight in after.values())

    asyncio.run(go())


def test_a_number_of_200_digits_is_no_name(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            client = await begin()
            body = {"session_id": client.id, "model_seq_id": 10**200, "base_model": MODEL, "lora_config": {"rank": 2}}
            sampler = {"session_id": client.id, "sampling_session_seq_id": 10**200, "base_model": MODEL}
            for path, refused in (("create_model", body), ("create_sampling_session", sampler)):
                answer = await client.post(path, refused)
                assert answer.status_code == 422
                assert "seq_id: 1000" in answer.json()["detail"]

    asyncio.run(go())


def test_one_client_does_not_take_all_sessions(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 5)

    async def go():
        async with served(tmp_path) as begin:
            taken = [await begin() for _ in range(5)]
            model = await taken[0].model()
            for client in taken[1:4]:
                await client.base()
            honest = await begin()  # of the same address: it gets the place of the one that holds nothing
            assert (await taken[4].post("session_heartbeat", {"session_id": taken[4].id})).status_code == 410
            await honest.base()
            assert (await honest.http.post("create_session", json={})).status_code == 429
            elsewhere = httpx.AsyncClient(
                transport=httpx.ASGITransport(honest.http._transport.app, client=("10.0.0.9", 1)),
                base_url=honest.http.base_url,
                headers={"X-API-Key": "tml-x"},
            )
            made = await elsewhere.post("create_session", json={})
            assert made.status_code == 200
            assert (await taken[0].post("get_info", {"model_id": model})).status_code == 200  # who trains stays

    asyncio.run(go())


def test_the_key_has_the_form_that_clients_take(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            http = (await begin()).http
            for key, status in (("tml-any", 200), ("eyJany", 200), ("any", 401), ("", 401)):
                answer = await http.post("create_session", json={}, headers={"X-API-Key": key})
                assert answer.status_code == status

    asyncio.run(go())


def test_an_update_that_is_refused_uses_its_gradient_up(tmp_path):
    async def go():
        async with served(tmp_path) as begin:
            one = await begin()
            model, norms = await one.model(), []
            for number, rate in ((1, 1e-3), (3, -1.0), (5, 0.0)):
                await one.asked("forward_backward", forward_backward(model, number))
                body = optim_step(model, number + 1) | {"adam_params": {"learning_rate": rate}}
                norms.append((await one.result(await one.asked("optim_step", body))).json())
            return norms

    first, refused, third = asyncio.run(go())
    assert "learning_rate" in refused["error"]
    assert third["metrics"]["grad_norm"] < 1.5 * first["metrics"]["grad_norm"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threads": -1}, "threads: -1 is not possible"),
        ({"kv_gb": float("nan")}, "kv_gb: nan is not possible"),
        ({"max_rows": 0}, "max_rows: 0 is not possible"),
        ({"max_models": 0}, "max_models: 0 is not possible"),
        ({"out": PARROT / "config.json"}, "out: .* can't be made"),
    ],
)
def test_settings_that_can_not_be(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        command(ServeConfig(model=MODEL, **settings))


def test_results_are_kept_for_a_while(monkeypatch):
    async def work():
        return Result(b"x" * 100)

    async def go():
        futures = Futures()
        for id in ("a-1", "a-2"):
            await futures.start(id, work)
        futures.expire()
        assert (await futures.result("a-1", 0)).body == b"x" * 100
        monkeypatch.setattr(sessions, "_MAX_RESULT_BYTES", 250)
        await futures.start("a-3", work)
        with pytest.raises(GoneError):
            await futures.result("a-1", 0)
        assert await futures.result("a-2", 0)
        monkeypatch.setattr(sessions, "_RESULT_TTL_S", 0.0)
        await asyncio.sleep(0.01)
        futures.expire()
        with pytest.raises(GoneError):
            await futures.result("a-3", 0)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("host", "port", "says"), [("127.0.0.1", 99999, "port: 99999 is not possible"), ("a" * 70, 0, "can't listen at")]
)
def test_what_can_be_no_address_is_a_sentence(host, port, says):
    with pytest.raises(UserError, match=says):
        bound_socket(host, port)


def test_two_servers_on_one_port():
    with bound_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"can't listen at 127.0.0.1, port {port}"):
            command(ServeConfig(model="nothing/like-it", port=port))


@pytest.mark.parametrize("host", ["127.0.0.2", "[::2]"])
def test_the_address_that_was_given_is_ours(tmp_path, host):
    async def go():
        async with served(tmp_path, host=host) as begin:
            one = await begin()
            assert (await one.http.get("healthz")).status_code == 200
            assert (await one.http.get("healthz", headers={"Host": "127.0.0.3"})).status_code == 400

    asyncio.run(go())

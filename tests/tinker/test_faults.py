"""Services that refuse, lie, drip or fall silent: a sentence within the deadline, whatever is being waited for."""

import asyncio
import time
from contextlib import contextmanager

import numpy as np
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from peergrad.config import EngineConfig, UpdateConfig
from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.debate.types import Ask, Message
from peergrad.engines.tinker import connection
from peergrad.engines.tinker.connection import status_error
from peergrad.engines.tinker.engine import Tinker
from tests.runs.killing import PARROT
from tests.tinker.proxy import Proxy
from tests.tinker.test_wire import datum

ASK = Ask("d", 0, 0, 0, (Message("user", "What is 1 + 1?"),), (), 8)
EVIL = "\x1b[31mgo away\x07"


@pytest.fixture
def proxy(server):
    made = Proxy(server.url)
    yield made
    made.close()


def engine(url, deadline_s=20.0):
    return Tinker(EngineConfig(model=str(PARROT), base_url=url, deadline_s=deadline_s), UpdateConfig(rank=4))


def answering(proxy, path, answer, kind=None):
    """From now on ``path`` is answered so."""

    async def fault(asked, request, forward):
        if asked == path and kind in (None, request.headers.get("x-tinker-request-type")):
            return await answer(request) if asyncio.iscoroutinefunction(answer) else answer
        return await forward()

    proxy.fault = fault


@contextmanager
def no_hang():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 300


def drips():
    async def bytes_():
        while True:
            yield b" "
            await asyncio.sleep(0.1)

    return StreamingResponse(bytes_())


async def update(one):
    return await one.step([datum(20, np.random.default_rng(0))], "importance_sampling", 1e-3)


def test_no_session_can_be_begun(proxy):
    one = engine(proxy.url, 2.0)
    answering(proxy, "create_session", JSONResponse({}, 503))
    with no_hang(), pytest.raises(EngineError, match="a sampler of the base model took longer than 2 s"):
        asyncio.run(one.sampler_with(None))


def test_answers_that_never_end(proxy, monkeypatch):
    monkeypatch.setattr(connection, "_QUERY_S", 0.5)
    for path in ("healthz", "get_server_capabilities"):
        answering(proxy, path, None)
        proxy.fault = lambda asked, _, forward, path=path: _drip(asked, forward, path)
        with no_hang(), pytest.raises(UserError, match=r"can't be reached \(no answer within 0.5 s\)"):
            engine(proxy.url)


async def _drip(asked, forward, *paths):
    return drips() if asked in paths else await forward()


def test_a_silent_server_whose_pulse_drips(proxy):
    one = engine(proxy.url, 2.0)

    async def fault(asked, request, forward):
        if asked == "retrieve_future" and request.headers["x-tinker-request-type"] == "OptimStep":
            await asyncio.sleep(1)
            return JSONResponse({}, 503)
        return drips() if asked == "healthz" else await forward()

    proxy.fault = fault
    with no_hang(), pytest.raises(EngineError, match=r"took longer than 2 s|can't be reached any more"):
        asyncio.run(update(one))


@pytest.mark.parametrize(
    ("path", "kind", "answer", "error", "sentence"),
    [
        ("forward_backward", None, JSONResponse({"detail": EVIL}, 422), EngineError, "refuses the update (422: "),
        (
            "forward_backward",
            None,
            JSONResponse({"detail": "no"}, 403),
            UserError,
            "not allow this key the update (403",
        ),
        ("optim_step", None, JSONResponse({"detail": "no"}, 404), EngineError, "(any more) what is asked for"),
        ("retrieve_future", "OptimStep", JSONResponse({}, 410), EngineError, "the update failed (RetryableException: "),
        ("retrieve_future", "OptimStep", JSONResponse({}, 401), UserError, "does not accept the key"),
        ("retrieve_future", "ForwardBackward", JSONResponse([1, 2]), EngineError, "the update failed ("),
        (
            "retrieve_future",
            "ForwardBackward",
            Response(b"\0\1", media_type="application/x-protobuf"),
            EngineError,
            "failed",
        ),
        ("optim_step", None, JSONResponse({"detail": "pay"}, 402), Halted, "the account has no credit left"),
    ],
)
def test_an_update_that_is_refused(proxy, path, kind, answer, error, sentence):
    one = engine(proxy.url)
    answering(proxy, path, answer, kind)
    with no_hang(), pytest.raises(error) as caught:
        asyncio.run(update(one))
    assert sentence in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "kind", "answer", "sentence"),
    [
        ("asample", None, JSONResponse({"detail": "pay"}, 402), "the account has no credit left"),
        ("asample", None, JSONResponse({"detail": EVIL}, 422), "refuses a reply (422: "),
        ("asample", None, JSONResponse({"request_id": "x"}), "does not know (any more) what is asked for"),
        ("retrieve_future", "Sample", JSONResponse({"error": EVIL, "category": "user"}), "refuses a reply ("),
    ],
)
def test_a_reply_that_is_refused(proxy, path, kind, answer, sentence):
    one = engine(proxy.url)

    async def go():
        sampler = await one.sampler()
        answering(proxy, path, answer, kind)
        return await sampler.sample([ASK])

    with no_hang():
        (found,) = asyncio.run(go())
    assert isinstance(found, EngineError)
    assert sentence in str(found)
    assert "\x1b" not in str(found)
    assert isinstance(found, Halted) == ("refuses" not in sentence)  # nobody will answer any more


def test_what_is_no_service_at_all(proxy):
    with pytest.raises(UserError, match="does not speak the Tinker protocol there; give the right address, without /v1"):
        engine(f"{proxy.url}/v1")
    for body in (b"[" * 100_000, b"nonsense", b"3"):
        answering(proxy, "get_server_capabilities", Response(body, media_type="application/json"))
        with pytest.raises(UserError, match="does not speak the Tinker protocol"):
            engine(proxy.url)
    for offered in (5, [5, None, {}], [{"model_name": EVIL}]):
        answering(proxy, "get_server_capabilities", JSONResponse({"supported_models": offered}))
        with pytest.raises(UserError, match=r"has no .*parrot'; it has") as caught:
            engine(proxy.url)
        assert "\x1b" not in str(caught.value)
    answering(proxy, "get_server_capabilities", Response(b'"' + b"x" * 5_000_000 + b'"'))
    with pytest.raises(UserError, match="its answer has no end"):
        engine(proxy.url)


def test_a_busy_service():
    # The client tries again by itself for five minutes; this is what is said after them.
    assert str(status_error("there", 429, "slow down", "the update")).startswith(
        "there is too busy for the update (429: slow down)"
    )


def test_an_engine_says_goodbye(proxy):
    async def go():
        one = engine(proxy.url)
        await one.sampler()
        await one.close()

    asyncio.run(go())
    assert any(path.endswith("/finish") for path in proxy.seen)

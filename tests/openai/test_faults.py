"""Servers that fail: what is tried again, what costs a debate, what stops the run."""

import asyncio
import contextlib
import re
import time
from email.utils import formatdate

import pytest

from peergrad import EngineError, Parallel, Question, UserError, play_all
from peergrad.config import ApiConfig, EngineConfig
from peergrad.debate.errors import Halted
from peergrad.engines.base import Meter, Spent
from peergrad.engines.openai.engine import Api
from peergrad.engines.openai.requests import retry_after
from tests.helpers import short
from tests.openai.asking import STOP, an_ask, asked
from tests.openai.server import Response, Server, completion, events

DONE = f"<comparison>N/A{STOP}"
GOOD = Response(completion(DONE))


def then_good(*bad):
    left = list(bad)
    return lambda _: left.pop(0) if left else GOOD


def error(status, message="oh no", headers=None, **fields):
    return Response({"error": {"message": message} | fields}, status, headers or {})


@pytest.mark.parametrize(
    "bad",
    [
        *(error(status) for status in (408, 409, 429, 500, 502, 503, 529)),
        Response(b"<html>Bad gateway</html>", 502),
        Response(b"{not json"),
        Response(b"\xff\xfe"),
        Response(b""),
        Response(b"[" * 100_000),
        Response([]),
        Response({"choices": []}),
        Response({"choices": None}),
        Response({"choices": ["x"]}),
        Response({"error": {"message": "upstream", "code": 502}}),
        Response(completion(DONE, "error")),
        Response(completion(DONE), cut=30),
        Response(completion(DONE), cut=0),
        Response(completion(DONE), after_s=3),
        Response(completion(DONE), drip_s=0.2),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(bad):
    (answer,), server = asked(then_good(bad), timeout_s=1)
    assert getattr(answer, "text", answer) == DONE
    assert len(server.requests) == 2


def test_what_does_not_pass_costs_its_ask():
    (answer, next_one), server = asked(then_good(*[error(500)] * 3), an_ask(), an_ask())
    assert type(answer) is EngineError
    assert "answered 500: oh no; given up after 3 attempts" in str(answer)
    assert next_one.text == DONE
    assert len(server.requests) == 4


def test_retry_after_is_respected():
    started = time.monotonic()
    (answer,), _ = asked(then_good(error(429, headers={"retry-after": "1"})))
    assert answer.text == DONE
    assert time.monotonic() - started >= 1


def test_a_wait_beyond_the_deadline_is_not_begun():
    started = time.monotonic()
    (answer,), _ = asked(then_good(error(429, headers={"retry-after": "3600"})), deadline_s=5)
    assert time.monotonic() - started < 300
    assert "it asks to wait 3600 s; given up after 1 attempts" in str(answer)


def test_an_ask_ends_by_its_deadline():
    (answer,), server = asked(lambda _: Response(completion(DONE), after_s=20), deadline_s=1.5, timeout_s=60, retries=9)
    assert isinstance(answer, EngineError)
    assert re.search(r"gave no whole answer within [01](\.\d+)? s; given up after 1 attempts", str(answer))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": formatdate(1_000_030, usegmt=True)}, 30),
        ({"retry-after": formatdate(900_000, usegmt=True)}, 0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers, seconds):
    assert retry_after(headers, now=1_000_000) == seconds


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (error(401, "Incorrect API key provided: sk-proj****beef"), "^OPENAI_API_KEY: .*does not accept the key"),
        (error(403, "no access"), "^OPENAI_API_KEY: the key has no access to m at .*no access"),
        (error(404, "The model `m` does not exist"), "^model: there is no m at .*does not exist.*base_url"),
        (Response(b"", 301, {"location": "https://elsewhere.example/v1?x=1"}), "^base_url: .*to https://elsewhere.example "),
        (Response(b"", 307, {"location": "/v2"}), "^base_url: m at 127.*sends elsewhere"),
    ],
)
def test_what_the_person_must_mend_stops_the_run_at_once(bad, sentence):
    asked_for = []

    async def run():
        with Server(lambda request: asked_for.append(request) or bad) as server:
            async with Api(EngineConfig(model="m", base_url=server.url), ApiConfig(max_concurrent=4), environ={}) as api:
                await play_all(Parallel(), [Question(f"q{n}", "?") for n in range(50)], api)

    with pytest.raises(UserError, match=sentence):
        asyncio.run(run())
    assert len(asked_for) <= 8


def test_nobody_there():
    with Server(lambda _: GOOD) as server:
        url = server.url

    async def run():
        async with Api(EngineConfig(model="m", base_url=url), environ={}) as api:
            await api.sample([an_ask()])

    with pytest.raises(UserError, match=r"^base_url: m at 127.*can't be reached \(ConnectError.*start the server"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "bad",
    [
        error(400, "This model's maximum context length is 4096 tokens, 'max_tokens' too", code="context_length_exceeded"),
        error(400, "'max_tokens' or 'max_completion_tokens' is too large: 50. This model's maximum context length is 9"),
        error(413, "Payload too large"),
        error(403, "Your input was flagged by moderation"),
        error(400, "The response was filtered", code="content_filter"),
    ],
    ids=str,
)
def test_what_is_wrong_with_one_prompt_costs_one_debate(bad):
    (answer, next_one), server = asked(then_good(bad), an_ask(), an_ask())
    assert type(answer) is EngineError
    assert next_one.text == DONE
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "bad",
    [error(429, "You exceeded your current quota", code="insufficient_quota"), error(402, "Insufficient credits")],
    ids=str,
)
def test_no_credit_left_halts(bad):
    (answer, next_one), server = asked(then_good(bad), an_ask(), an_ask())
    assert isinstance(answer, Halted)
    assert isinstance(next_one, Halted)
    assert len(server.requests) == 1


def a_hundred(url, meter):
    async def run():
        made = EngineConfig(model="m", base_url=url), ApiConfig(max_concurrent=8, price_in=2, price_out=10)
        async with Api(*made, environ={}, meter=meter) as api:
            return await play_all(Parallel(agents=3, max_rounds=2), [Question(f"q{n}", "?") for n in range(100)], api)

    return asyncio.run(run())


@pytest.mark.parametrize("budget", [{"budget_tokens": 15 * 300}, {"budget_usd": 300 * 70e-6}], ids=["tokens", "usd"])
def test_a_spent_budget_stops_cleanly(budget):
    """Half of what all debates would take: half of them are whole, as none is begun before others are ended."""
    meter = Meter(**budget)
    with Server(lambda _: Response(completion(short()))) as server:
        played = a_hundred(server.url, meter)
        asked_for = len(server.requests)
    assert 300 <= asked_for <= 308
    assert meter.spent == Spent(asked_for, 10 * asked_for, 5 * asked_for, pytest.approx(asked_for * 70e-6))
    assert "budget" in played.halted
    assert len(played.debates) + len(played.dropped) == 100
    assert 45 <= len(played.debates) <= 50
    assert all(len(debate.turns) == 6 for debate in played.debates)
    assert set(played.dropped.values()) == {played.halted}


def test_without_a_budget_nothing_halts():
    meter = Meter()
    with Server(lambda _: Response(completion(short()))) as server:
        played = a_hundred(server.url, meter)
    assert len(played.debates) == 100
    assert played.halted is None
    assert meter.spent.tokens == 600 * 15
    assert server.most <= 8


def test_a_budget_needs_usage_and_prices():
    with pytest.raises(UserError, match=r"^budget: .*does not say how many tokens"):
        asked(lambda _: Response(completion(DONE, usage=None)), meter=Meter(budget_tokens=100))
    with pytest.raises(UserError, match=r"^budget_usd: .*price_in"):
        Api(EngineConfig(model="m", base_url="http://x/v1"), meter=Meter(budget_usd=1), environ={})
    with pytest.raises(UserError, match=r"^budget_tokens: 0 is not possible"):
        Meter(budget_tokens=0)


def test_a_cancelled_ask_gives_its_slot_back():
    async def run():
        with Server(lambda _: Response(completion(DONE), after_s=0.3)) as server:
            async with Api(EngineConfig(model="m", base_url=server.url), ApiConfig(max_concurrent=1), environ={}) as api:
                first, waiting = (asyncio.create_task(api.sample([an_ask()])) for _ in range(2))
                await asyncio.sleep(0.05)
                waiting.cancel()
                first.cancel()
                await asyncio.sleep(0)
                return await api.sample([an_ask(), an_ask()])

    assert [answer.text for answer in asyncio.run(run())] == [DONE, DONE]


def test_one_slow_ask_holds_up_its_own_debate_only():
    def handle(request):
        slow = "slow" in request.content.decode() and len(ended) < 20  # until all others are done
        return Response(*((b"", 503, {"retry-after": "0.05"}) if slow else (completion(short()),)))

    ended = []

    async def run():
        with Server(handle) as server:
            rules = EngineConfig(model="m", base_url=server.url), ApiConfig(retries=10_000)
            async with Api(*rules, environ={}) as api:
                questions = [Question("slow", "slow?"), *(Question(f"q{n}", "?") for n in range(20))]
                await play_all(Parallel(max_rounds=2), questions, api, done=lambda debate: ended.append(debate.id))

    asyncio.run(run())
    assert len(ended) == 21
    assert ended[-1] == "slow"


def test_a_rate_limit_costs_time_and_no_debate():
    allowed, since = 1.0, time.monotonic()

    def handle(_):  # 40 requests a second
        nonlocal allowed, since
        now = time.monotonic()
        allowed, since = min(1.0, allowed + (now - since) * 40), now
        if allowed < 1:
            return error(429, "rate limit", {"retry-after": "0"})
        allowed -= 1
        return Response(completion(short()))

    async def run(url):
        async with Api(EngineConfig(model="m", base_url=url), ApiConfig(retries=1), environ={}) as api:
            return await play_all(Parallel(agents=3, max_rounds=1), [Question(f"q{n}", "?") for n in range(8)], api)

    with Server(handle) as server:
        played = asyncio.run(run(server.url))
    assert len(played.debates) == 8
    assert len(server.requests) > 24


def test_a_limit_per_minute_is_no_empty_account():
    said = "You exceeded your current quota. Please retry in 0.2s."
    (answer,), _ = asked(then_good(error(429, said), error(429, said, code="insufficient_quota")))
    assert answer.text == DONE


@pytest.mark.parametrize("status", [403, 404])
def test_a_server_that_answered_others_refuses_one_request(status):
    left = [GOOD, Response(b"<html>blocked</html>", status), GOOD]
    (first, second, third), _ = asked(lambda _: left.pop(0), an_ask(), an_ask(), an_ask())
    assert first.text == third.text == DONE
    assert type(second) is EngineError


def test_what_a_server_quotes_of_the_request_is_not_its_meaning():
    listed = [{"loc": ["body", "seed"], "msg": "Extra inputs", "input": "'stop' content_filter context length"}]
    (answer,), server = asked(then_good(Response({"detail": listed}, 422)))
    assert answer.text == DONE
    assert "stop" in server.requests[1].body
    assert "seed" not in server.requests[1].body


def test_an_answer_without_counts_costs_itself_once_others_counted():
    partly = completion(DONE) | {"usage": {"prompt_tokens": 10, "total_tokens": 15}}
    left = [Response(partly), Response(completion(DONE, usage=None)), GOOD]
    meter = Meter(budget_tokens=1000)
    (first, second, third), _ = asked(lambda _: left.pop(0), an_ask(), an_ask(), an_ask(), meter=meter)
    assert first.text == third.text == DONE
    assert type(second) is EngineError
    assert meter.spent.tokens == 30


@pytest.mark.parametrize("hear", [None, lambda *_: None], ids=["whole", "stream"])
def test_another_kind_of_server_is_named_soon(hear):
    page = Response(b"<html>Welcome to nginx</html>", headers={"content-type": "text/html"})
    requests = []
    with pytest.raises(UserError, match=r"^base_url: .*text/html: <html>Welcome to nginx.*correct the address"):
        asked(lambda request: requests.append(request) or page, retries=6, hear=hear)
    assert len(requests) == 3
    (answer,), _ = asked(lambda _: Response({"error": "out of memory"}), retries=0)
    assert "out of memory" in str(answer)


@pytest.mark.parametrize("name", ["ALL_PROXY", "HTTP_PROXY"])
def test_a_proxy_that_can_not_be_used_is_a_sentence(name, monkeypatch):
    monkeypatch.setenv(name, "foo://user:planted-password@x:1")
    with pytest.raises(UserError, match=r"HTTP_PROXY") as caught:
        Api(EngineConfig(model="m", base_url="http://x/v1"), environ={})
    assert "planted" not in str(caught.value)


def deep(levels):
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("hear", [None, lambda *_: None])
def test_an_answer_larger_than_what_was_asked_for_is_not_read(hear):
    large = events(["x" * 1000] * 64_000) if hear else Response(completion("x" * 64_000_000))
    (answer,), server = asked(lambda _: large, an_ask(max_tokens=16), hear=hear)
    assert isinstance(answer, EngineError)
    assert "more than was asked for" in str(answer)
    assert server.sent == []
    (answer,), _ = asked(lambda _: Response(completion("x" * 300_000)), an_ask(max_tokens=16))
    assert "much longer than the 16 tokens it was asked for" in str(answer)


@pytest.mark.parametrize("levels", [300, 1000, 100_000])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_deep_json_is_a_broken_answer(levels, status):
    for body in (deep(levels), b'{"error": %s}' % deep(levels), b'{"choices": %s, "usage": {}}' % deep(levels)):
        with contextlib.suppress(UserError):  # of a server that never gave an answer
            (answer,), _ = asked(lambda _, body=body: Response(body, status=status), retries=0)
            assert isinstance(answer, EngineError)


def test_a_deep_event_is_a_broken_answer():
    body = b'data: {"choices": %s}\n\n' % deep(1000)
    broken = Response(body, headers={"content-type": "text/event-stream"})
    with pytest.raises(UserError, match="broken answer"):
        asked(lambda _: broken, hear=lambda *_: None, retries=0)

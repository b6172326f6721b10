"""Many debates against a server that fails in every way: nothing hangs, is lost, doubled or half kept."""

import asyncio
import itertools
import json
import zlib
from collections import Counter

import pytest

from peergrad import Parallel, Question, Sequential, dump, load, play_all
from peergrad.config import ApiConfig, EngineConfig
from peergrad.engines.openai.engine import Api
from tests.helpers import full, short
from tests.openai.server import Response, Server, completion, events

TIMEOUT_S = 1.0


class Faulty:
    """Fails by the seed of a request, which names its ask, and how often it was sent; one in 80 is never answered well."""

    def __init__(self) -> None:
        self.attempts: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()
        self.good: dict[str, bytes] = {}  # the text of each good answer → the request it was given to
        self.doomed: set[bytes] = set()

    def __call__(self, request) -> Response:
        draw = request.body["seed"]
        self.attempts[draw] += 1
        if draw % 80 == 0:
            self.doomed.add(request.content)
            return self.bad(draw // 80 + self.attempts[draw])
        if draw % 10 < 3 and self.attempts[draw] <= 1 + draw % 2:
            return self.bad(draw // 10 + self.attempts[draw])
        text = self.text(request)
        self.good[text] = request.content
        return self.said(request, text)

    def text(self, request) -> str:
        write = full if request.body.get("stop") == ["</consensus_reason>"] else short
        return write("Agent 1 > Agent 2", solution=f"answer {len(self.good)} to {zlib.crc32(request.content)}")

    def said(self, request, text) -> Response:
        if request.body.get("stream"):
            return events([text[i : i + 40] for i in range(0, len(text), 40)])
        return Response(completion(text))

    def bad(self, draw: int) -> Response:
        kinds = {
            "429": Response({"error": {"message": "slow down"}}, 429, {"retry-after": "0.2"}),
            "500": Response({"error": {"message": "oh"}}, 500),
            "time-out": Response(completion("late"), after_s=TIMEOUT_S + 0.3),
            "cut": Response(completion("cut"), cut=40),
            "no JSON": Response(b'{"choices": [{"mess'),
            "no choice": Response({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}),
            "drip": Response(completion("drip"), drip_s=TIMEOUT_S / 4),
        }
        kind = list(kinds)[draw % len(kinds)]
        self.kinds[kind] += 1
        return kinds[kind]


def messages(content: bytes) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(content)["messages"]]


@pytest.mark.parametrize(
    ("protocol", "debates", "stream"),
    [
        (Parallel(agents=3, max_rounds=2), 100, False),
        (Parallel(agents=3, max_rounds=2), 40, True),
        (Sequential(agents=3, max_rounds=2), 40, False),
    ],
    ids=["parallel", "streamed", "sequential"],
)
def test_debates_against_a_server_that_fails(protocol, debates, stream):
    faulty = Faulty()
    heard: dict[tuple[str, int], str] = {}

    def hear(ask, piece):
        key = ask.debate, ask.turn
        heard[key] = "" if piece is None else heard.get(key, "") + piece

    async def run(url):
        rules = (
            EngineConfig(model="m", base_url=url, deadline_s=600),
            ApiConfig(max_concurrent=64, timeout_s=TIMEOUT_S, retries=4),
        )
        async with Api(*rules, environ={}, on_text=hear if stream else None) as api:
            questions = [Question(f"q{n}", f"What is {n} + {n}?") for n in range(debates)]
            played = await play_all(protocol, questions, api)
        await asyncio.sleep(0)
        return played, asyncio.all_tasks() - {asyncio.current_task()}

    with Server(faulty) as server:
        played, orphans = asyncio.run(run(server.url))
    assert not orphans
    assert server.most <= 64
    if debates == 100:
        assert min(faulty.kinds[kind] for kind in ("429", "500", "time-out", "cut", "no JSON", "no choice", "drip")) >= 5

    # Every debate is complete, or dropped whole and counted: exactly those that had a request that is never answered.
    assert len(played.debates) + len(played.dropped) == debates
    assert all(protocol.wave(debate) == [] for debate in played.debates)
    assert all(len(debate.turns) == 6 for debate in played.debates)
    lost = {said for content in faulty.doomed for said in messages(content)[1:2]}
    assert played.dropped
    assert len(played.dropped) == len({question(said) for said in lost})

    # Each turn is the answer to its very request, and no request's answer is two turns.
    texts = [turn.text for debate in played.debates for turn in debate.turns]
    assert len(set(texts)) == len(texts)
    for debate in played.debates:
        for index, turn in enumerate(debate.turns):
            assert messages(faulty.good[turn.text]) == [(message.role, message.text) for message in turn.asked]
            assert turn.usage.sampled == 5
            if stream:
                assert heard[debate.id, index] == turn.text
    used = [faulty.good[text] for text in texts]
    assert len(set(used)) == len(used)

    # No good answer is lost, but those of dropped debates; a slow machine may have been late for one and asked again.
    kept = {f"What is {d.id[1:]} + {d.id[1:]}?" for d in played.debates}
    unused = {faulty.good[text] for text in faulty.good.keys() - set(texts)}
    assert all(question(messages(content)[1]) not in kept for content in unused - set(used))

    # What is kept can be read again.
    assert all(load(dump(debate)) == debate for debate in played.debates[:5])


def question(message: tuple[str, str]) -> str:
    at = message[1].index("What is")
    return message[1][at : message[1].index("?", at) + 1]


def test_3_7_each_request_extends_the_last_one_of_its_agent():  # SPEC 3.7
    """A server's prefix cache serves all but what is new: earlier messages are the same bytes, only more are added."""

    async def run(url):
        async with Api(EngineConfig(model="m", base_url=url), environ={}) as api:
            questions = [Question(f"q{n}", f"What is {n} + {n}?") for n in range(5)]
            return await play_all(Parallel(agents=3, max_rounds=4), questions, api)

    faulty = Faulty()
    with Server(lambda request: faulty.said(request, faulty.text(request) + "\nüber")) as server:
        assert len(asyncio.run(run(server.url)).debates) == 5
    dialogues: dict[bytes, list[bytes]] = {}
    for request in server.requests:
        start = request.content.index(b'"messages":')
        end = request.content.index(b'],"', start)
        said = request.content[start:end]
        system_and_question = json.dumps(request.body["messages"][:2]).encode()
        dialogues.setdefault(system_and_question, []).append(said)
    assert len(dialogues) == 15
    for said in dialogues.values():
        assert len(said) == 4
        for earlier, later in itertools.pairwise(said):
            assert later.startswith(earlier)
            assert len(later) > len(earlier)

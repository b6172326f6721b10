"""Real folders to look at, made once: a run and an evaluation of the parrot, two evaluations and a transcript by a script;
and a real server on loopback.
"""

import asyncio
import contextlib
import json
import random
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import uvicorn

from peergrad.config import EvalConfig, changed, preset
from peergrad.debate.protocols import Ballot, Parallel
from peergrad.debate.transcript import dump
from peergrad.debate.types import Question
from peergrad.engines.scripted import Scripted
from peergrad.runs.evaluation import evaluate, plan
from peergrad.runs.training import train_run
from peergrad.runs.watch import Watcher
from peergrad.tasks.arithmetic import arithmetic
from peergrad.web.app import application
from peergrad.web.library import Library
from tests.helpers import played, short

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
TOKEN = "the-token-of-the-tests"
SUMS = arithmetic(3, count=12, split="eval")
_SMALL = {"model": str(PARROT), "steps": 3, "batch": 3, "rank": 4, "threads": 1, "warm_debates": 2, "max_tokens": 24}
_SMALL |= {"eval_questions": 2, "eval_debates": 1}


def knows(luck):
    """Somebody who is right as often as luck has it, and votes."""

    def reply(ask):
        question = next(question for question in SUMS.questions if question.id == ask.debate.rpartition("/")[2])
        rng = random.Random(f"{ask.debate} {ask.agent} {ask.turn} {luck}")
        answer = int(question.answer or 0) + (0 if rng.random() < luck else rng.randint(1, 3))
        said = f"It is {'well ' * rng.randint(0, 9)}\\boxed{{{answer}}}."
        if not ask.stop:
            return said
        a, b = rng.sample([agent for agent in range(3) if agent != ask.agent], 2)
        return short(f"Agent {a} > Agent {b}" if ask.seen else "N/A", said)

    return reply


def voter(ask):
    """Debates in which everything happens: votes of all kinds, replies that can't be read, words in many scripts."""
    rng = random.Random(f"{ask.debate} {ask.agent} {ask.turn}")
    if rng.random() < 0.15:
        return "<solution>I will not say"
    others = rng.sample([agent for agent in range(4) if agent != ask.agent], 3)
    lines = [f"Agent {others[0]} > Agent {others[1]}", f"Agent {others[1]} = Agent {others[2]}"]
    lines += rng.sample([f"Agent {ask.agent} > Agent {others[0]}", lines[0], "Agent 1 > Agent 9", "Agent A > Agent B"], 2)
    said = f"Grüße, 😀 it is \\boxed{{{rng.choice((4, 4, 5))}}}"
    return short("\n".join(lines) if ask.seen else "N/A", said, "Zebra crossing: ÄPFEL")


def transcript(path):
    """Ten debates with tokens, one of them a ballot, in a file."""
    question = [
        Question(f"q{i}", f"What is 2 + 2, number {i}?", answer="4", style="boxed", dataset="sums") for i in range(9)
    ]
    debates = [played(Parallel(agents=4, max_rounds=3, max_tokens=4000), voter, one, id=f"d/{one.id}") for one in question]
    ballot = Ballot(agents=4, shown=3, ballot_form="verdicts", max_tokens=4000)
    debates.append(
        played(
            ballot,
            lambda ask: f"<solution>\\boxed{{{ask.agent}}}</solution>" if not ask.candidates else short("A > B"),
            question[0],
            id="b",
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(dump(debate) + "\n" for debate in debates))
    return path


def evaluation(out, luck, **more):
    config = changed(EvalConfig(), {"model": "scripted", "questions": 8, "max_rounds": 2, "agents": 3} | more, "test")

    async def sampler_of(_):
        return Scripted(knows(luck))

    asyncio.run(evaluate(plan(config, SUMS), out, Watcher(), lambda result: "", sampler_of))
    return out


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with all of it; not to be written to."""
    folder = tmp_path_factory.mktemp("view")
    asyncio.run(train_run(changed(preset("demo-parallel"), _SMALL | {"out": folder / "runs" / "parrot"}, "test")))
    evaluation(folder / "evals" / "before", 0.3)
    evaluation(folder / "evals" / "after", 0.8)
    transcript(folder / "debates" / "said.jsonl")
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy that may be written to."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"


class Server:
    """The viewer on loopback, asked over HTTP."""

    def __init__(self, library):
        self.library = library
        self._bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._bound.bind(("127.0.0.1", 0))
        self.port = self._bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = application(library, TOKEN, port=self.port)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._bound]}, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def close(self):
        self._server.should_exit = True
        self._thread.join(60)

    def ask(self, path, headers=None, method="GET"):
        """Status, headers and body."""
        request = urllib.request.Request(self.url + path, headers=headers or {}, method=method)
        try:
            with urllib.request.build_opener(_Stays).open(request, timeout=300) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def get(self, key, **query):
        """What is under a key."""
        path = f"/api/{key}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        status, _, body = self.ask(path, {"Authorization": f"Bearer {TOKEN}"})
        assert status == 200, body
        return json.loads(body)

    def id(self, name):
        """The id of the source whose name ends so."""
        return next(source["id"] for source in self.get("sources")["sources"] if source["name"].endswith(name))


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args, **kwargs):
        return None


def until(true, seconds=60):
    """Wait for something; only what hangs waits to the end."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def serving(paths, cache):
    server = Server(Library(paths, cache))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def server(made, tmp_path_factory):
    """The viewer of all of it, once it is indexed."""
    with serving([made], tmp_path_factory.mktemp("cache")) as running:
        until(lambda: all(source["indexed"] == 1 for source in running.get("sources")["sources"]))
        until(lambda: not running.library.update())
        yield running

"""``peergrad eval`` and ``peergrad check`` as they are, against a server on loopback."""

import json
import re

import pytest

from peergrad.debate.transcript import read_file
from tests.cli.answers import peergrad
from tests.helpers import short
from tests.openai.server import Response, Server, completion


def sums(request):
    """Answers every sum, right two times of three; costs what its words are; votes for the next agent."""
    messages = request.body["messages"]
    a, b = map(int, re.search(r"(\d+) \+ (\d+)", asked_of(messages)).groups())
    wrong = request.body["seed"] % 3 == 0
    answer = f"It is \\boxed{{{a + b + wrong}}}."
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if not system:
        return Response(completion(answer, usage=(20, 8)))
    who = int(re.search(r"You are Agent (\d)", system)[1])
    others = [agent for agent in range(3) if agent != who]
    votes = "Agent {} > Agent {}".format(*others) if len(messages) > 2 and "of 3 agents" in system else "N/A"
    return Response(completion(short(votes, answer), usage=(sum(len(m["content"]) for m in messages) // 4, 30)))


def asked_of(messages):
    return next(message["content"] for message in messages if message["role"] == "user")


@pytest.fixture
def server():
    with Server(sums) as server:
        yield server


def test_eval_stops_at_a_budget_and_goes_on(server, tmp_path):
    args = ["eval", "--model", f"m@{server.url}", "--task", "arithmetic", "--questions", "4", "--max-rounds", "2"]
    args += ["--out", "out", "--price-out", "2"]
    first = peergrad(*args, "--budget-tokens", "6000", cwd=tmp_path)
    assert first.returncode == 1
    assert "the budget of 6000 tokens is spent" in first.stderr
    assert "raise budget_tokens to resume. What is done is kept" in first.stderr
    kept = sum(len(debate.turns) for path in (tmp_path / "out" / "debates").glob("*.jsonl") for debate in read_file(path))
    assert kept
    assert not (tmp_path / "out" / "result.json").exists()
    before = [request.body["seed"] for request in server.requests]  # the seed is an ask's own

    second = peergrad(*args, "--budget-tokens", "1000000", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    after = [request.body["seed"] for request in server.requests[len(before) :]]
    assert len(set(before) & set(after)) == len(before) - kept  # of debates that had not ended
    assert len(after) == len(set(after))
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(found["questions"]) == 4
    assert found["tokens"]["direct/majority"] == pytest.approx(found["tokens"]["debate/correct"], rel=0.02)
    assert "Equal cost: all tokens processed" in second.stdout
    assert re.search(r"\$[\d.]+ paid", second.stdout)


def test_check_finishes(server, tmp_path):
    args = ["check", "--model", f"m@{server.url}", "--task", "arithmetic", "--questions", "3", "--max-rounds", "2", "--json"]
    done = peergrad(*args, "--agents", "3", "--price-out", "2", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert {gate["name"] for gate in found["gates"]} >= {"judges are held to somebody else's votes"}
    assert not found["dropped"]
    assert found["forecast"]["usd"] > 0
    assert (done.returncode == 0) == found["passed"]


@pytest.mark.parametrize("command", ["eval", "check"])
def test_a_wrong_key_is_one_sentence(command, tmp_path):
    with Server(lambda _: Response({"error": {"message": "no"}}, 401)) as server:
        args = [command, "--model", f"m@{server.url}", "--task", "arithmetic", "--questions", "2"]
        done = peergrad(*args, cwd=tmp_path, env={"OPENAI_API_KEY": "sk-wrong-wrong"})
    assert done.returncode == 2
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("peergrad: ")]
    assert sentence.startswith("peergrad: OPENAI_API_KEY: m at 127.0.0.1:")
    assert "does not accept the key (401)" in sentence
    assert "wrong-wrong" not in done.stdout + done.stderr


def test_check_stops_at_a_budget(server, tmp_path):
    args = ["check", "--model", f"m@{server.url}", "--task", "arithmetic", "--questions", "3", "--budget-tokens", "100"]
    done = peergrad(*args, cwd=tmp_path)
    assert done.returncode == 1
    assert "the budget of 100 tokens is spent" in done.stderr

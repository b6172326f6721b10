"""``peergrad debate`` with a model here: the real command and a real, very small model."""

import json
from pathlib import Path

from peergrad.debate.transcript import read_file
from tests.debating.speaking import objects, peergrad, replying, said, seat
from tests.openai.server import Server

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
BRIEF = ("--wording", "brief", "--max-tokens", "64", "--rounds", "2", "--threads", "2", "--device", "cpu", "--json")


def test_a_local_model_debates_and_votes(tmp_path):
    questions = "What is 1 + 2?\nWhat is 2 + 2?\n"
    args = ("debate", "--model", PARROT, *BRIEF, "--style", "boxed")
    done = peergrad(*args, cwd=tmp_path, stdin=questions)
    assert done.returncode == 0, done.stderr
    found = objects(done.stdout)
    assert [one["question"] for one in found] == questions.splitlines()
    assert [one["decided_by"] for one in found] == ["votes", "votes"]
    debates = list(read_file(tmp_path / found[0]["transcript"]))
    assert all(turn.tokens and turn.asked for debate in debates for turn in debate.turns)
    sampled = sum(len(turn.tokens.ids_T) for turn in debates[0].turns)
    assert found[0]["usage"]["sampled"] == sampled
    scored = peergrad("score", found[0]["transcript"], "--reward", "win_rate", "--json", cwd=tmp_path)
    rates = json.loads(scored.stdout)["debates"][0]["streams"][0]["values"]
    assert rates == [agent["win_rate"] for agent in found[0]["agents"]]


def test_a_local_seat_beside_a_server(tmp_path):
    with Server(replying(said)) as server:
        args = ("--model", f"m@{server.url}", "--seat", f"1={PARROT}", "--judge", PARROT)
        done = peergrad("debate", "What is 1 + 2?", *args, *BRIEF, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {seat(request) for request in server.requests} == {0, 2}
    (found,) = objects(done.stdout)
    assert found["agents"][1]["model"] == str(PARROT)
    (debate,) = read_file(tmp_path / found["transcript"])
    assert [turn.tokens is not None for turn in debate.turns] == [False, True, False] * 2
    assert debate.verdict.tokens

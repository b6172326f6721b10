"""``peergrad debate`` with a model here: the real command and a real, very small model."""

import json
from pathlib import Path

from peergrad.debate.transcript import read_file
from tests.cli.answers import objects, peergrad, replying, said, seat
from tests.openai.server import Server

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
BRIEF = ("--wording", "brief", "--max-tokens", "64", "--rounds", "2", "--threads", "2", "--device", "cpu", "--json")


def test_local_models_debate_beside_a_server(tmp_path):
    questions = "What is 1 + 2?\nWhat is 2 + 2?\n"
    with Server(replying(said)) as server:
        args = ("--model", PARROT, "--seat", f"1=m@{server.url}", "--judge", PARROT, "--style", "boxed")
        done = peergrad("debate", *args, *BRIEF, cwd=tmp_path, stdin=questions)
        assert done.returncode == 0, done.stderr
        assert [seat(request) for request in server.requests] == [1] * 4
    found = objects(done.stdout)
    assert sorted(one["question"] for one in found) == questions.splitlines()
    assert [agent["model"] for agent in found[0]["agents"]] == [str(PARROT), f"m@{server.url}", str(PARROT)]
    debates = {debate.id: debate for debate in read_file(tmp_path / found[0]["transcript"])}
    for one in found:
        debate = debates[one["id"]]
        assert [turn.tokens is not None for turn in debate.turns] == [True, False, True] * 2
        assert debate.verdict.tokens
        assert one["usage"]["sampled"] == sum(turn.used.sampled for turn in (*debate.turns, debate.verdict))
    assert any(agent["solution"] for one in found for agent in one["agents"][::2])
    scored = json.loads(peergrad("score", found[0]["transcript"], "--json", cwd=tmp_path).stdout)["debates"]
    peers = {one["id"]: sum(vote["author"] != "judge" for vote in one["votes"]) for one in found}
    assert {one["id"]: len(one["votes"]) for one in scored} == peers

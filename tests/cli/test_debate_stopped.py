"""Ctrl-C in ``peergrad debate``: what was said is kept, and the same command asks for the rest alone."""

import json
import os
import signal
import subprocess
import sys
import threading

from peergrad import read_file
from tests.openai.server import Response, Server, completion

REPLY = "<solution>42</solution><evaluation>N/A</evaluation><comparison>Agent 0 > Agent 1</comparison>"
FLAGS = ["--agents", "3", "--rounds", "2", "--max-concurrent", "1", "--out", "kept.jsonl", "--price-in", "1"]


def test_replies_are_kept_and_not_asked_for_again(tmp_path):
    gone, processes, asked = threading.Event(), [], []

    def answer(request):
        asked.append(request)
        if len(asked) == 3:  # two agents have answered
            os.kill(processes[0].pid, signal.SIGINT)
            assert gone.wait(120)
        return Response(completion(REPLY))

    def command(server):
        args = [sys.executable, "-m", "peergrad", "debate", "What is 6 * 7?", "--model", f"m@{server.url}", *FLAGS]
        processes.insert(
            0, subprocess.Popen(args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return processes[0].communicate(timeout=120)[0], processes[0].returncode

    with Server(answer) as server:
        said, code = command(server)
        gone.set()
        assert code == 130
        assert "stopped; the same command resumes from kept.jsonl" in said
        assert (tmp_path / "kept.jsonl").exists()
        assert len((tmp_path / "kept.replies.jsonl").read_text().splitlines()) == 2
        spent = json.loads((tmp_path / "kept.about.json").read_text())["spent"]
        said, code = command(server)
        assert code == 0, said
    assert len(asked) == 3 + 4  # six turns; the third is asked for again
    (debate,) = read_file(tmp_path / "kept.jsonl")
    assert [turn.text for turn in debate.turns] == [REPLY] * 6
    assert not (tmp_path / "kept.replies.jsonl").exists()
    after = json.loads((tmp_path / "kept.about.json").read_text())["spent"]
    assert after["requests"] > spent["requests"] >= 2

"""``peergrad debate``, the real command against real servers on loopback."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from peergrad.cli import main as cli
from peergrad.debate.transcript import read_file
from tests.cli.answers import PEERGRAD, ROOT, asked, objects, peergrad, replying, round_of, said, seat
from tests.hostile.corpus import PAYLOADS
from tests.openai.server import Response, Server, completion


def kept(folder):
    (path,) = (folder / "debates").glob("*.jsonl")
    return path, list(read_file(path))


@pytest.fixture
def server():
    with Server(replying(said)) as server:
        yield server


def test_a_debate_is_told_as_it_happens_and_kept(server, tmp_path):
    args = (
        "debate",
        "What is 17 + 25?",
        "--model",
        f"m@{server.url}",
        "--rounds",
        "2",
        "--price-in",
        "5",
        "--price-out",
        "10",
    )
    done = peergrad(*args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "What is 17 + 25?"
    heads = [line for line in lines if line.startswith("Round ")]
    assert sorted(heads[:3]) == [
        "Round 1, Agent 0 (Methodical Analyst)",
        "Round 1, Agent 1 (Creative Problem-Solver)",
        "Round 1, Agent 2 (Devil's Advocate)",
    ]
    assert [head[:7] for head in heads[3:]] == ["Round 2"] * 3
    start = lines.index("Round 2, Agent 0 (Methodical Analyst)")
    assert lines[start + 1 : start + 6] == [
        "  solution",
        "  │ I am 0: \\boxed{0}",
        "  evaluation",
        "  │ Agent 0 has read it.",
        "  votes: Agent 2 > Agent 1",
    ]
    end = lines.index("Votes")
    assert [line.split() for line in lines[end + 1 : end + 5]] == [
        ["voter", "votes"],
        ["Agent", "0", "(Methodical", "Analyst)", "round", "2:", "Agent", "2", ">", "Agent", "1"],
        ["Agent", "1", "(Creative", "Problem-Solver)", "round", "2:", "Agent", "2", ">", "Agent", "0"],
        ["Agent", "2", "(Devil's", "Advocate)", "none"],
    ]
    assert lines[end + 8].split() == ["Agent", "2", "(Devil's", "Advocate)", "1.00", "2", "0", "0", "2"]
    assert lines[end + 9 : end + 11] == [
        "Agent 2 (Devil's Advocate) wins with a win rate of 1.00:",
        "  │ I am 2: \\boxed{2}",
    ]
    assert re.fullmatch(r"6 replies, 60 tokens read and 30 sampled, \$0\.0006, [\d.]+ s", lines[-2])
    path, (debate,) = kept(tmp_path)
    assert lines[-1] == f"saved in {path.relative_to(tmp_path)}"
    assert path.name.startswith("what-is-17-25-")
    assert all(turn.asked and turn.usage for turn in debate.turns)
    about = json.loads(path.with_name(path.name.replace(".jsonl", ".about.json")).read_text())
    assert about["spent"].pop("seconds") > 0
    assert about["spent"] == {"requests": 6, "prompt": 60, "sampled": 30, "usd": 0.0006}
    assert about["seats"][0] == {"model": "m", "adapter": None, "server": server.url}

    again = peergrad(*args, cwd=tmp_path)
    assert len(server.requests) == 6
    assert "kept from before in debates/" in again.stdout
    assert [line for line in again.stdout.splitlines() if line.startswith("Agent 2")] == [lines[end + 9]]
    scored = peergrad("score", path, "--json", cwd=tmp_path)
    assert len(json.loads(scored.stdout)["debates"][0]["votes"]) == 2


def test_one_object_for_programs(server, tmp_path):
    done = peergrad("debate", "2 + 2?", "--model", f"m@{server.url}", "--json", "--price-out", "10", cwd=tmp_path)
    assert done.returncode == 0
    (found,) = objects(done.stdout)
    assert (found["question"], found["winner"], found["winners"], found["decided_by"]) == ("2 + 2?", 2, [2], "votes")
    assert (found["answer"], found["rounds"], found["protocol"], found["judge"]) == (
        "I am 2: \\boxed{2}",
        3,
        "parallel",
        None,
    )
    assert [agent["win_rate"] for agent in found["agents"]] == [0.0, 0.0, 1.0]
    assert [agent["answer"] for agent in found["agents"]] == ["0", "1", "2"]
    assert found["votes"][0] == {"author": 0, "round": 2, "a": 2, "op": ">", "b": 1}
    assert (found["usage"], found["usd"]) == ({"prompt": 90, "sampled": 45}, 0.00045)
    assert found["seconds"] > 0
    assert not found["kept"]
    assert len(list(read_file(tmp_path / found["transcript"]))) == 1
    assert "1 debate (1 decided by votes); 90 tokens read and 45 sampled" in done.stderr


def test_sequential_debates_speak_in_turn(server, tmp_path):
    done = peergrad("debate", "?", "--model", f"m@{server.url}", "--protocol", "sequential", "--rounds", "1", cwd=tmp_path)
    heads = [line for line in done.stdout.splitlines() if line.startswith("Round ")]
    assert heads == ["Round 1, Agent 0", "Round 1, Agent 1", "Round 1, Agent 2"]
    assert done.stdout.count("  agreed: no") == 3


@pytest.mark.parametrize("protocol", ["parallel", "sequential"])
def test_on_a_terminal_words_are_shown_while_they_come(protocol, tmp_path):
    words = "before the end " + "and on " * 30 + "\x1b[2J[red]MARK[/red]"
    with Server(replying(lambda request: said(request, words), drip_s=0.05)) as server:
        screen, slave = pty.openpty()
        command = [*PEERGRAD, "debate", "?", "--model", f"m@{server.url}", "--rounds", "1", "--protocol", protocol]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "90", "LINES": "30", "TERM": "xterm"}
        process = subprocess.Popen(command, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += os.read(screen, 65536)
            except OSError:
                break
        assert process.wait(300) == 0
    text = shown.decode()
    first = "and on and on"
    assert text.index(first) < text.index("Round 1, Agent ")
    assert text.index("MARK") > text.index(first)
    assert "[red]MARK[/red]" in text
    assert "\x1b[2J" not in text
    assert re.search(r"\d replies, \d+ tokens, \d+ s", text)
    assert all(request.body["stream"] for request in server.requests)


def test_questions_from_a_pipe_go_on_after_a_kill(tmp_path):
    held = {"third": True}

    def handle(request):
        slow = asked(request) == "third?" and held["third"]
        return Response(completion(said(request)), after_s=30 if slow else 0)

    questions = "first?\n\nsecond?\nthird?\nfirst?\n"
    with Server(handle) as server:
        args = ["debate", "-", "--model", f"m@{server.url}", "--rounds", "2", "--json", "--out", "mine.jsonl"]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*PEERGRAD, *args], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        process.stdin.write(questions)
        process.stdin.close()
        told = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        process.wait(300)
        process.stdout.close()
        assert sorted(one["question"] for one in told) == ["first?", "first?", "second?"]
        assert len({one["id"] for one in told}) == 3
        path = tmp_path / "mine.jsonl"
        with path.open("ab") as file:
            file.write(b'{"id": "torn", "turns": [')
        before, held["third"] = len(server.requests), False
        done = peergrad(*args, cwd=tmp_path, stdin=questions)
        assert done.returncode == 0, done.stderr
        assert [one["kept"] for one in objects(done.stdout)] == [True, True, True, False]
        assert {asked(request) for request in server.requests[before:]} == {"third?"}
        assert len(server.requests) - before == 6
        assert "it is played again" in done.stderr
    assert len(list(read_file(path))) == 4


@pytest.mark.parametrize(
    ("name", "content"), [("q.txt", "one?\ntwo?\n"), ("q.jsonl", '{"question": "one?"}\n{"question": "two?"}\n')]
)
def test_questions_from_a_file(name, content, server, tmp_path):
    (tmp_path / name).write_text(content)
    done = peergrad("debate", "--task", name, "--model", f"m@{server.url}", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert all(line.endswith(": Agent 2 wins (1.00): 2") for line in done.stdout.splitlines())
    assert "2 debates (2 decided by votes)" in done.stderr


def test_seats_and_a_judge(server, tmp_path):
    with Server(replying(lambda request: said(request, "the other", best=0))) as other:
        args = ("--seat", f"0=x@{other.url}", "--judge", f"j@{other.url}", "--rounds", "2", "--json")
        done = peergrad("debate", "?", "--model", f"m@{server.url}", *args, cwd=tmp_path, env={"OPENAI_API_KEY": "mine"})
        assert done.returncode == 0, done.stderr
        assert {seat(request) for request in server.requests} == {1, 2}
        assert [seat(request) for request in other.requests] == [0, 0, None]
        assert {request.body["model"] for request in other.requests} == {"x", "j"}
        # the key is the model's server's, and no other's
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer mine"}
        assert {request.headers["authorization"] for request in other.requests} == {"Bearer none"}
        assert "is asked without a key" in done.stderr
    (found,) = objects(done.stdout)
    judge = other.requests[-1].body["messages"]
    assert judge[1]["content"].count("Agent 0's final answer:") == 1
    assert "> " not in judge[1]["content"].replace("| ", "")  # nobody's votes
    assert found["agents"][0]["solution"] == "the other"
    assert [vote for vote in found["votes"] if vote["author"] == "judge"] == [
        {"author": "judge", "round": None, "a": 0, "op": ">", "b": 1},
        {"author": "judge", "round": None, "a": 0, "op": ">", "b": 2},
    ]
    assert found["judge"] == {"model": f"j@{other.url}", "evaluation": "All fine.", "error": None}
    assert [agent["model"] for agent in found["agents"]] == [f"x@{other.url}", f"m@{server.url}", f"m@{server.url}"]
    _, (debate,) = kept(tmp_path)
    assert debate.verdict.usage
    assert debate.verdict.asked


def test_each_server_gets_its_own_key(server, tmp_path):
    with Server(replying(said)) as other:
        host = other.url.removeprefix("http://").removesuffix("/v1")
        args = ("--model", f"m@{server.url}", "--judge", f"j@{other.url}", "--rounds", "1", "--server-keys", f"{host}=OTHER")
        done = peergrad("debate", "?", *args, cwd=tmp_path, env={"OPENAI_API_KEY": "mine", "OTHER": "theirs"})
        assert done.returncode == 0, done.stderr
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer mine"}
        assert {request.headers["authorization"] for request in other.requests} == {"Bearer theirs"}


def test_a_spent_budget_stops_and_the_same_command_goes_on(server, tmp_path):
    args = ["debate", "-", "--model", f"m@{server.url}", "--rounds", "2", "--json", "--max-concurrent", "1"]
    questions = "one?\ntwo?\nthree?\n"
    first = peergrad(*args, "--budget-tokens", "250", cwd=tmp_path, stdin=questions)
    assert first.returncode == 1
    bought = len(objects(first.stdout))
    assert 1 <= bought <= 2  # whoever comes first: 17 of 18 replies are paid for, 15 tokens each
    assert "the budget of 250 tokens is spent" in first.stderr
    assert "the same command resumes it" in first.stderr
    second = peergrad(*args, "--budget-tokens", "1000", cwd=tmp_path, stdin=questions)
    assert second.returncode == 0, second.stderr
    assert [one["kept"] for one in objects(second.stdout)].count(True) == bought
    assert len(kept(tmp_path)[1]) == 3
    (about,) = (tmp_path / "debates").glob("*.about.json")
    assert json.loads(about.read_text())["spent"]["requests"] == len(server.requests)


SIGNS = "\x1b\x07\x08\r\u202e\u2028[\x9b"
HOSTILE = [text for payloads, _ in PAYLOADS.values() for text in payloads.values() if set(SIGNS) & set(text[:500])]


def test_hostile_replies_leave_the_text_clean(tmp_path):
    attack = "\n".join(
        [*HOSTILE, "\x1b]0;title\x07", "[bold red]x[/bold red]", "[link=http://x]y[/link]", "\x9b31m", "\u202egnp"]
    )
    with Server(replying(lambda request: said(request, attack.replace("<", "(")))) as server:
        done = peergrad("debate", "\x1b[31m[red]?\r\x9b", "--model", f"m@{server.url}", "--rounds", "2", cwd=tmp_path)
        many = peergrad("debate", "-", "--model", f"m@{server.url}", "--rounds", "1", cwd=tmp_path, stdin="a?\nb?\n")
    assert len(HOSTILE) > 5
    assert (done.returncode, many.returncode) == (0, 0)
    for text in (done.stdout, done.stderr, many.stdout, many.stderr):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]", text)
    assert "[bold red]x[/bold red]" in done.stdout
    ours = ("Round ", "Agent ", "Votes", "  solution", "  evaluation", "  votes:", "  │ ", "  voter", "  agent", "  Agent ")
    assert [line for line in done.stdout.splitlines()[1:-2] if not line.startswith(ours)] == []


def unreadable(request):
    return "<evaluation>I will not." if round_of(request) or seat(request) else said(request, "\\boxed{7}")


def test_without_votes_there_may_be_no_winner(tmp_path):
    with Server(replying(unreadable)) as server:
        args = ("--model", f"m@{server.url}", "--rounds", "2")
        done = peergrad("debate", "boxed", *args, cwd=tmp_path)
    assert "Nobody voted. One of 3 agents gives an answer:" in done.stdout
    assert "from round 1; what it said after that can't be read" in done.stdout
    assert done.stdout.count("  can't be read (missing <solution>):\n  │ <evaluation>I will not.") == 5
    with Server(replying(lambda _: "<evaluation>no")) as server:
        done = peergrad("debate", "none", "--model", f"m@{server.url}", "--rounds", "1", cwd=tmp_path)
    assert "There is no winner: no reply could be read." in done.stdout
    assert "nobody can vote: a vote compares two others, and nobody is shown two; give max_rounds 2 or more" in done.stderr


DOWN = ["--model", "m@http://127.0.0.1:9/v1"]
WRONG = [
    (["?", "--seat", "5=x"], "seat 5: there is none; 3 agents have the seats 0 to 2"),
    (["?", "--seat", "x"], "seat: is not SEAT=MODEL; give the seat's number"),
    (["?", "--seat", "0=a", "--seat", "0=b"], "seat 0: is given twice"),
    (["?", "--seat", "1=x@http://u:p@h/v1"], "seat 1: base_url: has a user name or password in it"),
    (["?", "--judge", "x@ftp://h"], "judge: base_url: is no address"),
    (["?", "--judge", "x", "--agents", "1"], "judge: has nothing to compare"),
    ([" "], "question: is empty"),
    (["-"], "stdin: is empty; give at least one question"),
    ([], "stdin: is empty"),
    (["?", "--task", "x.txt"], "task: is given beside a question"),
    (["--task", "x.txt"], "task: x.txt can't be read (No such file or directory)"),
    (["?", "--base-url", "http://127.0.0.1:9/v1"], "model: is not set; give the name that the server knows"),
    (["?", "--agents", "0"], "agents: 0 is not possible"),
    (["?", "--out", "."], "out: . is no .jsonl file"),
    (["?", "--server-keys", "x"], "server_keys: is not HOST=VARIABLE"),
]


@pytest.mark.parametrize(("args", "sentence"), WRONG, ids=[" ".join(args) or "nothing" for args, *_ in WRONG])
def test_mistakes_are_one_sentence(args, sentence, tmp_path, monkeypatch, capsys):
    more = [] if "--base-url" in args else DOWN
    monkeypatch.setattr(sys, "argv", ["peergrad", "debate", *args, *more])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"peergrad: {sentence}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--model", "/no/such/model"], "model: '/no/such/model' does not exist"),
        (DOWN, "base_url: m at 127.0.0.1:9 can't be reached"),
        ([*DOWN, "--out", "folder.jsonl"], "out: folder.jsonl can't be written (Is a directory)"),
        ([*DOWN, "--out", "theirs.jsonl"], "out: theirs.jsonl holds something else; give another file"),
    ],
    ids=["no model", "no server", "a folder", "not ours"],
)
def test_what_is_found_later_is_one_sentence_too(args, sentence, tmp_path):
    (tmp_path / "theirs.jsonl").write_text("something\n")
    (tmp_path / "folder.jsonl").mkdir()
    done = peergrad("debate", "?", *args, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("peergrad: ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"peergrad: {sentence}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("debates/*"))
    assert (tmp_path / "theirs.jsonl").read_text() == "something\n"


def test_faults_of_a_server_name_the_seat(server, tmp_path):
    with Server(lambda _: Response({"error": {"message": "no"}}, 401)) as locked:
        args = ("debate", "?", "--model", f"m@{server.url}", "--seat", f"1=x@{locked.url}")
        done = peergrad(*args, cwd=tmp_path)
        assert done.returncode == 2
        assert "peergrad: seat 1: OPENAI_API_KEY: x at 127.0.0.1:" in done.stderr
    with Server(lambda _: Response({"error": {"message": "too long: maximum context length"}}, 413)) as small:
        done = peergrad("debate", "?", "--model", f"m@{server.url}", "--seat", f"2=x@{small.url}", cwd=tmp_path)
        assert done.returncode == 1
        assert "peergrad: 1 of 1 debates were dropped; the first because: seat 2: x at " in done.stderr


def test_other_settings_are_refused_in_the_same_file(server, tmp_path):
    args = ("debate", "?", "--model", f"m@{server.url}", "--out", "a.jsonl", "--json", "--rounds")
    assert peergrad(*args, 1, cwd=tmp_path).returncode == 0
    done = peergrad(*args, 2, cwd=tmp_path)
    assert done.returncode == 2
    assert "max_rounds: the transcript a.jsonl has 1, not 2; give the same, or another out" in done.stderr


def test_a_signal_stops_it(tmp_path):
    with Server(lambda request: Response(completion(said(request)), after_s=30)) as server:
        command = [*PEERGRAD, "debate", "?", "--model", f"m@{server.url}"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        while not server.requests:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
        assert b"stopped; the same command resumes from the beginning" in process.stderr.read()  # nobody has replied
        process.stderr.close()

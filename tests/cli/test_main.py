"""``peergrad score`` as a person or a program runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import peergrad

HERE = Path(__file__).parent.parent
WORKED = HERE / "golden" / "worked.jsonl"


def scores(*arguments):
    result = peergrad("score", WORKED, "--json", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)["debates"]


def stream(debate, name):
    return next(stream for stream in debate["streams"] if stream["name"] == name)


def test_the_worked_example():
    """Two debates worked out by hand."""
    circle, aborted = scores()
    assert circle["votes"] == [
        {"turn": 3, "author": 0, "a": 1, "op": ">", "b": 2, "judged": [1, 2]},
        {"turn": 4, "author": 1, "a": 2, "op": ">", "b": 0, "judged": [2, 0]},
        {"turn": 5, "author": 2, "a": 0, "op": "=", "b": 1, "judged": [0, 1]},
    ]
    none = dict.fromkeys(("self_votes", "malformed", "repeated", "contradictory", "missing", "parse_errors"), 0)
    assert circle["counts"] == none
    assert aborted["counts"] == none | {"self_votes": 1, "repeated": 1, "parse_errors": 1}
    assert stream(circle, "gen")["values"] == [-0.5, 0.5, 0, None, None, None]
    assert stream(circle, "gen")["advantages"] == [-0.5, 0.5, 0, None, None, None]
    assert stream(circle, "judge")["values"] == [None, None, None, 1, 1, 0]
    assert stream(circle, "format")["values"] == [0] * 6
    assert stream(aborted, "gen")["values"] == [1, -1, None, None]
    assert stream(aborted, "judge")["values"] == [None, None, 1, None]
    assert stream(aborted, "format")["values"] == [0, 0, 0, -1]
    circle, aborted = scores("--reward", "win_rate")
    assert circle["streams"] == [
        {"name": "win_rate", "unit": "agent", "values": [0.25, 0.75, 0.5], "advantages": [-0.25, 0.25, 0]}
    ]
    assert aborted["streams"][0]["values"] == [0, 0, 0]
    circle, aborted = scores("--reward", "win_minus_loss")
    assert circle["streams"][0]["values"] == [-0.5, 0.5, 0]
    assert aborted["streams"][0]["values"] == [0, -1, 0]
    assert stream(scores("--consensus", "others")[0], "judge")["values"] == [None] * 6


def test_options_reach_the_rules():
    assert stream(scores("--unjudged", "literal")[0], "gen")["values"][3:] == [-1, -1, -1]
    assert len(scores("--ballots", "literal")[1]["votes"]) == 2
    assert [s["name"] for s in scores("--no-format-penalty")[0]["streams"]] == ["gen", "judge"]
    kept = scores("--self-votes", "keep")[1]
    assert kept["counts"]["self_votes"] == 0
    batch = scores("--reward", "win_rate", "--center", "batch")
    assert batch[0]["streams"][0]["advantages"] == pytest.approx([0, 0.5, 0.25])
    seat = scores("--reward", "win_rate", "--center", "seat")
    assert seat[1]["streams"][0]["advantages"] == pytest.approx([-0.125, -0.375, -0.25])


def test_a_table_for_people():
    result = peergrad("score", WORKED, env=os.environ | {"COLUMNS": "100"})
    assert result.returncode == 0
    assert "parallel-3x2: 3 agents, 6 turns: What is 17 + 25?" in result.stdout
    assert "unreadable: unclosed <solution>" in " ".join(result.stdout.split())
    assert "debates 2, of them without signal 0; valid votes 4" in result.stdout


def test_model_and_user_text_cannot_drive_the_terminal(tmp_path):
    line = json.loads(WORKED.read_text().split("\n")[0]) | {"id": "[bold]x\x1b[31m\u202ered\r\n"}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    shown = peergrad("score", tmp_path / "x.jsonl").stdout
    assert "[bold]x[31mred" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_error_messages_are_one_plain_line(tmp_path):
    line = json.loads(WORKED.read_text().split("\n")[0]) | {"settings": {"\x1b[31mPWNED\nx": 1}}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    result = peergrad("score", tmp_path / "x.jsonl")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["score"], "FILE"),
        (["score", "nowhere.jsonl"], "nowhere.jsonl: can't be read (No such file or directory)"),
        (["score", WORKED, "--reward", "winrate"], "win_rate"),
        (["score", WORKED, "--rewrad", "win_rate"], "--reward"),
        (["score", WORKED, "--center", "none"], "seat"),
        (["scroe", WORKED], "score"),
        ([], "score"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(arguments, says, tmp_path):
    result = peergrad(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_torn_line_loses_nothing_and_prints_nothing(tmp_path):
    path = tmp_path / "torn.jsonl"
    path.write_bytes(WORKED.read_bytes() + WORKED.read_bytes()[:200])
    before = path.read_bytes()
    for extra in ([], ["--json"]):
        result = peergrad("score", path, *extra)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{path}, line 3, column" in result.stderr
    assert path.read_bytes() == before


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_bytes(WORKED.read_bytes() * 2000)
    process = subprocess.Popen(
        [sys.executable, "-m", "peergrad", "score", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read(10) == b'{"debates"'
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_models_are_listed_and_mistakes_explained(tmp_path):
    env = os.environ | {"PEERGRAD_CACHE": str(tmp_path / "cache")}
    listed = peergrad("models", env=env)
    assert listed.returncode == 0
    assert "smollm2" in listed.stdout
    wrong = peergrad("models", "--get", "smollm3", env=env)
    assert wrong.returncode == 2
    assert "smollm2" in wrong.stderr
    assert not (tmp_path / "cache").exists()
    nowhere = peergrad("models", "--get", "nobody/nothing", env=env | {"HF_HUB_OFFLINE": "1"})
    assert nowhere.returncode in (1, 2)
    assert "Traceback" not in nowhere.stderr
    assert "\npeergrad: nobody/nothing" in nowhere.stderr


def test_scoring_needs_no_torch():
    code = (
        "import sys, runpy\n"
        "class Never:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'peft', 'openai', 'tinker', 'starlette'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Never())\n"
        f"sys.argv = ['peergrad', 'score', {str(WORKED)!r}, '--json']\n"
        "runpy.run_module('peergrad', run_name='__main__')\n"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout


@pytest.mark.parametrize(("given", "then"), [(None, "passive"), ("active", "active")])
def test_threads_that_wait_leave_the_core_to_others(given, then):
    program = (
        "import os, sys\n"
        "from peergrad.cli.main import main\n"
        "assert 'torch' not in sys.modules  # which reads it once\n"
        "sys.argv = ['peergrad', 'version']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    unset = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = unset | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == then

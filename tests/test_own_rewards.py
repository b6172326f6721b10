"""A reward of one's own by its import path: in Python, in a run, on the command line; what does not fit is a sentence."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peergrad import Question, RewardRules, Run, UserError, dump, load, score
from peergrad.cli.eval import _trained_on
from peergrad.debate.settings import imported
from peergrad.learn.train import LearnRules
from peergrad.measure.gates import Sample, gates
from peergrad.measure.metrics import DebateBatch, rewards
from peergrad.measure.rescore import rescore, verdict
from peergrad.runs.export import export
from peergrad.runs.folder import Progress
from peergrad.tasks.base import Questions, truth_of
from peergrad.tasks.open import regrade
from peergrad.web.report import report
from tests.commands import peergrad
from tests.helpers import parallel
from tests.runs.test_run import run

EXAMPLES = Path(__file__).parent.parent / "examples"


def debate(*answers):
    """Three agents who give these answers, one round after the other."""
    made = json.loads(dump(parallel(3, *[["N/A"] * 3] * (len(answers) // 3))))
    for turn, answer in zip(made["turns"], answers, strict=True):
        turn["text"] = turn["text"].replace("42", answer)
    return load(json.dumps(made))


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder to write modules in, which is the current one."""
    monkeypatch.chdir(tmp_path)
    before, known = list(sys.path), set(sys.modules)
    yield tmp_path
    imported.cache_clear()
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == tmp_path:
            del sys.modules[name]


def test_the_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    one = debate(r"\boxed{1}", r"\boxed{2}", "none", r"\boxed{2}", r"\boxed{2}", r"\boxed{1}")
    (stream,) = score(one, RewardRules(reward="my_rewards:agreement")).streams
    assert stream.values == (0.5, 0.5, None, 0.5, 0.5, 0.0)
    truth = [False, False, None, True, True, True]
    (stream,) = score(one, RewardRules(reward="my_rewards:correctness"), truth.__getitem__).streams
    assert stream.values == (0.0, 0.0, None, 1.0, 1.0, 1.0)


def test_a_run_trains_on_it_and_goes_on(here):
    (here / "own.py").write_text(
        "from peergrad import Stream\n"
        "def right(debate, tally, truth):\n"
        "    return [Stream('right', 'turn', tuple(float(truth(t)) + len(debate.turns[t].text) / 1e4"
        " for t in range(len(debate.turns))))]\n"
    )
    run(here / "run", reward="own:right", steps=2)
    made = run(here / "run", reward="own:right", steps=3)
    steps = [line for line in made.metrics() if line["phase"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all("reward/right/seat/0" in line and "reward/gen/seat/0" not in line for line in steps)
    assert made.newest()[0] == Progress(3)
    with pytest.raises(UserError, match="reward"):
        run(here / "run", reward="streams", steps=4)


def test_it_is_measured_and_compared_like_the_built_in_ones(here):
    (here / "own.py").write_text(
        "from peergrad import Stream\n"
        "def f(debate, tally, truth):\n"
        "    turns = range(len(debate.turns))\n"
        "    votes = tuple(float(len(debate.turns[t].parsed.votes)) for t in turns)\n"
        "    return [Stream('right', 'turn', tuple(float(truth(t)) for t in turns), ('solution',), follows='solution'),"
        " Stream('wrong', 'turn', tuple(-float(truth(t)) for t in turns), follows='solution', weight=0.5),"
        " Stream('silence', 'turn', votes, follows='votes'), Stream('other', 'turn', votes)]\n"
    )
    answered = replace(debate(r"\boxed{1}", r"\boxed{1}", r"\boxed{2}"), question=Question("q", "?", "1", "boxed"))
    result = rescore([answered, replace(answered, id="b")], RewardRules(), regrade, ("own:f",))
    assert next(one for one in result.rewards if one.name == "own:f").follows.value == pytest.approx(1)
    follows = {one.name: one.follows and one.follows.value for one in result.streams if one.name.startswith("own:f")}
    assert follows == {"own:f right": pytest.approx(1), "own:f wrong": pytest.approx(-1), "own:f silence": None}
    assert verdict(result).startswith("Train with own:f") or "does not decide" in verdict(result)
    metrics = rewards(DebateBatch([score(answered, RewardRules(reward="own:f"), lambda turn: turn < 2)]))
    assert metrics["reward/right/mean"] == pytest.approx(2 / 3)
    task = Questions("sums", (answered.question,), regrade)
    rules = LearnRules(steps=1, reward=RewardRules(reward="own:f"))
    found = {gate.name: gate for gate in gates(Sample((), [answered], 0, 64, None), task, rules)}
    judges = found["judges are held to somebody else's votes"]
    assert (judges.verdict, judges.measured) == ("warn", "3 agents, no debate with differing judges")
    assert found["debates with signal"].verdict == "pass"


def test_on_the_command_line(tmp_path):
    transcript = tmp_path / "debates.jsonl"
    transcript.write_text(dump(debate(r"\boxed{1}", r"\boxed{1}", r"\boxed{2}")) + "\n")
    command = ["score", transcript, "--json", "--reward"]
    made = peergrad(*command, "my_rewards:agreement", cwd=EXAMPLES)
    assert [stream["name"] for stream in json.loads(made.stdout)["debates"][0]["streams"]] == ["agreement"]
    again = ["rescore", *command[1:], "my_rewards:agreement", "my_rewards:correctness"]
    made = peergrad(*again, cwd=EXAMPLES)
    assert [one["name"] for one in json.loads(made.stdout)["rewards"]][-5:-3] == again[-2:]  # before the controls
    assert [one["name"] for one in json.loads(made.stdout)["streams"]][-2:] == [
        "my_rewards:agreement agreement",
        "my_rewards:correctness correct",
    ]
    for before, name, why in (
        (command, "agrement", "is not known"),
        (command, "my_rewards:agrement", "has no 'agrement'"),
        (again[:-2], "win_rate", "is compared already"),
    ):
        made = peergrad(*before, name, cwd=EXAMPLES)
        assert made.returncode == 2
        assert why in made.stderr
        assert "Traceback" not in made.stderr


WRONG = {
    "import nowhere_to_be_found\ndef f(*_): ...": "no module 'nowhere_to_be_found' is installed",
    "1 / 0": r"can't be imported \(ZeroDivisionError",
    "def g(*_): ...": "module 'wrong.*' has no 'f'",
    "f = 7": "is int, not a function of debate, tally and truth",
    "def f(*_):\n    return 1 / 0": r"debate 'd': failed \(ZeroDivisionError: .*wrong\d+.py, line 2",
    "def f(*_):\n    return [0]": "debate 'd': gave int; each must be a Stream",
    "def f(*_):\n    return []": "gave no stream",
    "def f(*_):\n    return [Stream('x', 'turn', (1.0,))]": "1 values for 3 turns; give one for each",
    "def f(*_):\n    return [Stream('x', 'turn', 1.0)]": "its values are not numbers",
    "def f(*_):\n    return [Stream('x', 'turn', ('a',) * 3)]": "its values are not numbers",
    "def f(*_):\n    return [Stream('x', 'turns', (1.0,) * 3)]": "is of 'turns'; give 'turn' or 'agent'",
    "def f(*_):\n    return [Stream('x', 'turn', (1.0,) * 3)] * 2": "names of their own",
    "def f(*_):\n    return [Stream('x', u, (1.0,) * 3) for u in ('turn', 'agent')]": "names of their own",
    "def f(*_):\n    return [Stream(u, u, (1.0,) * 3) for u in ('turn', 'agent')]": "all are of turns or all of agents",
    "def f(*_):\n    return [Stream('x', 'turn', (1.0,) * 3, ('solution'))]": "sections are 'solution'",
    "def f(*_):\n    return [Stream('x', 'turn', (1.0,) * 3, ('answer',))]": "sections are .'answer',.; give a tuple",
    "def f(*_):\n    return [Stream('x', 'agent', (1.0, None, float('nan')))]": "a number is not finite",
    "def f(*_):\n    return [Stream('x', 'agent', (1.0,) * 3, None, float('inf'))]": "a number is not finite",
    "def f(*_):\n    return [Stream('x', 'agent', (1.0,) * 3, follows='truth')]": "follows is 'truth'; give",
}


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_does_not_fit_is_a_sentence(here, number):
    code, why = list(WRONG.items())[number]
    (here / f"wrong{number}.py").write_text(f"{code}\nfrom peergrad import Stream\n")
    with pytest.raises(UserError, match=why):
        score(debate("1", "2", "3"), RewardRules(reward=f"wrong{number}:f"))


@pytest.mark.parametrize("name", ["x:", ":y", "../x:y", "os.path:join()", "a b:c"])
def test_what_is_no_import_path_is_a_sentence(name):
    with pytest.raises(UserError, match="is no import path"):
        _ = RewardRules(reward=name).function


def test_nothing_is_imported_that_a_folder_names(here):
    made = run(here / "run", steps=1)
    (here / "sent.py").write_text("raise SystemExit('it was run')\n")
    config = made.path / "config.toml"
    config.write_text(config.read_text().replace('reward = "streams"', 'reward = "sent:reward"'))
    assert "It trained on sent:reward" in report(Run(made.path))
    assert _trained_on(Run(made.path), "arithmetic")
    assert "only reward" not in (export(Run(made.path), here / "adapter") / "README.md").read_text()
    assert "sent" not in sys.modules
    with pytest.raises(UserError, match="it was run"):  # a person's own settings are another matter
        run(here / "other", reward="sent:reward")


def test_numbers_of_any_kind_are_plain_ones(here):
    (here / "kinds.py").write_text(
        "import numpy as np\nfrom peergrad import Stream\n"
        "def f(*_):\n    return [Stream('x', 'turn', (np.float32(0.5), True, None))]\n"
    )
    (stream,) = score(debate("1", "2", "3"), RewardRules(reward="kinds:f")).streams
    assert json.dumps(stream.values) == "[0.5, 1.0, null]"


def test_nobody_knows_what_is_right_where_there_is_no_answer():
    task = Questions("mixed", (Question("a", "?", style="boxed", answer="1"), Question("b", "?", style="boxed")), regrade)
    for question, wanted in zip(task.questions, ([True, False, False], [None] * 3), strict=True):
        one = replace(debate(r"\boxed{1}", r"\boxed{2}", "none"), question=question)
        assert [truth_of(task.grade)(one)(turn) for turn in range(3)] == wanted

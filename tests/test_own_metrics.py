"""Metrics and alarms of one's own by their import paths: in a run, on the command line; what does not fit is a sentence."""

import sys

import pytest

from peergrad import Run, UserError, score
from peergrad.config import KeepConfig
from peergrad.debate.play import Played
from peergrad.learn.train import Step, Stopped
from peergrad.measure.alarms import Alarm, alarms
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.web.report import report
from tests.commands import peergrad
from tests.helpers import parallel
from tests.runs.test_run import PARROT, run
from tests.test_own_rewards import EXAMPLES, here  # noqa: F401 (a fixture)

BATCH = DebateBatch([score(parallel(3, ["N/A"] * 3, ["Agent 1 > Agent 2"] * 3))])
STEP = Step(0, 1e-3, Played((), {}), (), (), (), None, 1.0)


def test_the_example_on_the_command_line(tmp_path):
    command = ["train", "--preset", "demo-parallel", "--model", PARROT, "--threads", 1, "--batch", 2, "--max-tokens", 40]
    command += ["--eval-questions", 3, "--out", tmp_path / "run"]
    own = ["--metrics", "my_metrics:vote_length", "--alarms", "my_metrics:too_long"]
    for steps in ("1", "2"):  # the second one resumes
        done = peergrad(*command, *own, "--steps", steps, cwd=EXAMPLES)
        assert done.returncode == 0, done.stderr
    lines = Run(tmp_path / "run").metrics()
    measured = [line.get("votes/length") for line in lines if line["phase"] == "train"]
    assert len(measured) == 2
    assert all(measured)
    assert f", votes/length {measured[-1]:.4g}" in done.stdout  # in the live view
    assert "\nvotes/length " in done.stdout  # in the table at the end
    assert "Other metrics" in (tmp_path / "run" / "report.html").read_text()
    for name, why in (("my_metrics:vote_lenght", "has no 'vote_lenght'"), ("vote_length", "is no import path")):
        for flag in ("--metrics", "--alarms"):
            done = peergrad(*command, flag, name, cwd=EXAMPLES)
            assert done.returncode == 2
            assert why in done.stderr
            assert "Traceback" not in done.stderr


def _repeatable(line):
    return {name: value for name, value in line.items() if not name.startswith("time/") and not name.endswith("_per_s")}


def test_a_run_measures_it_evaluates_it_and_resumes_to_the_same_bytes(here):  # noqa: F811
    (here / "mine.py").write_text(
        "from peergrad.measure.alarms import Alarm\n"
        "def turns(batch):\n"
        "    turns = sum(len(scored.debate.turns) for scored in batch.scored)\n"
        "    return {'turns': turns, 'trained': batch.step and len(batch.step.data), 'odd': float('nan')}\n"
        "def third(history, step):\n"
        "    assert all(line['odd'] is None and line['step'] == index + 1 for index, line in enumerate(history))\n"
        "    return Alarm('third', 'it is the third', 'Stop.') if len(history) == 3 else None\n"
    )
    own = {"metrics": ("mine:turns",), "alarms": ("mine:third",)}
    run(here / "whole", steps=3, **own)
    run(here / "parts", steps=1, **own)
    with pytest.raises(Stopped, match="third: it is the third"):
        run(here / "parts", steps=3, stop_on_alarm=True, **own)
    lines = [Run(here / name).metrics() for name in ("whole", "parts")]
    steps, resumed = ([line for line in part if line["phase"] == "train"] for part in lines)
    assert [_repeatable(line) for line in resumed] == [_repeatable(line) for line in steps]
    assert [(line["turns"], line["odd"], line["alarms"]) for line in steps] == [
        (18, None, []),
        (18, None, []),
        (18, None, ["third"]),
    ]
    assert lines[0][-1]["eval/debate/arithmetic/turns"] == 6
    assert "trained" in steps[0]
    assert "eval/debate/arithmetic/trained" not in lines[0][-1]
    run(here / "parts", steps=4)  # what is measured may change, what is learned may not


WRONG = {
    "f = 7": "is of type int, not a function",
    "def f(*_):\n    return 1 / 0": r"failed \(ZeroDivisionError: .*bad\d+.py, line 2",
}
WRONG_METRIC = WRONG | {
    "def f(*_):\n    return 3": "gave no numbers by name",
    "def f(*_):\n    return {'a': 'x'}": "gave no numbers by name",
    "def f(*_):\n    return {3: 1.0}": "3 is no name",
    "def f(*_):\n    return {'replies/readable': 1.0}": "another metric is called 'replies/readable'",
    "def f(*_):\n    return {'step': 1.0}": "another metric is called 'step'",
}
WRONG_ALARM = WRONG | {"def f(*_):\n    return 'wrong'": "gave str; give an Alarm, or None"}


@pytest.mark.parametrize("number", range(len(WRONG_METRIC)))
def test_a_metric_that_does_not_fit_is_a_sentence(here, number):  # noqa: F811
    code, why = list(WRONG_METRIC.items())[number]
    (here / f"bad{number}.py").write_text(code)
    with pytest.raises(UserError, match=why):
        measure(BATCH, KeepConfig(metrics=(f"bad{number}:f",)).own[0])


@pytest.mark.parametrize("number", range(len(WRONG_ALARM)))
def test_an_alarm_that_does_not_fit_is_a_sentence(here, number):  # noqa: F811
    code, why = list(WRONG_ALARM.items())[number]
    (here / f"bad{number}.py").write_text(code)
    with pytest.raises(UserError, match=why):
        alarms([{"replies/readable": 1.0}], STEP, KeepConfig(alarms=(f"bad{number}:f",)).own[1])


def test_functions_in_python():
    assert measure(BATCH, {"mine": lambda batch: {"debates": len(batch.scored), "unknown": None}})["debates"] == 1.0
    alarm = Alarm("mine", "seen", "advice")
    assert alarms([{"replies/readable": 1.0}], STEP, {"mine": lambda history, step: alarm}) == [alarm]


def test_nothing_is_imported_that_a_folder_names(here):  # noqa: F811
    saved = run(here / "run", steps=1)
    (here / "sent.py").write_text("raise SystemExit('it was run')\n")
    config = saved.path / "config.toml"
    config.write_text(
        config.read_text().replace("metrics = []", 'metrics = ["sent:f"]').replace("alarms = []", 'alarms = ["sent:f"]')
    )
    assert "sent:f" in config.read_text()
    report(Run(saved.path))
    assert "sent" not in sys.modules
    run(here / "run", steps=2)  # a person's settings decide, not the folder's
    assert "sent" not in sys.modules

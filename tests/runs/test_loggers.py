"""Sending metrics elsewhere: never at the cost of a run."""

import sys

import pytest

from peergrad import UserError
from peergrad.runs.watch import Loggers


class Tracker:
    """As wandb and trackio are: a module whose ``init`` gives what takes the numbers."""

    def __init__(self, log):
        self.log, self.closed = log, False

    def init(self, **_):
        return self

    def finish(self):
        self.closed = True


def test_one_that_fails_is_left_out_and_told_of_once(tmp_path, monkeypatch):
    asked, lines, warnings = [], [], []

    def fail(numbers, step):
        asked.append(step)
        raise OSError("no route to host")

    working = Tracker(lambda numbers, step: lines.append(step))
    monkeypatch.setitem(sys.modules, "wandb", Tracker(fail))
    monkeypatch.setitem(sys.modules, "trackio", working)
    loggers = Loggers(["wandb", "trackio"], tmp_path, {}, warnings.append)
    for step in range(3):
        loggers.log(step, {"a": 1.0})
    loggers.close()
    assert asked == [0]
    assert warnings == ["wandb failed (no route to host); going on without it"]
    assert lines == [0, 1, 2]
    assert working.closed


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_library_is_said_first(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    if name == "tensorboard":
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=f"log_to: {name} is not installed; pip install {name}"):
        Loggers([name], tmp_path, {}, print)


def test_one_that_can_not_start_is_a_sentence(tmp_path, monkeypatch):
    class Module:
        @staticmethod
        def init(**_):
            raise RuntimeError("no key")

    monkeypatch.setitem(sys.modules, "wandb", Module)
    with pytest.raises(UserError, match=r"wandb can't start \(RuntimeError: no key\)"):
        Loggers(["wandb"], tmp_path, {}, print)

"""Sending metrics elsewhere: never at the cost of a run."""

import sys

import pytest

from peergrad import UserError
from peergrad.runs.folder import Logger, Loggers, open_loggers


def test_one_that_fails_is_left_out_and_told_of_once():
    asked, lines, closed, warnings = [], [], [], []

    def fail(*args):
        asked.append(args)
        raise OSError("no route to host")

    broken = Logger("broken", fail, fail)
    working = Logger("working", lambda step, metrics: lines.append(step), lambda: closed.append(True))
    loggers = Loggers([broken, working], warnings.append)
    for step in range(3):
        loggers.log(step, {"a": 1.0})
    loggers.close()
    assert len(asked) == 1
    assert warnings == ["broken failed (no route to host); going on without it"]
    assert lines == [0, 1, 2]
    assert closed


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_library_is_said_first(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    if name == "tensorboard":
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=f"log_to: {name} is not installed; pip install {name}"):
        open_loggers([name], tmp_path, {})


def test_one_that_can_not_start_is_a_sentence(tmp_path, monkeypatch):
    class Module:
        @staticmethod
        def init(**_):
            raise RuntimeError("no key")

    monkeypatch.setitem(sys.modules, "wandb", Module)
    with pytest.raises(UserError, match=r"wandb can't start \(RuntimeError: no key\)"):
        open_loggers(["wandb"], tmp_path, {})

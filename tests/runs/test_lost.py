"""An update that is lost is never silent: it is told of when it happens, counted to the end, and can be looked into."""

import asyncio
import functools
import io
import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from peergrad import UserError
from peergrad.cli import main as command
from peergrad.cli import train as train_command
from peergrad.config import preset
from peergrad.debate.settings import changed
from peergrad.engines.base import EngineConfig, Setup, UpdateConfig
from peergrad.engines.registry import open_trainer
from peergrad.learn.data import Datum
from peergrad.learn.train import Stopped
from peergrad.learn.trainer import Fault, Updates
from peergrad.runs import skipped
from peergrad.runs.folder import Progress, Run
from peergrad.runs.skipped import MOST_BYTES, read_skipped, save_skipped
from peergrad.runs.training import train_run
from peergrad.runs.watch import Watcher
from peergrad.terminal.training import RunView, before_and_after, too_many_lost
from tests.bandit import Bandit
from tests.web.exported import Page

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
WHY = "the gradient is not finite, first in model.layers.12"
SMALL = {"model": "bandit", "steps": 4, "batch": 3, "warm_steps": 0, "eval_questions": 0, "eval_debates": 0}
COLUMNS = ("inputs_T", "targets_T", "logprobs_T", "advantages_T", "mask_T", "temperatures_T")


class Heard(Watcher):
    """Writes down what is told."""

    def __init__(self):
        self.warned, self.said, self.counted, self.order = [], [], [], []

    def warn(self, sentence):
        self.warned.append(sentence)
        self.order.append("warning")

    def say(self, sentence):
        self.said.append(sentence)

    def updates(self, so_far):
        self.counted.append(so_far)

    def line(self, phase, at, metrics):
        self.order.append(at.name)


def vote(ask):
    first, second = (agent for agent in range(3) if agent != ask.agent)
    return f"Agent {first} > Agent {second}" if ask.seen else "N/A"


def bandit(lost=lambda number, data: None, again=None):
    made = Bandit(["one", "other"], vote)
    made.lost, made.again = lost, again
    return made


def losing(*numbers, why=WHY):
    """Loses the updates of these numbers, and knows what reproduces them."""
    return lambda number, data: (Fault(why, tuple(data)),) if number in numbers else None


def settings(out, **more):
    return changed(preset("demo-parallel"), SMALL | {"out": out} | more, "test")


def run(out, trainer, watch=None, stop=lambda: False, **more):
    return asyncio.run(train_run(settings(out, **more), watch, stop=stop, load=lambda *_: trainer))


def same(one, other):
    about = (one.debate, one.agent, one.turns) == (other.debate, other.agent, other.turns)
    return about and all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in COLUMNS)


def names(made):
    return sorted(path.name for path in made.path.joinpath("skipped").glob("*"))


# The moment it happens


def test_it_is_told_at_once_and_what_reproduces_it_is_kept(tmp_path):
    heard, trainer = Heard(), bandit(losing(2, 4))
    made = run(tmp_path / "run", trainer, heard)
    folder = made.path / "skipped"
    assert heard.warned == [
        f"step 2: update skipped: {WHY} (1 of 2 so far); what reproduces it is in {folder / 'step_000002.npz'}",
        f"step 4: update skipped: {WHY} (2 of 4 so far); what reproduces it is in {folder / 'step_000004.npz'}",
    ]
    assert heard.order == ["step_000001", "warning", "step_000002", "step_000003", "warning", "step_000004"]
    assert heard.counted[-1] == Updates(4, 2, 0)
    for number in (2, 4):
        data, loss, lr = trainer.asked[number - 1]
        found = read_skipped(folder / f"step_00000{number}.npz")
        assert len(found) == len(data) > 0
        assert all(map(same, found, data))
        with np.load(folder / f"step_00000{number}.npz", allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
        assert (about["at"], about["why"], about["left_out"]) == (f"step_00000{number}", WHY, 0)
        assert (about["loss"], about["lr"]) == (loss, lr)
    assert [line["optim/skipped"] for line in made.metrics()] == [0.0, 1.0, 0.0, 1.0]


def test_an_engine_that_knows_nothing_about_it(tmp_path):
    heard = Heard()
    made = run(tmp_path / "run", bandit(lambda number, data: () if number == 3 else None), heard)
    assert heard.warned == ["step 3: update skipped: loss or gradient was not finite (1 of 3 so far)"]
    assert not (made.path / "skipped").exists()


def test_the_warm_start_too(tmp_path):
    heard = Heard()
    made = run(tmp_path / "run", bandit(losing(2), again=lambda number: number == 1), heard, warm_steps=3, steps=1)
    assert [line.get("warm/skipped") for line in made.metrics()] == [0.0, 1.0, 0.0, None]
    path = made.path / "skipped" / "warm_000002.npz"
    assert heard.warned == [f"warm start 2: update skipped: {WHY} (1 of 2 so far); what reproduces it is in {path}"]
    assert "warm start 1: 1 micro-batch was computed again in another way (1 so far)" in heard.said
    assert Updates.of(made.metrics()) == heard.counted[-1] == Updates(4, 1, 1)
    heard = Heard()
    with pytest.raises(Stopped, match=f"2 updates of the warm start in a row were not finite; the last: {WHY}"):
        run(tmp_path / "other", bandit(losing(1, 2)), heard, warm_steps=3, stop_after_bad=2)
    assert len(heard.warned) == 2


def test_what_was_computed_again_is_told_once_a_step(tmp_path):
    heard = Heard()
    trainer = bandit(losing(1), again=lambda number: {1: 2, 3: 1, 6: 1}.get(number, 0))
    made = run(tmp_path / "run", trainer, heard, updates=3, steps=3)
    assert [sentence for sentence in heard.said if "computed again" in sentence] == [
        "step 1: 3 micro-batches were computed again in another way (3 so far)",
        "step 2: 1 micro-batch was computed again in another way (4 so far)",
    ]
    assert [line["optim/retried"] for line in made.metrics()] == [3.0, 1.0, 0.0]
    assert heard.counted[-1] == Updates.of(made.metrics()) == Updates(9, 1, 4)


def test_several_updates_a_step(tmp_path):
    heard, trainer = Heard(), bandit(losing(1, 3))
    made = run(tmp_path / "run", trainer, heard, updates=3, steps=1)
    (line,) = made.metrics()
    assert (line["optim/updates"], line["optim/skipped"]) == (3.0, pytest.approx(2 / 3))
    assert names(made) == ["step_000001.2.npz", "step_000001.npz"]
    assert [sentence.partition(" so far")[0][-6:] for sentence in heard.warned] == ["1 of 3", "2 of 3"]
    for name, number in (("step_000001.npz", 1), ("step_000001.2.npz", 3)):
        assert all(map(same, read_skipped(made.path / "skipped" / name), trainer.asked[number - 1][0]))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_person_sees_it(tmp_path, terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=300, highlight=False)
    with RunView(console, 4) as screen:
        run(tmp_path / "run", bandit(losing(2, why="bad\x1b[2J\rlayer"), again=lambda number: 2), screen)
        if terminal:
            screen._live.refresh()
    text = stream.getvalue()
    where = tmp_path / "run" / "skipped" / "step_000002.npz"
    assert "warning: step 2: update skipped: bad" in text
    assert f"layer (1 of 2 so far); what reproduces it is in {where}" in text
    assert "\x1b[2J\rlayer" not in text  # what an engine said moves no cursor
    assert "step 2: 2 micro-batches were computed again in another way (4 so far)" in text
    assert ("1 of 4 updates skipped" in text) == terminal
    assert ("8 micro-batches were computed again in another way\n" in text.replace("\r", "")) == terminal


# A run that goes on


def test_a_run_that_goes_on_counts_those_of_before(tmp_path):
    stops = iter([False, False, True])
    with pytest.raises(Stopped):
        run(tmp_path / "run", bandit(losing(1, 2)), stop=lambda: next(stops))
    heard = Heard()
    made = run(tmp_path / "run", bandit(losing(2)), heard)
    assert heard.counted[0] == Updates(2, 2, 0)
    assert len(heard.warned) == 1
    assert heard.warned[0].startswith(f"step 4: update skipped: {WHY} (3 of 4 so far)")
    assert Updates.of(made.metrics()) == Updates(4, 3, 0)
    assert names(made) == [f"step_00000{step}.npz" for step in (1, 2, 4)]


def test_files_of_steps_that_are_done_again_are_replaced(tmp_path):
    first = bandit(losing(2, 3, 4))
    made = run(tmp_path / "run", first, stop_after_bad=9)
    (made.path / "skipped" / "notes.txt").write_text("mine")
    for at in (3, 4):
        (made.path / "checkpoints" / f"step_00000{at}" / "state.json").unlink(missing_ok=True)
    # Checkpoints are thinned out: the one to go on from is that of step 0.
    heard, again = Heard(), bandit(losing(3, why="something else"))
    run(tmp_path / "run", again, heard, stop_after_bad=9)
    assert len(again.asked) == 4
    assert names(made) == ["notes.txt", "step_000003.npz"]
    assert all(map(same, read_skipped(made.path / "skipped" / "step_000003.npz"), again.asked[2][0]))
    assert heard.counted[-1] == Updates(4, 1, 0)


def test_so_many_files_are_enough(tmp_path):
    heard = Heard()
    made = run(tmp_path / "run", bandit(losing(*range(1, 11))), heard, steps=10, stop_after_bad=99)
    assert names(made) == [f"step_00000{step}.npz" for step in range(1, 9)]
    assert f"(9 of 9 so far); {made.path / 'skipped'} has 8 such already" in heard.warned[8]
    assert len(heard.warned) == heard.counted[-1].skipped == 10


# The files


def noise(tokens, seed=0):
    """A sequence that can't be compressed."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 2**31 - 1, tokens + 1).astype(np.int32)
    logprobs, advantages = rng.normal(size=(2, tokens)).astype(np.float32)
    ones = np.ones(tokens, np.float32)
    return Datum(f"d{seed}/{seed}\ud800", seed, (seed, 7), ids[:-1], ids[1:], logprobs, advantages, ones, ones)


def test_numbers_that_are_not_finite_come_back(tmp_path):
    odd = np.array([np.nan, np.inf, -np.inf, 1e-45, 0.5], np.float32)
    data = [replace(noise(5), advantages_T=odd, logprobs_T=odd[::-1]), noise(0, 2), noise(3, 4)]
    path = save_skipped(Run(tmp_path), Progress(12), 1, data, {"why": "x"})
    assert path == tmp_path / "skipped" / "step_000012.npz"
    found = read_skipped(path)
    assert len(found) == 3
    assert all(map(same, found, data))
    assert [array.dtype for array in (found[0].inputs_T, found[0].advantages_T)] == [np.int32, np.float32]


def test_a_file_stays_within_its_limit(tmp_path):
    data = [noise(100_000, seed) for seed in range(4)]  # about 1.5 MB each
    path = save_skipped(Run(tmp_path), Progress(1), 1, data, {"why": "x"})
    assert 3_000_000 < path.stat().st_size <= MOST_BYTES
    found = read_skipped(path)
    assert len(found) == 2
    assert all(map(same, found, data))
    with np.load(path) as file:
        assert json.loads(str(file["about"]))["left_out"] == 2


def test_a_sequence_that_is_too_long_is_not_kept(tmp_path):
    heard = Heard()
    trainer = bandit(lambda number, data: (Fault(WHY, (noise(400_000),)),) if number == 1 else None)
    made = run(tmp_path / "run", trainer, heard, steps=1)
    assert heard.warned == [f"step 1: update skipped: {WHY} (1 of 1 so far); its sequences are too long to keep"]
    assert names(made) == []


def test_what_was_kept_reproduces_it_on_a_real_model(tmp_path):
    local = open_trainer(Setup(engine=EngineConfig(model=str(PARROT), threads=1), update=UpdateConfig(rank=4)))
    ids, ones = np.arange(3, 24, dtype=np.int32), np.ones(20, np.float32)
    good = Datum("d", 0, (0,), ids[:-1], ids[1:], -ones, ones, ones, ones)
    bad = replace(good, advantages_T=ones * np.float32(np.inf))
    for data, lost in (([good], False), ([bad], True)):
        assert asyncio.run(local.step(data, "importance_sampling", 1e-4)).skipped == lost
        path = save_skipped(Run(tmp_path), Progress(1 + lost), 1, data, {"why": WHY})
        assert asyncio.run(local.step(read_skipped(path), "importance_sampling", 1e-4)).skipped == lost


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path, **changes):
    """The same file with other arrays in it, or without."""
    found = members(path)
    for name, array in changes.items():
        found.pop(f"{name}.npy")
        if array is not None:
            raw = io.BytesIO()
            np.save(raw, array, allow_pickle=True)
            found[f"{name}.npy"] = raw.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in found.items():
            archive.writestr(name, raw)


class Mine:
    def __reduce__(self):
        return pytest.fail, ("code of the file was run",)


def about(path, **changes):
    with np.load(path) as file:
        said = json.loads(str(file["about"]))
    said["data"][0] |= changes
    rewritten(path, about=np.array(json.dumps(said)))


def headers(path):
    """A header that promises more than there is."""
    found = members(path)
    raw = found["mask_T.npy"].replace(b"(5,), }", b"(987654321987,), }").replace(b" " * 11 + b"\n", b"\n")
    found["mask_T.npy"] = raw
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in found.items():
            archive.writestr(name, content)


def packed_otherwise(path):
    """Members of a kind of which more is unpacked than they say."""
    found = members(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in found.items():
            archive.writestr(name, content)


DAMAGES = {
    "nothing": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("I am no archive"),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:300] + b"\xff" * 64 + path.read_bytes()[364:]),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Mine())),
    "objects": lambda path: rewritten(path, mask_T=np.array([Mine()] * 5, object)),
    "object about": lambda path: rewritten(path, about=np.array(Mine(), object)),
    "missing": lambda path: rewritten(path, mask_T=None),
    "no about": lambda path: rewritten(path, about=None),
    "other type": lambda path: rewritten(path, mask_T=np.zeros(5, np.complex64)),
    "wide": lambda path: rewritten(path, inputs_T=np.zeros(5, np.int64)),
    "shape": lambda path: rewritten(path, mask_T=np.zeros((5, 1), np.float32)),
    "short": lambda path: rewritten(path, mask_T=np.zeros(4, np.float32)),
    "long": lambda path: rewritten(path, **{name: np.zeros(6, np.int32) for name in ("inputs_T", "targets_T")}),
    "header": headers,
    "packed": packed_otherwise,
    "deep": lambda path: rewritten(path, about=np.array("[" * 100_000)),
    "no object": lambda path: rewritten(path, about=np.array("7")),
    "negative": lambda path: about(path, tokens=-1),
    "share": lambda path: about(path, tokens=5.0),
    "bool": lambda path: about(path, agent=True),
    "number": lambda path: about(path, debate=7),
    "turns": lambda path: about(path, turns=["0"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_hostile_file_is_a_sentence(tmp_path, damage):
    path = save_skipped(Run(tmp_path), Progress(1), 1, [noise(5)], {"why": "x"})
    assert len(read_skipped(path)) == 1
    DAMAGES[damage](path)
    with pytest.raises(UserError, match=r"step_000001.npz: is no file of skipped updates, or damaged"):
        read_skipped(path)


def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    path = save_skipped(Run(tmp_path), Progress(1), 1, [noise(300)], {"why": "x"})
    monkeypatch.setattr(skipped, "_MOST_UNPACKED", 1500)
    assert len(read_skipped(path)) == 1
    monkeypatch.setattr(skipped, "_MOST_UNPACKED", 1000)
    with pytest.raises(UserError, match="or damaged"):
        read_skipped(path)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"x.npz: can't be read \(No such file or directory\)"):
        read_skipped(tmp_path / "x.npz")
    with pytest.raises(UserError, match=r"can't be read \(Is a directory\)"):
        read_skipped(tmp_path)


# The end


def said(show, *args, terminal=False):
    stream = io.StringIO()
    show(Console(file=stream, width=200, force_terminal=terminal, highlight=False), *args)
    return stream.getvalue()


def test_the_end_says_how_many(tmp_path):
    def lines(lost, asked):
        step = {"phase": "train", "step": 1, "warm": 0, "optim/updates": 1.0}
        return [step | {"optim/skipped": float(n < lost)} for n in range(asked)]

    assert "20 updates, none of them skipped" in said(before_and_after, lines(0, 20))
    assert "20 updates, 3 of them skipped" in said(before_and_after, lines(3, 20))
    again = [{"phase": "train", "step": 1, "warm": 0, "optim/skipped": 0.0, "optim/updates": 2.0, "optim/retried": 5.0}]
    assert "2 updates, none of them skipped; 5 micro-batches were computed again" in said(before_and_after, again)
    assert "update" not in said(before_and_after, [{"phase": phase, "step": 1, "warm": 0} for phase in ("train", "eval")])


def test_more_than_five_percent_is_said_in_red(tmp_path):
    made = Run(tmp_path)
    for step in range(1, 21):
        made.log(Progress(step), "train", {"optim/skipped": float(step == 7), "optim/updates": 1.0})
    assert said(too_many_lost, made) == ""
    made.log(Progress(21), "train", {"optim/skipped": 0.5, "optim/updates": 2.0})
    text = said(too_many_lost, made, terminal=True)
    assert text.startswith("\x1b[1;31m2 of 22 updates (9%) were skipped because loss or gradient was not finite")
    assert "optim/skipped in metrics.jsonl says when" in text
    save_skipped(Run(tmp_path), Progress(7), 1, [noise(5)], {"why": "x"})
    assert f"what reproduces them is in {tmp_path / 'skipped'}" in said(too_many_lost, made)


def test_lines_that_say_less_or_nonsense():
    old = [{"phase": "train", "optim/skipped": share} for share in (0.0, 1.0, 0.5)]  # of before it was told how many
    assert Updates.of(old) == Updates(3, 2, 0)
    odd = [None, "x", -1.0, float("nan"), 10**400, True, []]
    assert Updates.of([{"phase": "train", "optim/skipped": o, "optim/updates": o, "optim/retried": o} for o in odd]) == (
        Updates(7, 0, 0)
    )
    assert Updates.of([{"phase": "eval", "optim/skipped": 1.0}, {}]) == Updates()
    assert Updates.of([{"phase": "train", "optim/skipped": 1 - 4 / 7, "optim/updates": 7.0}]) == Updates(7, 3, 0)


def commanded(monkeypatch, trainer, config):
    """``peergrad train`` with another engine; the exit code."""
    monkeypatch.setattr(train_command, "train_run", functools.partial(train_run, load=lambda *_: trainer))
    monkeypatch.setattr(command.os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    try:
        train_command.train(config)
    except SystemExit as left:
        return left.code
    return 0


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    out = tmp_path / "run"
    assert commanded(monkeypatch, bandit(losing(2)), settings(out)) == 0
    text = capsys.readouterr().out
    assert "warning: step 2: update skipped" in text
    assert "4 updates, 1 of them skipped\n" in text
    warning = "1 of 4 updates (25%) were skipped because loss or gradient was not finite: nothing was learned from them; "
    assert f"{warning}what reproduces them is in {out / 'skipped'}" in text
    report = Page((out / "report.html").read_text())
    assert report.data["sources"]["sources"][0]["updates"] == {"total": 4, "skipped": 1, "retried": 0}


def test_a_run_that_is_stopped_says_it_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    assert commanded(monkeypatch, bandit(losing(2, 3, 4)), settings(tmp_path / "run", steps=9)) == 1
    told = capsys.readouterr()
    assert "3 of 4 updates (75%) were skipped" in told.out
    assert f"The last: {WHY}. Try a lower learning rate" in told.err


def test_bad_updates_in_a_row_are_counted_on_when_a_run_is_resumed(tmp_path):
    made = run(tmp_path / "run", bandit(losing(3, 4)))
    assert made.metrics()[-1]["optim/bad_in_a_row"] == 2
    with pytest.raises(Stopped, match="3 updates in a row"):
        run(tmp_path / "run", bandit(losing(1)), steps=9)
    assert made.metrics()[-1]["step"] == 5


def test_a_run_that_learned_nothing_says_so(tmp_path):
    assert run(tmp_path / "all", bandit(losing(1, 2)), steps=2, stop_after_bad=9).learned_nothing
    assert not run(tmp_path / "one", bandit(losing(1)), steps=2).learned_nothing

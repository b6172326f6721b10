"""A run folder that somebody sent: no command follows a link in it, sends a key for it, or trains on what was changed."""

import json
import re
import shutil

import pytest

from peergrad import UserError
from peergrad.runs.watch import Watcher
from peergrad.serve.checkpoints import CheckpointStore
from tests.openai.server import Response, Server, completion
from tests.runs.test_run import adapter, run
from tests.runs.test_start import peergrad, refused


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of one step, with an evaluation of it."""
    done = run(tmp_path_factory.mktemp("sent") / "run", steps=1, batch=2, eval_questions=0, eval_debates=0, warm_steps=0)
    small = ["--questions", 2, "--mode", "direct", "--max-tokens", 8, "--threads", 1]
    assert peergrad("eval", "--model", done.path, "--out", done.path / "evals" / "direct", *small) == 0
    return done.path


@pytest.fixture
def sent(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


# Links

LINKS = ["metrics.jsonl", "config.toml", "debates/step_000001.jsonl", "checkpoints/step_000001/adapter_model.safetensors"]
COMMANDS = {
    "train on it": "train --preset demo-parallel --model {run} --out {new} --threads 1",
    "learn from it": "train --preset demo-parallel --warm-from {run} --warm-epochs 1 --out {new}",
    "eval": "eval --model {run} --out {new}",
    "eval of a checkpoint": "eval --model {run}@1 --out {new}",
    "debate": "debate 2+2? --model {run}/checkpoints/step_000001",
    "report": "report {run}",
    "export": "export {run} --to {new}",
    "rescore": "rescore {run}",
    "distill": "distill {run} --to {new}.jsonl",
    "score": "score {run}/debates/step_000001.jsonl",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_in_a_run_is_refused_by_every_command(command, sent, tmp_path, capsys):
    args = [part.format(run=sent, new=tmp_path / "new") for part in COMMANDS[command].split()]
    for name in LINKS:
        (sent / name).rename(tmp_path / "mine")
        (sent / name).symlink_to(tmp_path / "mine")
        assert f"{sent / name}: is a link or no plain file" in refused(capsys, *args)
        (sent / name).unlink()
        (tmp_path / "mine").rename(sent / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # nothing was written


def test_a_link_in_a_run_or_an_evaluation_is_refused_when_it_is_resumed(sent, tmp_path, capsys):
    (sent / "skipped").symlink_to(tmp_path)
    config = ["--config", sent / "config.toml", "--out", sent]
    assert "is a link" in refused(capsys, "train", *config, "--steps", 2)
    (sent / "skipped").unlink()
    again = ["eval", "--model", sent, "--out", sent / "evals" / "direct", "--questions", 2, "--mode", "direct"]
    (sent / "evals" / "direct" / "debates" / "more.jsonl").symlink_to(tmp_path / "run" / "metrics.jsonl")
    assert "more.jsonl: is a link" in refused(capsys, *again)
    assert "more.jsonl: is a link" in refused(capsys, "compare", sent / "evals" / "direct", sent / "evals" / "direct")


def test_a_link_in_what_is_served_is_refused(tmp_path):
    folder = tmp_path / "served" / "model" / "weights" / "one"
    folder.mkdir(parents=True)
    (folder / "serve.json").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="is a link"):
        CheckpointStore(tmp_path / "served", print, print)


def test_export_copies_nothing_that_the_checkpoint_does_not_list(sent, tmp_path, capsys):
    state = sent / "checkpoints" / "step_000001" / "state.json"
    listed = json.loads(state.read_text())
    state.write_text(json.dumps(listed | {"sha256": {}}))
    assert "does not hold the files that its state.json lists" in refused(capsys, "export", sent, "--to", tmp_path / "new")
    listed["sha256"].pop("adapter_model.safetensors")
    state.write_text(json.dumps(listed))
    assert "does not hold the files" in refused(capsys, "export", sent, "--step", 1, "--to", tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Files that nobody can read to the end

READS = ("report {run}", "export {run} --to {new}", "rescore {run}", "compare {run}/evals/direct {run}/evals/direct")
FILES = ("run.json", "checkpoints/step_000001/state.json", "metrics.jsonl", "debates/step_000001.jsonl")


@pytest.mark.parametrize("file", [*FILES, "evals/direct/result.json"])
def test_json_that_is_nested_deeply_is_a_sentence(file, sent, tmp_path):
    deep = '{"a": ' * 900 + "1" + "}" * 900  # as deep as it may be to be read, and too deep to be followed down
    (sent / file).write_text(
        f'{{"phase": "train", "step": 1, "warm": 0, "id": {deep}, "protocol": "parallel", "agents": 2}}\n'
    )
    for command in READS:
        assert peergrad(*command.format(run=sent, new=tmp_path / "new").split()) in (0, 2)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


# Keys


@pytest.mark.parametrize("model", ["{run}", "{run}@1", "{run}/checkpoints/step_000001"])
def test_no_key_goes_to_an_address_that_a_run_names(sent, model, tmp_path, monkeypatch):
    asked = []

    def answer(request):
        asked.append(request.headers.get("authorization"))
        return Response(completion("<solution>1</solution>"))

    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine-0123456789")
    with Server(answer) as server:
        config = (sent / "config.toml").read_text()
        (sent / "config.toml").write_text(config.replace("# base_url is not set", f'base_url = "{server.url}"'))
        name = model.format(run=sent)
        small = ["--max-tokens", 8, "--threads", 1]
        assert peergrad("eval", "--model", name, "--out", tmp_path / "e", "--questions", 1, "--mode", "direct", *small) == 0
        assert peergrad("debate", "2 + 2?", "--model", name, "--out", tmp_path / "d.jsonl", "--rounds", 1, *small) == 0
    assert asked == []


# Damage that can still be read

TWO = {"steps": 2, "batch": 2, "eval_questions": 0, "eval_debates": 0, "warm_steps": 0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two steps, which goes on from the first if it is killed while it saves the second."""
    return run(tmp_path_factory.mktemp("whole") / "run", **TWO)


class Warned(Watcher):
    def __init__(self):
        self.warnings = []

    def warn(self, sentence):
        self.warnings.append(sentence)


def again(whole, out, damage, file):
    """The run after damage to one of its files, its second step made again."""
    shutil.copytree(whole.path, out)
    shutil.rmtree(out / "checkpoints" / "step_000002")
    (out / file).write_bytes(damage((out / file).read_bytes()))
    watch = Warned()
    return run(out, watch, **TWO), watch.warnings


def doubled(raw):
    return raw.splitlines(keepends=True)[0] + raw


def flipped(name):
    """Another digit in the first number of this name."""

    def damage(raw):
        at = re.search(rb'"' + name + rb'": \[?-?', raw).end()
        return raw[:at] + (b"1" if raw[at : at + 1] != b"1" else b"2") + raw[at + 1 :]

    return damage


@pytest.mark.parametrize("damage", [doubled, flipped(b"ids"), flipped(b"logprobs")], ids=["doubled", "token", "logprob"])
def test_debates_that_were_changed_are_sampled_again(whole, tmp_path, damage):
    resumed, warnings = again(whole, tmp_path / "run", damage, "debates/step_000002.jsonl")
    assert [line for line in warnings if "sampling these debates again" in line]
    assert adapter(resumed, 2) == adapter(whole, 2)


def test_debates_from_before_there_were_checksums_are_used(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "old")
    (tmp_path / "old" / "debates" / "step_000002.sha256").unlink()
    old = run(tmp_path / "old", **TWO)
    assert old.saved_debates("step_000002")
    (tmp_path / "old" / "debates" / "step_000002.jsonl").write_bytes(
        doubled((whole.path / "debates" / "step_000002.jsonl").read_bytes())
    )
    assert old.saved_debates("step_000002") is None


@pytest.mark.parametrize(
    "damage",
    [
        doubled,
        flipped(b"tokens/sampled"),
        lambda raw: b"",
        lambda raw: re.sub(rb'"optim/skipped": [0-9.]+', b'"optim/skipped": {"a": []}', raw),
        lambda raw: re.sub(rb'"step": \d+', b'"step": "1"', raw),
        lambda raw: re.sub(rb'"phase": "train"', b'"phase": ["train"]', raw),
        lambda raw: re.sub(rb'"alarms": \[.*?\]', b'"alarms": 5', raw),
    ],
    ids=["doubled", "flipped", "emptied", "no number", "no step", "no phase", "no alarms"],
)
def test_metrics_that_were_changed_are_told_of(whole, tmp_path, damage):
    resumed, warnings = again(whole, tmp_path / "run", damage, "metrics.jsonl")
    assert [line for line in warnings if "metrics.jsonl: was changed since step_000001 was saved" in line]
    assert [line["step"] for line in resumed.metrics() if line["phase"] == "train"][-1] == 2
    assert len({line["step"] for line in resumed.metrics()}) == len(resumed.metrics())
    assert adapter(resumed, 2) == adapter(whole, 2)


def test_what_was_not_changed_is_not_told_of(whole, tmp_path):
    resumed, warnings = again(whole, tmp_path / "run", lambda raw: raw + b'{"phase": "tr', "metrics.jsonl")
    assert warnings == []
    assert (resumed.path / "metrics.jsonl").read_bytes().count(b"\n") == 2

"""Several tasks in one run, through the command, on a real, small model: in order, mixed, adaptive; killed and resumed."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from peergrad.debate.transcript import read_file
from peergrad.measure.counts import known_grades, share_of
from peergrad.reward.rewards import score
from peergrad.runs.folder import Progress, Run
from peergrad.tasks.arithmetic import grade_sum
from tests.helpers import parallel
from tests.runs.coin_tasks import Easy, Hard
from tests.runs.test_run import PARROT
from tests.runs.test_start import peergrad, refused

ROOT = Path(__file__).parent.parent.parent
SMALL = [
    "--preset",
    "demo-parallel",
    "--model",
    PARROT,
    "--batch",
    4,
    "--rank",
    4,
    "--threads",
    1,
    "--lr",
    3e-3,
    "--max-tokens",
    32,
]
SMALL += ["--eval-questions", 0, "--eval-debates", 0, "--warm-steps", 0]
TASKS = ["--task", "tests.runs.coin_tasks:Easy, tests.runs.coin_tasks:Hard"]
ORDER = ["--curriculum", "in order", *TASKS]
ADAPTIVE = ["--curriculum", "adaptive", *TASKS]


def train(out, *more):
    assert peergrad("train", "--out", out, *SMALL, *more) == 0
    return Run(out)


def lines(run):
    return [line for line in run.metrics() if line["phase"] == "train"]


def debates(run, step):
    return list(read_file(run.path / "debates" / f"{Progress(step).name}.jsonl"))


def by_hand(debate):
    """The share of agents whose last answer is right."""
    task = Easy if debate.question.id.startswith("easy/") else Hard
    final = {turn.agent: turn for turn in debate.turns}
    return sum(turn.solution is not None and task.right(turn.solution) for turn in final.values()) / len(final)


def bytes_of(run):
    """All that must be the same however often a run was interrupted."""
    files = sorted((run.path / "debates").iterdir())
    files += [run.folder(run.checkpoints()[-1]) / "adapter_model.safetensors", run.path / "outcomes.jsonl"]
    metrics = [
        {name: value for name, value in line.items() if "time/" not in name and "_per_s" not in name}
        for line in run.metrics()
    ]
    return {file.name: file.read_bytes() for file in files if file.exists()} | {"metrics": metrics}


def killed(out, step, file, *more):
    """The same command in a process that kills itself once a file of a step has been written."""
    script = (
        "import os, signal, sys\n"
        "from peergrad.cli import main\n"
        "from peergrad.runs import files\n"
        "_, step, name, *args = sys.argv\n"
        "def dying(real):\n"
        "    def call(path, content, **more):\n"
        "        real(path, content, **more)\n"
        '        if path.name == name and (f\'"step": {step},\'.encode() in content or "step_" in name):\n'
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return call\n"
        "files.write, files.append = dying(files.write), dying(files.append)\n"
        "sys.argv = ['peergrad', 'train', *args]\n"
        "main.main()\n"
    )
    command = [sys.executable, "-c", script, step, file, "--out", out, *SMALL, *more]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    """Stages by steps: two of the easy task, then of the hard one."""
    return train(tmp_path_factory.mktemp("order") / "run", *ORDER, "--steps", 4, "--stage-steps", 2)


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    return train(tmp_path_factory.mktemp("adaptive") / "run", *ADAPTIVE, "--steps", 4)


def test_stages_by_steps(in_order):
    names = [{debate.question.id.partition("/")[0] for debate in debates(in_order, step)} for step in (1, 2, 3, 4)]
    assert names == [{"easy"}] * 2 + [{"hard"}] * 2
    assert [line["curriculum/stage"] for line in lines(in_order)] == [1, 1, 2, 2]
    assert [line["curriculum/easy/questions"] for line in lines(in_order)] == [4, 4, 0, 0]
    for step, line in enumerate(lines(in_order), 1):
        shares = [by_hand(debate) for debate in debates(in_order, step)]
        assert line[f"train_{'easy' if step < 3 else 'hard'}/avg@3"] == pytest.approx(sum(shares) / 4)
        assert ("train_easy/avg@3" in line) == (step < 3)
        first = 1 if step < 3 else 3  # of the stage
        so_far = [by_hand(debate) for at in range(first, step + 1) for debate in debates(in_order, at)]
        assert line["curriculum/reached"] == pytest.approx(sum(so_far) / len(so_far))


def test_a_stage_ends_at_its_target(tmp_path, in_order):
    """Whatever the shares are, a target at the best of the first two steps ends the stage after the step that reaches it."""
    reached = [line["curriculum/reached"] for line in lines(in_order)][:1]
    shares = [sum(map(by_hand, debates(in_order, step))) / 4 for step in (1, 2)]
    target = max(shares)
    assert reached[0] == pytest.approx(shares[0])
    assert target > 0
    ends = 1 if shares[0] >= target else 2
    more = ["--stage-targets", repr(target), "--target-steps", 1]
    run = train(tmp_path / "run", *ORDER, "--steps", 3, *more)
    assert [line["curriculum/stage"] for line in lines(run)] == [1, 1 if ends == 2 else 2, 2]
    never = train(tmp_path / "never", *ORDER, "--steps", 3, "--stage-targets", 1.0, "--target-steps", 1)
    assert [line["curriculum/stage"] for line in lines(never)] == [1, 1, 1]


def test_mixed_by_weights(tmp_path):
    weights = ["--task-weights", 3, 1]
    run = train(tmp_path / "run", *TASKS, "--steps", 2, *weights, "--eval-questions", 5, "--eval-debates", 2)
    for step, line in enumerate(lines(run), 1):
        levels = [debate.question.id.partition("/")[0] for debate in debates(run, step)]
        assert Counter(levels) == {"easy": 3, "hard": 1}
        assert line["curriculum/easy/questions"] == 3
        easy = [by_hand(debate) for debate in debates(run, step) if debate.question.id.startswith("easy/")]
        assert line["curriculum/easy/share"] == pytest.approx(sum(easy) / 3)
        every = [by_hand(debate) for debate in debates(run, step)]
        assert line["train_easy+hard/avg@3"] == pytest.approx(sum(every) / 4)
        assert "curriculum/stage" not in line
    held_out = [debate.question.id for debate in read_file(run.path / "debates" / "eval_000000.jsonl")]
    assert [id.partition("/")[0] for id in held_out] == ["easy", "hard"]
    assert "eval/direct/easy+hard/correct" in run.metrics()[0]


def test_adaptive_batches_ask_again_what_was_mixed(adaptive):
    history = [json.loads(line) for line in (adaptive.path / "outcomes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history] == [1, 2, 3, 4]
    seen = {}
    for record, line in zip(history, lines(adaptive), strict=True):
        outcomes = record["outcomes"]
        played = {debate.question.id: by_hand(debate) for debate in debates(adaptive, record["step"])}
        assert outcomes == pytest.approx(played)
        again = [id for id in outcomes if id in seen]
        assert all(0 < seen[id] < 1 for id in again)
        candidates = sum(0 < share < 1 for share in seen.values())
        assert len(again) == min(2, candidates)
        assert line["curriculum/again"] == len(again) / 4
        assert line["curriculum/mixed"] == sum(0 < share < 1 for share in outcomes.values()) / 4
        seen |= outcomes
        assert line["curriculum/seen"] == len(seen)
    assert any(line["curriculum/again"] for line in lines(adaptive))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "step", "file"),
    [
        ("in order", 1, "outcomes.jsonl"),  # in the first stage
        ("in order", 3, "step_000003.jsonl"),  # the first batch of the second, sampled and not learned from
        ("in order", 3, "metrics.jsonl"),
        ("adaptive", 3, "step_000003.jsonl"),
        ("adaptive", 3, "outcomes.jsonl"),
    ],
)
@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path, in_order, adaptive, kind, step, file):
    more = [*ORDER, "--stage-steps", 2] if kind == "in order" else ADAPTIVE
    killed(tmp_path / "run", step, file, *more, "--steps", 4)
    run = train(tmp_path / "run", *more, "--steps", 4)
    assert bytes_of(run) == bytes_of(in_order if kind == "in order" else adaptive)


def test_one_task_leaves_no_trace(tmp_path):
    run = train(tmp_path / "run", "--steps", 1)
    assert not (run.path / "outcomes.jsonl").exists()
    assert not [name for name in lines(run)[0] if name.startswith("curriculum")]


def test_check_asks_what_the_run_asks_first(tmp_path, capsys):
    peergrad("check", *SMALL, *ORDER, "--stage-steps", 2, "--questions", 3, "--json")
    assert json.loads(capsys.readouterr().out)["questions"] == 3


def test_settings_that_do_not_fit(tmp_path, capsys, in_order):
    new = ["train", "--out", tmp_path / "run", *SMALL, *TASKS]
    assert "stage_steps: nothing ends the stage of easy" in refused(capsys, *new, "--curriculum", "in order")
    assert "has 1 numbers for 2 tasks" in refused(capsys, *new, "--task-weights", 1)
    resume = ["train", "--out", in_order.path, *SMALL, *ORDER, "--steps", 5, "--stage-steps", 3]
    assert "stage_steps: the run in" in refused(capsys, *resume)
    assert "level: 9 is not possible" in refused(capsys, *new, "--task", "arithmetic:level1,arithmetic:level9")


def test_what_is_not_known_is_measured_by_votes():
    """Four agents: of the three pairs of votes on agents 1 and 2 by different agents, one pair agrees."""
    debate = parallel(4, ["N/A"] * 4, ["Agent 1 > Agent 2", "N/A", "N/A", "Agent 2 > Agent 1"])
    assert share_of(score(debate), None) == 0
    agreed = parallel(4, ["N/A"] * 4, ["Agent 1 > Agent 2", "N/A", "N/A", "Agent 1 > Agent 2"])
    assert share_of(score(agreed), None) == 1
    assert share_of(score(parallel(3, ["N/A"] * 3)), None) is None
    right = parallel(2, ["N/A"] * 2, answer="42", dataset="arithmetic")
    assert share_of(score(right), known_grades([right], grade_sum)[0]) == 1

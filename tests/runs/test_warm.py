"""Warm starts through the command, on a small real model: the numbers are those of a hand calculation, and resuming changes
nothing.
"""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peergrad.debate.transcript import read_file
from tests import commands
from tests.helpers import short
from tests.web.exported import Page

ROOT = Path(__file__).parent.parent.parent
PARROT = ROOT / "tests" / "fixtures" / "parrot"
SMALL = ["--preset", "demo-parallel", "--model", PARROT, "--rank", 4, "--threads", 1, "--batch", 2, "--warm-lr", 0.003]
NO_EVAL = ["--eval-questions", 0, "--eval-debates", 0]


def command(*args):
    return [sys.executable, "-m", "peergrad", *map(str, args)]


def peergrad(*args, code=0):
    done = commands.peergrad(*args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines(run, phase="warm"):
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["phase"] == phase]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cross_entropy(pairs):
    """The mean of the negative log-likelihood over the tokens of the replies, and how many there are, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(PARROT)
    model = AutoModelForCausalLM.from_pretrained(PARROT, dtype=torch.float32)
    losses = []
    for question, solution in pairs:
        message = {"role": "user", "content": question}
        prompt = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        ids, reply = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, f"{solution}<|im_end|>"))
        with torch.no_grad():
            logprobs = model(torch.tensor([ids + reply])).logits[0].log_softmax(-1)
        losses += [-float(logprobs[len(ids) - 1 + i, token]) for i, token in enumerate(reply)]
    return float(np.mean(losses)), len(losses)


@pytest.mark.slow
def test_what_a_warm_start_did_is_measured_apart_from_self_play(tmp_path):  # SPEC 7.3
    """With eval_every; a run that says only before and after has no evaluation between."""
    args = ["train", *SMALL, *NO_EVAL, "--eval-questions", 2, "--steps", 2, "--warm-steps", 2, "--warm-debates", 1]
    for every, between in ((2, [(0, 2)]), (0, [])):
        out = tmp_path / f"every-{every}"
        peergrad(*args, "--eval-every", every, "--out", out)
        assert [(line["step"], line["warm"]) for line in lines(out, "eval")] == [(0, 0), *between, (2, 0)]


@pytest.mark.slow
def test_worked_solutions_of_gsm8k_alone(tmp_path):  # SPEC 9.2
    rows = (
        {"question": "What is 1 + 2?", "answer": "One and two\nare <<1+2=3>>3.\n#### 3"},
        {"question": "What is 4 + 5?", "answer": "<<4+5=9>>9 it is.\n#### 9"},
        {"question": "What is 6 + 1?", "answer": "6 + 1 = \\boxed{7}\n#### 7"},
    )
    task, run = write(tmp_path / "g.jsonl", *rows), tmp_path / "run"
    evaluate = ["--eval-task", f"gsm8k:{task}", "--eval-questions", 2, "--eval-debates", 1]
    args = ["train", *SMALL, *evaluate, "--task", f"gsm8k:{task}", "--warm-epochs", 2, "--steps", 0, "--out", run]
    said = peergrad(*args)

    ask = "Question:\n{}\n\nEnd your solution with the final answer as \\boxed{{answer}}."
    solutions = ("One and two\nare 3.\n\\boxed{3}", "9 it is.\n\\boxed{9}", "6 + 1 = \\boxed{7}")
    loss, tokens = cross_entropy([(ask.format(row["question"]), text) for row, text in zip(rows, solutions, strict=True)])
    first, second = lines(run)
    assert first["warm/loss"] == pytest.approx(loss, rel=1e-4)
    assert (first["warm/tokens"], first["warm/turns"], first["warm/epoch"], first["lr"]) == (tokens, 3, 1, 0.003)
    assert (second["warm/epoch"], second["tokens/trained"]) == (2, first["tokens/trained"])
    assert second["warm/loss"] < first["warm/loss"]

    # It ends as a run does: evaluated before and after, with a checkpoint, a report, and something to export.
    assert [(line["step"], line["warm"]) for line in lines(run, "eval")] == [(0, 0), (0, 2)]
    assert {path.name for path in (run / "debates").glob("*.jsonl")} == {"eval_000000.jsonl", "eval_warm_000002.jsonl"}
    assert f"peergrad export {run} --to " in said
    report = Page((run / "report.html").read_text())
    assert [(row["name"], row["times"]) for row in report.only("source")["used"]] == [("Warm start", 2), ("Evaluation", 2)]
    peergrad("export", run, "--to", tmp_path / "adapter")
    assert "by supervised learning alone (2 updates)" in (tmp_path / "adapter" / "README.md").read_text()
    assert "is finished: 2 updates of the warm start" in peergrad(*args)
    write(task, *(row | {"answer": f"Well. {row['answer']}"} for row in rows))
    assert "has other lessons (warm_from); give another folder" in peergrad(*args, code=2)


@pytest.mark.slow
def test_own_replies_that_are_right_and_a_run_that_is_killed(tmp_path):  # SPEC 9.2
    own = ["--warm-from", "own", "--warm-keep", "right", "--warm-sample", 8, "--warm-epochs", 2, "--warm-debates", 2]
    args = ["train", *SMALL, *NO_EVAL, *own, "--steps", 0, "--out"]
    whole = tmp_path / "whole"
    peergrad(*args, whole)

    # By hand: the solution's box holds the sum; the first update sees what its own weights sampled.
    kept = []
    for debate in read_file(whole / "debates" / "warm_000000.jsonl"):
        right = [
            turn
            for turn in debate.turns
            if not turn.parsed.error
            and (boxes := re.findall(r"\\boxed\{(-?\d+)\}", turn.section("solution")))
            and boxes[-1] == debate.question.answer
        ]
        kept += [right] if right else []
    updates = -(-len(kept) // 2)
    assert 3 <= len(kept) < 8
    assert [line["warm"] for line in lines(whole)] == list(range(1, 2 * updates + 1))
    for index, line in enumerate(lines(whole)):
        batch = [turn for turns in kept[index % updates * 2 :][:2] for turn in turns]
        assert line["warm/turns"] == len(batch)
        assert line["warm/tokens"] == sum(len(turn.tokens.ids_T) for turn in batch)
        assert line["warm/epoch"] == pytest.approx((index + 1) / updates)
        if index == 0:
            sampled = np.concatenate([turn.tokens.logprobs_T for turn in batch])
            assert line["warm/loss"] == pytest.approx(-sampled.mean(), rel=1e-3)

    # Killed before the debates are there, and again in the middle of the updates; then the debates are damaged.
    killed = tmp_path / "killed"
    kill_when(killed / "checkpoints" / "step_000000", *args, killed)
    assert not (killed / "checkpoints" / "warm_000001").exists()
    kill_when(killed / "checkpoints" / "warm_000002", *args, killed)
    damaged = tmp_path / "damaged"
    shutil.copytree(killed, damaged)
    peergrad(*args, killed)
    same(killed, whole)
    os.truncate(damaged / "debates" / "warm_000000.jsonl", 2000)
    assert "sampling these debates again" in peergrad(*args, damaged)
    same(damaged, whole)

    # The same run goes on to play.
    peergrad(*args[:-3], "--steps", 1, "--out", killed)
    assert [line["step"] for line in lines(killed, "train")] == [1]


def kill_when(there, *args):
    """Kill -9 the command as soon as a folder is there."""
    assert commands.peergrad(*args, killed_at=there).returncode == -signal.SIGKILL


def same(one, other):
    """Two runs have the same debates, metrics (but for time) and weights."""
    for path in sorted((other / "debates").iterdir()):
        assert (one / "debates" / path.name).read_bytes() == path.read_bytes()
    timeless = [[{k: v for k, v in line.items() if "time/" not in k} for line in lines(run)] for run in (one, other)]
    assert timeless[0] == timeless[1]
    newest = sorted((other / "checkpoints").glob("warm_*"))[-1].name
    states = [json.loads((run / "checkpoints" / newest / "state.json").read_text()) for run in (one, other)]
    assert states[0]["sha256"] == states[1]["sha256"]  # of all files; that of the metrics knows how long things took


def debate(name, question, answer, first, last):
    """Three agents, two rounds: their answers (``None``: unreadable), and in the second round what each votes."""
    turns = [(agent, text) for agent, text in enumerate(first)] + list(enumerate(last))
    return {
        "id": name,
        "question": question,
        "answer": answer,
        "style": "boxed",
        "dataset": "arithmetic",
        "agents": 3,
        "protocol": "parallel",
        "turns": [{"agent": agent, "text": text} for agent, text in turns],
    }


def answers(box, vote="N/A"):
    return short(vote, solution=f"\\boxed{{{box}}}")


@pytest.mark.slow
def test_a_teachers_transcript_by_what_is_right_or_won(tmp_path):  # SPEC 9.7
    first = [answers(3), answers(4), "I will not say."]
    won = debate(
        "won", "What is 1 + 2?", "3", first, [answers(3, "Agent 1 < Agent 2"), answers(3, "Agent 0 > Agent 2"), answers(4)]
    )
    drawn = debate("drawn", "What is 2 + 2?", "4", first, [answers(5, "Agent 1 = Agent 2"), answers(5), answers(4)])
    path = write(tmp_path / "t.jsonl", won, drawn)
    # By hand. Readable: 5 turns of each. Right: agents 0, 0 and 1 of the first; agents 1 and 2 of the second. Won: agent 0,
    # by its only vote; agent 2 won one of two, and of the second debate nobody did.
    counts = {"readable": 10, "right": 5, "won": 2}
    for keep, turns in counts.items():
        run = tmp_path / keep
        peergrad("train", *SMALL, *NO_EVAL, "--warm-from", path, "--warm-keep", keep, "--warm-steps", 1, "--steps", 0,
                 "--out", run)  # fmt: skip
        (line,) = lines(run)
        assert (keep, line["warm/turns"]) == (keep, turns)
        assert line["warm/loss"] > 0


def test_debates_into_direct_answers(tmp_path):  # SPEC 9.8
    last = [answers(3, "Agent 1 < Agent 2"), answers(3, "Agent 0 > Agent 2"), answers(4)]
    right = debate("a", "What is 1 + 2?", "3", [answers(3), answers(4), answers(5)], last)
    wrong = debate("b", "What is 2 + 2?", "4", [answers(3), answers(4), answers(5)], last)
    nobody = debate("c", "What is 5 + 5?", "10", [answers(3), answers(4), answers(5)], [answers(1), answers(2), answers(3)])
    path, data = write(tmp_path / "t.jsonl", right, wrong, nobody), tmp_path / "data.jsonl"
    assert "2 answers of 3 debates" in peergrad("distill", path, "--to", data)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    about = {"decided_by": "votes"}
    assert rows == [
        {"id": "a", "question": "What is 1 + 2?", "answer": "3", "solution": "\\boxed{3}", "right": True, "debate": "a"}
        | about,
        {"id": "b", "question": "What is 2 + 2?", "answer": "4", "solution": "\\boxed{3}", "right": False, "debate": "b"}
        | about,
    ]
    assert "is there already; give a new .jsonl file" in peergrad("distill", path, "--to", data, code=2)
    assert "does not end in .jsonl" in peergrad("distill", path, "--to", tmp_path / "data.csv", code=2)
    peergrad("distill", path, "--right", "--to", tmp_path / "right.jsonl")
    assert [json.loads(line)["id"] for line in (tmp_path / "right.jsonl").read_text().splitlines()] == ["a"]

    run = tmp_path / "run"
    peergrad("train", *SMALL, *NO_EVAL, "--warm-from", data, "--warm-epochs", 1, "--steps", 0, "--out", run)
    ask = "Question:\n{}\n\nEnd your solution with the final answer as \\boxed{{answer}}."
    loss, tokens = cross_entropy([(ask.format(row["question"]), row["solution"]) for row in rows])
    (line,) = lines(run)
    assert line["warm/loss"] == pytest.approx(loss, rel=1e-4)
    assert (line["warm/turns"], line["warm/tokens"]) == (2, tokens)


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """``peergrad train --dry-run`` in this process: its exit code and what it says."""
    from peergrad.cli.main import main

    def run(*args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["peergrad", "train", "--dry-run", *map(str, (*SMALL[:-2], *args))])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, "".join(capsys.readouterr())

    return run


GOOD = {"question": "What is 1 + 2?", "answer": "3", "solution": "3"}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([GOOD, {"question": "What?"}], "data.jsonl, line 2, solution: is missing"),
        ([GOOD | {"solution": ["3"]}], 'data.jsonl, line 1, solution: ["3"] is not text'),
        ([GOOD | {"solution": " "}], "data.jsonl, line 1, solution: is empty; every row needs a solution to learn from"),
        ([GOOD | {"solution": "a\ud800"}], "data.jsonl, line 1, solution: holds half a character"),
        ([GOOD | {"solution": "x" * 100_001}], "data.jsonl, line 1, solution: has 100,001 characters; give at most 100,000"),
        ([GOOD | {"question": 7}], "data.jsonl, line 1, question: 7 is not text"),
        ([GOOD, "torn"], "data.jsonl, line 2: "),
    ],
)
def test_a_file_of_solutions_is_read_with_care(dry_run, tmp_path, rows, says):
    data = write(tmp_path / "data.jsonl", *rows)
    code, said = dry_run("--warm-from", data, "--steps", 0)
    assert (code, says in said) == (2, True), said


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--steps", 0, "--warm-steps", 0], "steps: 0 leaves nothing to learn; give at least 1, or a warm start"),
        (
            ["--warm-from", "t.jsonl", "--warm-steps", 0],
            "warm_from: how long to learn from it is not said; give warm_epochs",
        ),
        (["--task", "q.jsonl"], "warm_from: the task has neither solutions nor a teacher; give a transcript"),
        (
            ["--preset", "math-hard", "--task", "q.jsonl", "--eval-every", 0],
            "warm_from: the task has neither solutions nor a teacher",
        ),
        (["--warm-from", "t.jsonl", "--warm-keep", "won"], "warm_keep: no turn of t.jsonl was said by an agent that won"),
        (
            ["--warm-from", "t.jsonl", "--agents", 4],
            "warm_from: t.jsonl can't be learned from: its debate d has 3 agents, not 4",
        ),
    ],
)
def test_what_can_not_be_learned_from_is_said_at_once(dry_run, tmp_path, args, says):
    write(tmp_path / "q.jsonl", *({"question": f"What is {i} + 2?", "answer": str(i + 2)} for i in range(9)))
    write(tmp_path / "t.jsonl", debate("d", "What is 1 + 2?", "3", [answers(3)] * 3, [answers(3)] * 3))
    code, said = dry_run(*args, "--eval-questions", 0, "--eval-debates", 0)
    assert (code, says in said) == (2, True), said


def test_math_hard_begins_with_its_published_first_phase(dry_run, tmp_path):
    rows = ({"problem": f"Find {i}.", "solution": f"It is $\\boxed{{{i}}}$.", "answer": str(i)} for i in range(40))
    task = write(tmp_path / "m.jsonl", *rows)
    args = ("--task", f"math:{task}", "--eval-questions", 4, "--max-tokens", 100)
    code, said = dry_run("--preset", "math-hard", *args)
    assert code == 0
    assert "warm_lr = 0.0001" in said
    assert "A warm start of 9 updates on 36 debates or solutions." in said  # 3 epochs of 16, 16 and 4

"""Recipes that combine settings, as a person types them: what is in the metrics is what a calculation by hand gives from the
saved words, and a run killed within any of them ends with the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter, defaultdict
from itertools import combinations

import pytest
import torch
from transformers import AutoModelForCausalLM

from peergrad.debate.transcript import read_file
from peergrad.runs.folder import Run
from peergrad.tasks.arithmetic import grade_sum
from tests import commands
from tests.runs.test_curriculum import bytes_of
from tests.runs.test_length import TASK as PARITY
from tests.runs.test_run import PARROT
from tests.runs.test_warm import cross_entropy

SMALL = [
    "--preset",
    "demo-parallel",
    "--model",
    PARROT,
    "--rank",
    4,
    "--threads",
    1,
    "--batch",
    3,
    "--lr",
    0.003,
    "--eval-debates",
    0,
]


def train(out, *more, killed_at=None, small=(*SMALL, "--eval-questions", 0), **flags):
    """``peergrad train`` in the folder of the run; its exit code and the run."""
    options = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", *listed(value))]
    argv = ["train", "--out", out, *small, *options, *more]
    environ = os.environ | {"PYTHONPATH": str(PARROT.parents[2])}
    done = commands.peergrad(*argv, cwd=out.parent, env=environ, killed_at=killed_at)
    assert done.returncode in ((-signal.SIGKILL,) if killed_at else (0,)), done.stderr
    return Run(out)


def listed(value):
    return () if value is True else value if isinstance(value, tuple) else (value,)


def lines(run):
    return [line for line in run.metrics() if line["phase"] == "train"]


def debates(run, step):
    return list(read_file(run.path / "debates" / f"step_{step:06}.jsonl"))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def ended_as_a_whole_one(folder, whole, *more, step=2, **flags):
    """Killed as soon as the debates of a step are there, before anything is learned from them; then the same command."""
    out = folder / "run"
    train(out, *more, killed_at=out / "debates" / f"step_{step:06}.jsonl", **flags)
    assert len(lines(Run(out))) == step - 1
    assert bytes_of(train(out, *more, **flags)) == bytes_of(whole)


# The demo as it is, but for its model and size


DEMO = (
    "--preset",
    "demo",
    "--model",
    PARROT,
    "--rank",
    4,
    "--threads",
    1,
    "--batch",
    3,
    "--steps",
    3,
    "--eval-questions",
    4,
)


def test_the_demo_by_hand_and_killed(tmp_path):  # SPEC 4.13, 8.3, 10
    whole = train(tmp_path / "whole", small=DEMO)
    for line in lines(whole):
        rewards, right = [], []
        for debate in debates(whole, line["step"]):
            values = [debate.question.style.answer(turn.text) for turn in debate.turns]
            assert len(values) == 8
            counted = Counter(value for value in values if value is not None).most_common()
            most = [value for value, count in counted if count == counted[0][1]]
            rewards += [2 / len(most) - 1 if value in most else -1 for value in values] if most else []
            right += [value == debate.question.answer for value in values]
        assert line.get("reward/gen/mean") == (pytest.approx(mean(rewards)) if rewards else None)
        assert line["train_sums-level1/correct"] == pytest.approx(mean(right))
        assert not line["v2/total_votes"]
    evals = [line for line in whole.metrics() if line["phase"] == "eval"]
    assert [line["step"] for line in evals] == [0, 2, 3]
    assert [line["eval/sampled/sums-level1/answers"] for line in evals] == [16, 16, 16]
    ended_as_a_whole_one(tmp_path, whole, small=DEMO)


# Votes that are numbers, the truth that fades beside them, and a learning rate that falls


FADES = {"protocol": "ballot", "ballot_form": "soft-choice", "agents": 4, "shown": 3, "max_tokens": 40, "temperature": 0.7}
FADES |= {"truth_weight": "1.0 -> 0.25", "outcome_bonus": "0.5 -> 0 over 2 cosine", "warm_steps": 1, "steps": 3}
FADES |= {"lr_schedule": "cosine", "lr_warmup": 1}


@pytest.fixture(scope="module")
def fading(tmp_path_factory):
    return train(tmp_path_factory.mktemp("fades") / "run", **FADES)


def leads(debate):
    """Of every ballot by how much each agent shown is likelier than each other: (voter, one, other, difference)."""
    for turn in debate.turns[debate.agents :]:
        words = turn.text.split()
        likely = {agent: float(words[2 * place + 1]) for place, (agent,) in enumerate(turn.candidates)}
        yield from ((turn.agent, one, other, likely[one] - likely[other]) for one, other in combinations(likely, 2))


def scores(debate):
    """Of each answer the mean over ballots of how far it is ahead in them; equal answers share the mean of theirs."""
    of_ballot = defaultdict(list)
    for voter, one, other, lead in leads(debate):
        of_ballot[one, voter].append(lead)
        of_ballot[other, voter].append(-lead)
    alone = {seat: mean(mean(of) for (one, _), of in of_ballot.items() if one == seat) for seat in range(debate.agents)}
    given = {seat: debate.question.style.value(debate.turns[seat].text) or seat for seat in alone}
    return [mean(alone[other] for other in alone if given[other] == given[seat]) for seat in alone]


def agreement(debate):
    """Of the pairs of voters on the same two answers, the share that finds the same one likelier."""
    best = defaultdict(list)
    for _, one, other, lead in leads(debate):
        best[frozenset((one, other))].append(one if lead > 0 else other if lead < 0 else None)
    pairs = [pair for on in best.values() for pair in combinations(on, 2)]
    return mean(first == second for first, second in pairs)


def test_truth_beside_soft_votes_by_hand(fading):  # SPEC 2.8, 3.19, 4.11, 4.14, 4.15
    weights, bonuses = [1, 0.75, 0.5], [0.5, 0.25, 0]
    assert [line["truth_weight"] for line in lines(fading)] == pytest.approx(weights)
    assert [line["outcome_bonus"] for line in lines(fading)] == pytest.approx(bonuses)
    for line, weight, bonus in zip(lines(fading), weights, bonuses, strict=True):
        rewards, right = [], []
        for debate in debates(fading, line["step"]):
            correct = [grade_sum(debate.question, turn.text).correct for turn in debate.turns[:4]]
            rewards += [
                (1 - weight) * score + weight * (1 if is_right else -1) + bonus * is_right
                for score, is_right in zip(scores(debate), correct, strict=True)
            ]
            right += correct
        assert line["reward/borda/mean"] == pytest.approx(mean(rewards))
        assert line["reward/borda/std"] == pytest.approx(mean((x - mean(rewards)) ** 2 for x in rewards) ** 0.5)
        assert line["train_arithmetic/correct"] == pytest.approx(mean(right))


def test_what_votes_favour_by_hand(fading):  # SPEC 8.4, 8.6
    for line in lines(fading):
        first, longer, seats, right, agreed = [], [], defaultdict(list), [], []
        for debate in debates(fading, line["step"]):
            said = [turn.text for turn in debate.turns[:4]]
            correct = [grade_sum(debate.question, text).correct for text in said]
            for _, one, other, lead in leads(debate):  # `one` is shown before `other`
                won = 1 if lead > 0 else 0 if lead < 0 else 0.5
                first.append(won)
                seats[one].append(won)
                seats[other].append(1 - won)
                if won != 0.5 and len(said[one]) != len(said[other]):
                    longer.append(len(said[one]) > len(said[other]) if won else len(said[other]) > len(said[one]))
                if correct[one] != correct[other]:
                    right.append(won if correct[one] else 1 - won)
            agreed.append(agreement(debate))
        by_hand = {f"bias/seat/{seat}": mean(won) for seat, won in seats.items()}
        by_hand |= {"bias/first": mean(first), "bias/longer": mean(longer), "votes/agreement": mean(agreed)}
        by_hand |= {"votes/between_right_and_wrong": len(right)} | ({"votes/accuracy": mean(right)} if right else {})
        assert {name: line[name] for name in by_hand} == pytest.approx(by_hand)


def test_a_learning_rate_along_half_a_cosine(fading):  # SPEC 7.6
    assert [line["lr"] for line in lines(fading)] == pytest.approx([0.0015, 0.003, 0.0015])


def test_killed_within_a_fade(fading, tmp_path):  # SPEC 4.15, 7.6
    ended_as_a_whole_one(tmp_path, fading, **FADES)


def test_what_a_run_learned_is_checked_under_any_name(fading, tmp_path):
    def said(*argv):
        done = commands.peergrad(*argv, cwd=tmp_path)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    said("export", fading.path, "--to", "adapter")
    flags = ("--questions", 2, "--json", "--rank", 4, "--threads", 1, "--warm-steps", 0, "--max-tokens", 64, "--batch", 2)
    gates = [
        json.loads(said("check", "--model", model, *flags))["gates"]
        for model in (f"{fading.path}@3", "adapter", f"{fading.path}@0")
    ]
    assert gates[0] == gates[1]
    assert gates[0] != gates[2]


# The model's own debates, of which the winners are learned from


def test_own_winners_by_hand(tmp_path):  # SPEC 9.2, 9.7
    options = {"protocol": "ballot", "ballot_form": "soft-choice", "agents": 4, "shown": 3, "max_tokens": 100}
    options |= {"warm_from": "own", "warm_keep": "won", "warm_sample": 8, "warm_epochs": 1, "warm_debates": 9, "steps": 0}
    run = train(tmp_path / "run", **options)
    kept = []
    for debate in read_file(run.path / "debates" / "warm_000000.jsonl"):
        answers, about = debate.turns[:4], defaultdict(list)
        for _, one, other, lead in leads(debate):
            about[one].append((1 + lead) / 2)
            about[other].append((1 - lead) / 2)
        rates = [mean(about[agent]) for agent in range(4)]
        best = max(rates)  # of all answers, one that was cut off included; but only whole ones are learned from
        won = [turn for turn, rate in zip(answers, rates, strict=True) if rate == pytest.approx(best) and best > 0.5]
        kept += [turn for turn in won if not turn.truncated]
    assert kept
    (line,) = (line for line in run.metrics() if line["phase"] == "warm")
    assert line["warm/turns"] == len(kept)
    assert line["warm/tokens"] == sum(len(turn.tokens.ids_T) for turn in kept)
    sampled = [float(one) for turn in kept for one in turn.tokens.logprobs_T]
    assert line["warm/loss"] == pytest.approx(-mean(sampled), rel=1e-3)


# Debates of one's own characters, with as many agents and rounds as their answers need


LENGTHS = {"task": "parity:Parity", "agents": 5, "agents_min": 3, "max_rounds": 2, "end_early": True, "extra_rounds": 1}
LENGTHS |= {"personas": "mine.toml", "temperature": 0.5, "warm_steps": 0, "steps": 2, "max_tokens": 60}
WARMTH = [0.8, 1.6, 1.2]
MINE = "".join(f'[[persona]]\nname = "P{i}"\ntemperature = {warm}\ntext = "You add."\n' for i, warm in enumerate(WARMTH))


def with_files(folder):
    (folder / "parity.py").write_text(PARITY)
    (folder / "mine.toml").write_text(MINE)
    return folder


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    return train(with_files(tmp_path_factory.mktemp("lengths")) / "run", **LENGTHS)


def value(turn):
    return None if turn.solution is None else len(turn.solution) % 2


def test_rounds_and_agents_as_needed_by_hand(lengths):  # SPEC 3.21, 3.22, 8.1
    sizes = set()
    for line in lines(lengths):
        played = debates(lengths, line["step"])
        for debate in played:

            def agree(seats, round_, turns=debate.turns):
                given = {value(turn) for turn in turns if turn.round == round_ and turn.agent in seats}
                return len(given) == 1 and None not in given

            agents = 3 if agree(range(3), 0) else 5
            ends = [agree(range(agents), round_) for round_ in (0, 1)]
            assert debate.rounds == (1 if ends[0] else 2 if ends[1] else 3)
            assert len(debate.turns) == agents * debate.rounds
            sizes.add((agents, debate.rounds))
        turns = [turn for debate in played for turn in debate.turns]
        episodes = sum(debate.agents for debate in played)
        assert line["env/all/total_episodes"] == episodes
        assert line["env/all/turns_per_episode"] == pytest.approx(len(turns) / episodes)
        assert line["round"] == pytest.approx(mean(turn.round + 1 for turn in turns))
        assert line["replies/readable"] == pytest.approx(mean(turn.parsed.error is None for turn in turns))
    assert len(sizes) > 1, "some agreed and some did not"


def test_characters_and_their_temperatures(lengths):  # SPEC 3.10, 6.7, 8.1
    """What was sampled in the first step is as likely as the model says at the temperatures of the file, halved."""
    model, played = AutoModelForCausalLM.from_pretrained(PARROT), debates(lengths, 1)
    for turn in played[0].turns[:3]:
        tokens, warm = turn.tokens, WARMTH[turn.agent] / 2
        assert played[0].protocol.personas[turn.agent].name == f"P{turn.agent}"
        assert tokens.temperature == pytest.approx(warm)
        ids = torch.tensor([*tokens.prompt_T, *tokens.ids_T]).long()
        with torch.no_grad():
            scores = (model(ids[None]).logits[0] / warm).log_softmax(-1)
        said = scores[len(tokens.prompt_T) - 1 : -1].gather(1, ids[len(tokens.prompt_T) :, None])[:, 0]
        assert tokens.logprobs_T == pytest.approx(said.numpy(), abs=1e-3)
    sampled = [float(one) for debate in played for turn in debate.turns for one in turn.tokens.logprobs_T]
    assert lines(lengths)[0]["optim/entropy"] == pytest.approx(-mean(sampled), rel=1e-5)


def test_killed_within_a_batch_of_different_lengths(lengths, tmp_path):  # SPEC 3.21, 3.22
    ended_as_a_whole_one(with_files(tmp_path), lengths, **LENGTHS)


# Stages of questions to which nobody knows the answer


AGREED = {"task": "first.jsonl,second.jsonl", "curriculum": "in order", "stage_targets": 0.1, "target_steps": 1, "steps": 2}
AGREED |= {"protocol": "ballot", "ballot_form": "soft-choice", "agents": 4, "shown": 3, "max_tokens": 12, "warm_steps": 0}


def test_a_stage_ends_where_votes_agree(tmp_path):  # SPEC 9.3
    for name in ("first", "second"):
        rows = [json.dumps({"question": f"Write line {i} of the {name} poem."}) for i in range(9)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    run = train(tmp_path / "run", **AGREED)
    stage = 1
    for line in lines(run):
        played = debates(run, line["step"])
        assert {debate.question.id.partition("/")[0] for debate in played} == {("first", "second")[stage - 1]}
        share = mean(map(agreement, played))
        assert (line["curriculum/stage"], line["curriculum/reached"]) == (stage, pytest.approx(share))
        assert line[f"curriculum/{('first', 'second')[stage - 1]}/share"] == pytest.approx(share)
        stage = 2 if share >= 0.1 else stage
    assert stage == 2


STAGES = {"task": "svamp:s.jsonl,gsm8k:g.jsonl", "curriculum": "in order", "stage_steps": 1, "steps": 2, "warm_steps": 0}
STAGES |= {"protocol": "direct", "agents": 4, "truth_weight": 1, "max_tokens": 24}


@pytest.mark.slow
def test_svamp_then_gsm8k_killed_in_each_stage(tmp_path):  # SPEC 9.3
    easy = [{"Body": f"He has {i} dogs.", "Question": "He buys one. How many?", "Answer": i + 1.0} for i in range(6)]
    hard = [
        {"question": f"What is {i} + 3?", "answer": f"{i} + 3 = <<{i}+3={i + 3}>>{i + 3}.\n#### {i + 3}"} for i in range(6)
    ]
    for name, rows in (("s", easy), ("g", hard)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    whole, out = train(tmp_path / "whole", **STAGES), tmp_path / "run"
    assert [line["curriculum/stage"] for line in lines(whole)] == [1, 2]
    for step, name in ((1, "svamp"), (2, "gsm8k")):
        train(out, killed_at=out / "debates" / f"step_{step:06}.jsonl", **STAGES)
        assert {debate.question.id.partition("/")[0] for debate in debates(Run(out), step)} == {name}
    assert bytes_of(train(out, **STAGES)) == bytes_of(whole)


# A supervised run on some of MATH, and several answers to each held-out question


HEARD = """
from pathlib import Path

from peergrad import Grade, Question

LOG = Path(__file__).parent / "heard.txt"


class Heard:
    name, known = "heard", True

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Question(f"h{index}", f"What is {index} + 3?", "any")

    def grade(self, question, solution):
        with LOG.open("a") as log:
            log.write(f"{question.id} {len(solution) % 3}\\n")
        return Grade(len(solution) % 3 == 0, str(len(solution) % 3))
"""
ROWS = [
    ("Find $1+2$.", "It is $\\boxed{3}$.", "Algebra", "Level 2"),
    ("Find $2+2$.", "Two and two: $\\boxed{4}$.", "Algebra", "Level 3"),
    ("Find $9^9$.", "Large.", "Algebra", "Level 5"),
    ("Find $x$.", "Here.", "Geometry", "Level 1"),
]


def test_worked_solutions_of_a_subject_and_level_and_sampled_answers(tmp_path):  # SPEC 8.3, 9.1, 9.2
    rows = [dict(zip(("problem", "solution", "subject", "level"), row, strict=True)) for row in ROWS]
    rows = [row | {"answer": (re.findall(r"boxed\{(.)\}", row["solution"]) or ["5"])[0]} for row in rows]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "heard.py").write_text(HEARD)
    options = {"task": "math:m.jsonl:algebra:level1-3", "warm_epochs": 1, "warm_steps": 0, "steps": 0, "batch": 2}
    run = train(
        tmp_path / "run", **options, eval_questions=4, eval_task="heard:Heard", eval_samples=5, max_tokens=16, warm_lr=1e-4
    )

    ask = "Question:\n{}\n\nEnd your solution with the final answer as \\boxed{{answer}}."
    loss, tokens = cross_entropy([(ask.format(problem), solution) for problem, solution, *_ in ROWS[:2]])
    (warm,) = (line for line in run.metrics() if line["phase"] == "warm")
    assert warm["warm/loss"] == pytest.approx(loss, rel=1e-4)
    assert (warm["warm/turns"], warm["warm/tokens"], warm["lr"]) == (2, tokens, 1e-4)

    heard = [line.split() for line in (tmp_path / "heard.txt").read_text().splitlines()]
    evaluations = [line for line in run.metrics() if line["phase"] == "eval"]
    assert len(heard) == len(evaluations) * 4 * 6
    for number, line in enumerate(evaluations):
        graded = heard[number * 24 :][:24]
        assert line["eval/direct/heard/correct"] == mean(answer == "0" for _, answer in graded[:4])
        answers = defaultdict(list)
        for question, answer in graded[4:]:
            answers[question].append(answer)
        assert {len(of) for of in answers.values()} == {5}
        times = [Counter(of) for of in answers.values()]
        first = [[answer for answer in of if of[answer] == max(of.values())] for of in times]
        by_hand = {
            "correct": mean(answer == "0" for _, answer in graded[4:]),
            "avg@5": mean(of["0"] / 5 for of in times),
            "pass@5": mean(of["0"] > 0 for of in times),
            "cons@5": mean(best.count("0") / len(best) for best in first),
            "strict_cons@5": mean(of["0"] > 2.5 for of in times),
        }
        assert {name: line[f"eval/sampled/heard/{name}"] for name in by_hand} == pytest.approx(by_hand)

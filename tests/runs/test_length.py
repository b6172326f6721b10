"""Debates whose length follows their answers, as a person trains with them."""

import pytest

from tests.runs.test_rewards import saved, train
from tests.runs.test_run import adapter, run

pytestmark = pytest.mark.slow

TASK = """
from peergrad import Grade, Question, Style

STYLE = Style("parity", "Say something.", find=lambda text: str(len(text) % 2))


class Parity:
    name, known = "parity", True

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return Question(f"p{index}", f"What is {index} + 1?", str(index % 2), STYLE)

    def grade(self, question, solution):
        answer = STYLE.value(solution)
        return Grade(answer == question.answer, answer)
"""
LENGTH = {"protocol": "ballot", "agents": 3, "ballot_form": "verdicts", "revise": True, "end_early": True, "extra_rounds": 1}


def test_a_run_of_debates_of_different_lengths(tmp_path, monkeypatch):  # SPEC 3.21, 8.1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parity.py").write_text(TASK)
    lines = train(tmp_path / "run", task="parity:Parity", warm_steps=0, batch=6, max_tokens=10, **LENGTH)
    rounds = []
    for step, line in enumerate(lines, 1):
        debates = saved(tmp_path / "run", step)
        for debate in debates:
            answers = [{len(turn.text) % 2 for turn in debate.turns if turn.round == round_} for round_ in (0, 2, 4)]
            agreed = [len(values) == 1 for values in answers]
            assert debate.rounds == (1 if agreed[0] else 3 if agreed[1] else 5 if agreed[2] else 6)
        turns = [turn for debate in debates for turn in debate.turns]
        assert line["env/all/turns_per_episode"] == pytest.approx(len(turns) / (3 * len(debates)))
        assert line["round"] == pytest.approx(sum(turn.round + 1 for turn in turns) / len(turns))
        last = [
            [[turn for turn in d.turns if turn.agent == a and turn.asked_to_answer][-1] for a in range(3)] for d in debates
        ]
        right = [[str(len(turn.text) % 2) == d.question.answer for turn in of] for d, of in zip(debates, last, strict=True)]
        assert line["train_parity/pass@3"] == pytest.approx(sum(map(any, right)) / len(right))
        rounds += [debate.rounds for debate in debates]
    assert len(set(rounds)) > 1, "some agreed and some did not"


def test_a_run_of_different_lengths_is_resumed_to_the_byte(tmp_path, monkeypatch):  # SPEC 3.21
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parity.py").write_text(TASK)
    small = {"task": "parity:Parity", "warm_steps": 0, "eval_questions": 0, "eval_debates": 0, "max_tokens": 10}
    small |= {"max_rounds": 1, "extra_rounds": 1, "end_early": True}
    whole = run(tmp_path / "whole", steps=2, **small)
    run(tmp_path / "parts", steps=1, **small)
    assert adapter(run(tmp_path / "parts", steps=2, **small), 2) == adapter(whole, 2)


def value(solution):
    return None if solution is None else str(len(solution) % 2)


@pytest.mark.parametrize("protocol", ["parallel", "ballot"])
def test_a_run_with_as_many_agents_as_answers_need(tmp_path, monkeypatch, protocol):  # SPEC 3.22, 8.1, 8.3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parity.py").write_text(TASK)
    needed = {"protocol": protocol, "agents": 5, "agents_min": 3, "task": "parity:Parity"}
    needed |= (
        {"max_rounds": 2, "max_tokens": 60} if protocol == "parallel" else {"ballot_form": "verdicts", "max_tokens": 10}
    )
    lines, sizes = train(tmp_path / "run", (0, 1), batch=8, warm_steps=0, **needed), set()  # 1: the parrot may learn nothing
    for step, line in enumerate(lines, 1):
        debates = saved(tmp_path / "run", step)
        for debate in debates:
            first = {value(turn.solution) for turn in debate.turns if turn.round == 0 and turn.agent < 3}
            agree = len(first) == 1 and None not in first
            assert {turn.agent for turn in debate.turns} == set(range(3 if agree else 5))
        turns = [turn for debate in debates for turn in debate.turns]
        agents = sum(debate.agents for debate in debates)
        assert line["env/all/total_episodes"] == agents
        assert line["env/all/turns_per_episode"] == pytest.approx(len(turns) / agents)
        last = [(d.question, {turn.agent: turn.solution for turn in d.turns if turn.asked_to_answer}) for d in debates]
        right = [[value(text) == question.answer for text in answers.values()] for question, answers in last]
        everything = [one for of_debate in right for one in of_debate]
        assert line["train_parity/correct"] == pytest.approx(sum(everything) / len(everything))
        for size in (3, 5):
            some = [any(of_debate) for of_debate in right if len(of_debate) == size]
            assert line.get(f"train_parity/pass@{size}") == (pytest.approx(sum(some) / len(some)) if some else None)
        sizes |= {debate.agents for debate in debates}
    assert sizes == {3, 5}


def test_a_run_with_as_many_agents_as_needed_is_resumed_to_the_byte(tmp_path, monkeypatch):  # SPEC 3.22
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parity.py").write_text(TASK)
    small = {"task": "parity:Parity", "warm_steps": 0, "eval_questions": 0, "eval_debates": 0, "max_tokens": 10}
    small |= {"max_rounds": 2, "agents": 5, "agents_min": 3}
    whole = run(tmp_path / "whole", steps=2, **small)
    run(tmp_path / "parts", steps=1, **small)
    assert adapter(run(tmp_path / "parts", steps=2, **small), 2) == adapter(whole, 2)

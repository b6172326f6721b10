"""Which questions a step asks: pure functions, whatever the settings (SPEC 9.3)."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peergrad import UserError
from peergrad.learn.curriculum import CurriculumRules, check_curriculum, choose, first, mixed, reached, stage_of

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4)
kinds = st.sampled_from(["mixed", "in order", "adaptive"])


def tasks_of(counts):
    return [[f"{name}{index}" for index in range(count)] for name, count in zip("abcd", counts, strict=False)]


@st.composite
def plans(draw):
    """Settings that are accepted, tasks, a batch, and a history of shares for its steps."""
    counts, kind = draw(sizes), draw(kinds)
    tasks = tasks_of(counts)
    batch = draw(st.integers(1, sum(counts) if kind == "adaptive" else min(counts)))
    settings = {"curriculum": kind, "target_steps": draw(st.integers(1, 3))}
    if kind == "in order":
        settings["stage_steps"] = tuple(draw(st.integers(1, 4)) for _ in counts[1:])
        settings["stage_targets"] = tuple(draw(st.sampled_from([0.0, 0.3, 0.8])) for _ in counts[1:])
    if kind == "mixed":
        batch = max(batch, len(counts))
        settings["task_weights"] = tuple(draw(st.floats(0.1, 10)) for _ in counts)
    rules = CurriculumRules(**settings)
    try:
        check_curriculum(rules, dict(zip("abcd", tasks, strict=False)), batch)
    except UserError:
        rules, batch = CurriculumRules(curriculum="adaptive"), 1
    return rules, tasks, batch


def played(rules, tasks, batch, steps, shares, ahead=0):
    """What a run of so many steps asks, and what came of it."""
    asked, history = [], []
    for step in range(steps):
        asked.append(choose(rules, tasks, batch, 7, step, history, ahead))
        history.append({id: shares(id, step) for id in asked[-1]})
    return asked, history


@given(plans(), st.integers(0, 2), st.sampled_from([None, 0.0, 0.5, 1.0]))
def test_a_batch_is_full_and_asks_nothing_twice(plan, ahead, share):
    rules, tasks, batch = plan
    every = {id for task in tasks for id in task}
    asked, _ = played(rules, tasks, batch, 8, lambda *_: share, ahead)
    for ids in asked:
        assert len(ids) == len(set(ids)) == batch
        assert set(ids) <= every


@given(plans(), st.integers(0, 2), st.integers(0, 8))
def test_what_is_asked_depends_on_earlier_steps_alone(plan, ahead, step):
    """However often a step is repeated, and whatever was measured later: a resumed run asks the same."""
    rules, tasks, batch = plan
    asked, history = played(rules, tasks, batch, 9, lambda name, step: ((ord(name[0]) + step) % 4) / 3, ahead)
    later = [*history[: max(0, step - ahead)], *({"a0": 1.0} for _ in range(10))]
    assert choose(rules, tasks, batch, 7, step, later, ahead) == asked[step]


@given(st.lists(st.floats(0.05, 100), min_size=1, max_size=4), st.integers(1, 64), st.integers(0, 20))
def test_mixed_batches_have_tasks_by_weight(weights, batch, step):
    rules = CurriculumRules(task_weights=tuple(weights))
    tasks = tasks_of([batch + 5] * len(weights))
    exact = [batch * weight / sum(weights) for weight in weights]
    try:
        check_curriculum(rules, dict(zip("abcd", tasks, strict=False)), batch)
    except UserError:
        assert min(exact) < 1
        return
    counts = Counter(id[0] for id in choose(rules, tasks, batch, 7, step, ()))
    assert all(abs(counts[name] - part) < 1 + 1e-6 for name, part in zip("abcd", exact, strict=False))


@given(sizes, st.integers(1, 5))
def test_every_question_once_an_epoch(counts, batch):
    tasks = tasks_of(counts[:1])
    batch = min(batch, counts[0])
    steps = counts[0] // batch
    ids = [id for step in range(steps) for id in choose(CurriculumRules(), tasks, batch, 7, step, ())]
    assert len(set(ids)) == len(ids) == steps * batch
    assert first(CurriculumRules(), tasks, batch, 7, 1000)[: len(ids)] == ids
    assert sorted(first(CurriculumRules(), tasks, batch, 7, 1000)) == sorted(tasks[0])


def test_one_task_is_asked_in_the_order_it_always_was():
    import random

    order = [f"a{index}" for index in range(10)]
    random.Random("7 1").shuffle(order)
    assert choose(CurriculumRules(), tasks_of([10]), 3, 7, 4, ()) == order[3:6]  # the second of three steps of epoch 1


def test_stages_by_steps_and_by_target():
    rules = CurriculumRules(curriculum="in order", stage_steps=(3, 0), stage_targets=(0, 0.75), target_steps=2)
    shares = [0.1, 0.9, 0.9, 0.5, 0.9, 0.6, 0.9, 0.9]
    history = [{"x": share, "y": None} for share in shares]
    stages = [stage_of(rules, 3, step, history[:step]) for step in range(9)]
    # Three steps of the first; the second until two steps in a row have a mean of 0.75: steps 6 and 5, 0.6 and 0.9.
    assert stages == [(0, 0), (0, 0), (0, 0), (1, 3), (1, 3), (1, 3), (2, 6), (2, 6), (2, 6)]
    # Sampled two steps ahead, the target is seen two steps later.
    assert [stage_of(rules, 3, step, history[:step], 2)[0] for step in range(9)] == [0, 0, 0, 1, 1, 1, 1, 1, 2]


@given(plans(), st.integers(0, 3))
def test_stages_never_go_back(plan, ahead):
    rules, tasks, batch = plan
    _, history = played(rules, tasks, batch, 12, lambda _, step: 0.5 if step % 3 else 0.9, ahead)
    stages = [stage_of(rules, len(tasks), step, history[:step], ahead)[0] for step in range(13)]
    assert stages[0] == 0
    assert all(after - before in (0, 1) for before, after in pairwise(stages))


def test_adaptive_batches_ask_again_what_had_mixed_answers():
    rules, tasks = CurriculumRules(curriculum="adaptive"), tasks_of([40, 40])
    asked, _ = played(rules, tasks, 8, 6, lambda name, _: 1 / 3 if name.endswith(("1", "2", "3")) else 1.0)
    for step in range(1, 6):
        before = {id for ids in asked[:step] for id in ids}
        again = [id for id in asked[step] if id in before]
        assert len(again) <= 4
        assert all(id.endswith(("1", "2", "3")) for id in again)
    assert len([id for id in asked[5] if id in {id for ids in asked[:5] for id in ids}]) == 4
    # When every question has been asked, the half that was not mixed comes again, least often asked first.
    asked, _ = played(rules, tasks, 8, 40, lambda *_: 0.0)
    assert set(Counter(id for ids in asked for id in ids).values()) == {4}


def test_a_question_is_drawn_by_how_mixed_and_how_new_it_is():
    history = [{"a0": 0.1, "a1": 0.5, "a2": 1.0, "a3": None, "a4": 0.5}, {"a4": 0.5}]
    rules, tasks = CurriculumRules(curriculum="adaptive"), tasks_of([5])
    counts = Counter(choose(rules, tasks, 2, seed, 2, history)[0] for seed in range(2000))
    weights = {"a0": 4 * 0.1 * 0.9, "a1": 1.0, "a4": 0.5}  # the last was asked twice
    assert set(counts) == set(weights)
    for name, weight in weights.items():
        assert counts[name] / 2000 == pytest.approx(weight / 1.86, abs=0.04)
    assert mixed(1.0) == mixed(0.0) == mixed(None) == 0


def test_what_was_reached_is_a_mean_over_questions():
    assert reached([{"a": 1.0, "b": None}, {"a": 0.5, "b": 0.0}]) == 0.5
    assert reached([{"a": None}]) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task_weights": (1.0,)}, "task_weights: has 1 numbers for 2 tasks; give one for each task"),
        ({"task_weights": (1.0, float("nan"))}, "task_weights: nan is not possible"),
        ({"task_weights": (0.0, 0.0)}, "task_weights: add up to 0"),
        ({"task_weights": (1e308, 1e308)}, "task_weights: 1e\\+308 is not possible"),
        ({"task_weights": (1.0, 0.0)}, "batch: 4 has no place for a question of b"),
        ({"stage_steps": (1,)}, "stage_steps: is for curriculum 'in order', not 'mixed'"),
        ({"curriculum": "adaptive", "task_weights": (1.0, 1.0)}, "task_weights: is for curriculum 'mixed', not 'adaptive'"),
        ({"curriculum": "in order"}, "stage_steps: nothing ends the stage of a; give a number here or in stage_targets"),
        ({"curriculum": "in order", "stage_steps": (1, 2)}, "give one for each task but the last"),
        ({"curriculum": "in order", "stage_steps": (-1,)}, "stage_steps: -1 is not possible"),
        ({"curriculum": "in order", "stage_targets": (1.5,)}, "stage_targets: 1.5 is not possible; .* at most 1"),
        ({"curriculum": "in order", "stage_steps": (1,)}, "batch: 4 is more than the 3 questions there are"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        check_curriculum(CurriculumRules(**settings), {"a": list("abcde"), "b": list("xyz")}, 4)

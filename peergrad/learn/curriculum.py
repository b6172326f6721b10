"""Which questions a step asks, of one task or several (SPEC 9.3).

Each choice is a function of settings, seed, step and what came of earlier steps, so that a resumed run makes the same ones.
Questions are known by their ids, and a task is the ids of its questions.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from peergrad.debate.errors import UserError
from peergrad.debate.settings import Range
from peergrad.learn.train import epoch_order, next_in_epoch

Outcomes = Mapping[str, float | None]
"""The questions of a step, each with the share of its final answers that were right or, where nobody knows, the share of
pairs of votes that agreed. ``None``: neither is known."""
History = Sequence[Outcomes]
"""All steps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumRules:
    """In which order tasks and questions come."""

    curriculum: Literal["mixed", "in order", "adaptive"] = "mixed"
    """Of several tasks (task a,b,c): some of each in every batch; one after another; or, also of one, half of a batch from
    questions whose answers were mixed before."""
    task_weights: tuple[float, ...] = ()
    """Mixed: a number for each task, its part of every batch; unset, equal parts."""
    stage_steps: tuple[int, ...] = ()
    """In order: after how many steps the next task begins, for each task but the last; 0: only by its target."""
    stage_targets: tuple[float, ...] = ()
    """In order: at which share of right answers (without a truth: of votes that agree) it begins; 0: only by its steps."""
    target_steps: Annotated[int, Range(1)] = 5
    """Over how many of the newest steps of a stage that share is measured."""


_MOST_WEIGHT = 1e9


def check_curriculum(rules: CurriculumRules, tasks: Mapping[str, Sequence[str]], batch: int) -> None:
    """Refuse settings that do not fit the tasks, which are given by name."""
    kind, names, stages = rules.curriculum, list(tasks), len(tasks) - 1
    for name, values, of, count, high in (
        ("task_weights", rules.task_weights, "mixed", len(tasks), math.inf),
        ("stage_steps", rules.stage_steps, "in order", stages, math.inf),
        ("stage_targets", rules.stage_targets, "in order", stages, 1),
    ):
        if values and kind != of:
            raise UserError(f"{name}: is for curriculum {of!r}, not {kind!r}; leave it out, or give that")
        if values and len(values) != count:
            each = "each task" if of == "mixed" else "each task but the last"
            raise UserError(f"{name}: has {len(values)} numbers for {len(tasks)} tasks; give one for {each}")
        if wrong := [value for value in values if not 0 <= value <= min(high, _MOST_WEIGHT)]:
            at_most = f" and at most {high}" if high == 1 else ""
            raise UserError(f"{name}: {wrong[0]} is not possible; give numbers of at least 0{at_most}")
    if rules.task_weights and not 0 < math.fsum(rules.task_weights) < _MOST_WEIGHT:
        raise UserError(f"task_weights: add up to 0, or to more than {_MOST_WEIGHT:g}; give shares, such as 2 1")
    for stage in range(stages if kind == "in order" else 0):
        if not any(_ends(rules, stage)):
            raise UserError(f"stage_steps: nothing ends the stage of {names[stage]}; give a number here or in stage_targets")
    for stage in range(len(tasks) if kind == "in order" else 1):
        for at, (task, part) in enumerate(_parts(rules, list(tasks.values()), batch, stage)):
            if not part:
                raise UserError(f"batch: {batch} has no place for a question of {names[at]}; raise it, or its task_weights")
            next_in_epoch(task, part, 0, 0)


def choose(
    rules: CurriculumRules,
    tasks: Sequence[Sequence[str]],
    batch: int,
    seed: int,
    step: int,
    history: History,
    ahead: int = 0,
) -> list[str]:
    """The questions of a step. Batches are sampled ``ahead`` by so many steps, so the newest of the history do not count."""
    if rules.curriculum == "adaptive":
        return _adaptive([id for task in tasks for id in task], batch, seed, step, history[: max(0, step - ahead)])
    stage, began = stage_of(rules, len(tasks), step, history, ahead)
    chosen = [next_in_epoch(task, part, seed, step - began) for task, part in _parts(rules, tasks, batch, stage)]
    # Tasks alternate, for a batch may be dealt out to several updates.
    places = [((at + 0.5) / len(ids), id) for ids in chosen for at, id in enumerate(ids)]
    return [id for _, id in sorted(places, key=lambda place: place[0])]


def first(rules: CurriculumRules, tasks: Sequence[Sequence[str]], batch: int, seed: int, count: int) -> list[str]:
    """The first questions that a run asks, as many as ``count`` if there are."""
    orders = [(epoch_order(task, seed, 0), part) for task, part in _parts(rules, tasks, batch, 0)]
    steps = range(max(math.ceil(len(order) / part) for order, part in orders))
    return [id for step in steps for order, part in orders for id in order[step * part : (step + 1) * part]][:count]


def stage_of(rules: CurriculumRules, tasks: int, step: int, history: History, ahead: int = 0) -> tuple[int, int]:
    """The stage of a step, from 0, and the step that the stage begins with."""
    stage, began = 0, 0
    for now in range(1, step + 1 if rules.curriculum == "in order" else 0):
        if stage == tasks - 1:
            break
        steps, target = _ends(rules, stage)
        known = history[began : max(began, now - ahead)]
        share = reached(known[-rules.target_steps :]) if target and len(known) >= rules.target_steps else None
        if 0 < steps <= now - began or (share is not None and share >= target):
            stage, began = stage + 1, now
    return stage, began


def reached(history: History) -> float | None:
    """The mean over all questions of some steps."""
    shares = [share for outcomes in history for share in outcomes.values() if share is not None]
    return math.fsum(shares) / len(shares) if shares else None


def mixed(share: float | None) -> float:
    """How mixed answers are: 1 where half are right, 0 where all or none are."""
    return 0.0 if share is None else 4 * share * (1 - share)


def curriculum_metrics(
    rules: CurriculumRules, tasks: Sequence[str], step: int, history: History, ahead: int = 0
) -> dict[str, float]:
    """What is logged of a step, the last of the history. ``tasks`` are names, with which ids begin if there are several."""
    outcomes, before = history[step], {id for earlier in history[:step] for id in earlier}
    metrics: dict[str, float | None] = {}
    for name in tasks if len(tasks) > 1 else ():
        own = {id: share for id, share in outcomes.items() if id.startswith(f"{name}/")}
        metrics |= {f"curriculum/{name}/questions": len(own), f"curriculum/{name}/share": reached([own])}
    if rules.curriculum == "in order":
        stage, began = stage_of(rules, len(tasks), step, history, ahead)
        metrics |= {"curriculum/stage": stage + 1}
        metrics |= {"curriculum/reached": reached(history[began : step + 1][-rules.target_steps :])}
    if rules.curriculum == "adaptive":
        metrics |= {"curriculum/again": sum(id in before for id in outcomes) / max(1, len(outcomes))}
        metrics |= {"curriculum/mixed": sum(mixed(share) > 0 for share in outcomes.values()) / max(1, len(outcomes))}
        metrics |= {"curriculum/seen": len(before | outcomes.keys())}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _ends(rules: CurriculumRules, stage: int) -> tuple[int, float]:
    """After how many steps and at which target a stage ends; 0: not so."""
    return (rules.stage_steps[stage] if rules.stage_steps else 0, rules.stage_targets[stage] if rules.stage_targets else 0.0)


def _parts(
    rules: CurriculumRules, tasks: Sequence[Sequence[str]], batch: int, stage: int
) -> list[tuple[Sequence[str], int]]:
    """The tasks that a batch is of, and how many questions of each: by weight, what is left over to those that lack most."""
    if rules.curriculum == "adaptive":
        return [([id for task in tasks for id in task], batch)]
    if rules.curriculum == "in order":
        return [(tasks[stage], batch)]
    weights = rules.task_weights or (1.0,) * len(tasks)
    exact = [batch * weight / max(math.fsum(weights), 1e-300) for weight in weights]
    parts = [math.floor(part + 1e-9) for part in exact]
    for task in sorted(range(len(tasks)), key=lambda task: parts[task] - exact[task])[: batch - sum(parts)]:
        parts[task] += 1
    return list(zip(tasks, parts, strict=True))


def _adaptive(questions: Sequence[str], count: int, seed: int, step: int, history: History) -> list[str]:
    """Up to half are drawn by how mixed their answers were last time, divided by how often they were asked; the others are
    those that were asked least often.
    """
    times, shares = Counter[str](), dict[str, float | None]()
    for outcomes in history:
        times.update(outcomes.keys())
        shares |= outcomes
    rng = random.Random(f"{seed} adaptive {step}")
    weights = {id: mixed(shares[id]) / times[id] for id in questions if id in shares}
    # The smallest of exponential variables with these rates: a weighted draw without replacement.
    drawn = {id: rng.expovariate(weight) for id, weight in weights.items() if weight > 0}
    again = sorted(drawn, key=drawn.__getitem__)[: count // 2]
    rarest = sorted(epoch_order(questions, seed, 0), key=times.__getitem__)
    return list(dict.fromkeys([*again, *rarest]))[:count]

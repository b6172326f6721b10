"""What an evaluation measured (SPEC 9.1): question by question, and as a result with means, intervals and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peergrad.debate.types import Debate
from peergrad.measure.budget import Cost, affordable, cost
from peergrad.measure.counts import Counts, form_counts, total, vote_counts, winner_is_right
from peergrad.measure.grades import final_grades, share_right, truth, turn_grades, vote_is_right
from peergrad.measure.statistics import Interval, difference, mean, ratio
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import score
from peergrad.tasks.base import Grade, Grader

# What everything is compared with: the best that the same tokens give without debate, where it was measured.
REFERENCES = ("direct/majority", "direct/correct")


@dataclass(frozen=True)
class Outcome:
    """Per question: how right each method is, what it cost, and counts of what else was seen.

    ``values[name][q]`` is in [0, 1], NaN where a question has no value; a name is a way of answering and what is measured
    of it, such as ``debate/winner``. ``tokens`` are of the ways that have a cost of their own. ``counts[name][q]`` is a part
    and a whole, to be summed over questions.
    """

    questions: tuple[str, ...]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tokens: Mapping[str, Sequence[float]] = field(default_factory=dict)
    counts: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


# By question: its debates. Independent answers and lone chains are several to a question, in the order drawn.
Answers = Sequence[Debate]


def direct_outcome(
    ids: Sequence[str], direct: Answers, samples: Sequence[Answers], k: int, grade: Grader, by: Cost
) -> Outcome:
    """The likeliest answer, and the first k of independent ones, if there are any: pass@k, avg@k, cons@k."""
    answers = [[answer] for answer in _last_answers(direct, grade)]
    values = {"direct/correct": list(map(_share, answers)), "direct/format": list(map(_formed, answers))}
    tokens = {"direct/correct": [_tokens([debate], by) for debate in direct]}
    if any(samples):
        drawn = [_last_answers(debates[:k], grade) for debates in samples]
        values |= _at_k(drawn, k, "direct")
        tokens[f"direct/cons@{k}"] = [_tokens(debates[:k], by) for debates in samples]
        answers = [first + more for first, more in zip(answers, drawn, strict=True)]
    return Outcome(tuple(ids), values, tokens, _by_name(map(_late, answers)))


def debate_outcome(
    ids: Sequence[str],
    debates: Answers,
    samples: Sequence[Answers],
    alone: Sequence[Answers],
    grade: Grader,
    by: Cost,
) -> Outcome:
    """The debate after each round and by its votes, beside what the same tokens give without talking to others."""
    graded = list(zip(debates, turn_grades(debates, grade), strict=True))
    values: dict[str, list[float]] = {}
    for rounds in range(1, max((debate.rounds for debate in debates), default=0) + 1):
        values[f"debate/vote_after_round_{rounds}"] = [_vote(final_grades(*one, rounds)) for one in graded]
    final = [final_grades(*one) for one in graded]
    values |= {"debate/correct": list(map(_share, final)), "debate/format": list(map(_formed, final))}
    values |= _at_k(final, len(final[0]) if final else 0, "debate")
    values["debate/winner"], counts = [], list[Counts]()
    for debate, grades in graded:
        scored, right = score(debate), truth(grades)
        values["debate/winner"].append(_or_nan(winner_is_right(scored, right)))
        form = form_counts(scored)
        counts.append(
            vote_counts(scored, right)
            | {name: form[name] for name in ("replies/readable", "replies/truncated", "votes/due_turns_with_vote")}
            | {"votes/debates_with_vote": (float(bool(scored.tally.votes)), 1.0)}
            | _late(grades)
        )
    prices = [_tokens([debate], by) for debate in debates]
    outcome = Outcome(tuple(ids), values, {"debate/correct": prices}, _by_name(counts))
    if not counted(debates):  # nobody counted tokens: nothing can be said about equal cost
        return outcome
    budgets = [int(price) for price in prices]
    majority = _bought_outcome("direct", ids, samples, budgets, grade, by)
    return joined(outcome, majority, _bought_outcome("alone", ids, alone, budgets, grade, by))


def _bought_outcome(
    way: str, ids: Sequence[str], drawn: Sequence[Answers], budgets: Sequence[int], grade: Grader, by: Cost
) -> Outcome:
    """The vote of as many independent answers, or chains of somebody alone, as the debates' tokens buy."""
    prices = [[int(_tokens([one], by)) for one in answers] for answers in drawn]
    bought = [answers[:most] for answers, most in zip(drawn, affordable(prices, budgets), strict=True)]
    values = {f"{way}/majority": [_vote(_last_answers(answers, grade)) for answers in bought]}
    tokens = {f"{way}/majority": [_tokens(answers, by) for answers in bought]}
    return Outcome(tuple(ids), values, tokens, _by_name(_chain_counts(way, answers, grade) for answers in bought))


def seat_outcome(ids: Sequence[str], by_seat: Sequence[Answers], grade: Grader) -> Outcome:
    """The policy in each seat in turn against fixed opponents: ``by_seat[i][q]`` is the debate with the policy in seat i."""
    policy: list[list[float]] = [[] for _ in ids]
    others: list[list[float]] = [[] for _ in ids]
    counts: list[list[Counts]] = [[] for _ in ids]
    for seat, debates in enumerate(by_seat):
        for q, (debate, grades) in enumerate(zip(debates, turn_grades(debates, grade), strict=True)):
            final = final_grades(debate, grades)
            policy[q].append(_share([final[seat]]))
            others[q].append(_share([answer for agent, answer in enumerate(final) if agent != seat]))
            counts[q].append(_late(grades))
            votes = score(debate).tally.votes
            if about := sum(seat in (vote.a, vote.b) and vote.author != seat for vote in votes):
                rate = win_rate(debate.agents, votes)[seat]
                counts[q].append({"role-averaged/votes_won": (rate * about, float(about))})
    values = {"role-averaged/correct": list(map(_mean, policy)), "role-averaged/opponents": list(map(_mean, others))}
    return Outcome(tuple(ids), values, {}, _by_name(map(total, counts)))


def joined(first: Outcome, *others: Outcome) -> Outcome:
    """One outcome of several about the same questions."""
    values, tokens, counts = dict(first.values), dict(first.tokens), dict(first.counts)
    for other in others:
        assert other.questions == first.questions
        values, tokens = values | dict(other.values), tokens | dict(other.tokens)
        for name, more in other.counts.items():
            before = counts.get(name, [(0.0, 0.0)] * len(more))
            counts[name] = [(a + c, b + d) for (a, b), (c, d) in zip(before, more, strict=True)]
    return Outcome(first.questions, values, tokens, counts)


def counted(debates: Answers) -> bool:
    """Whether the engine said of every debate how many tokens it took."""
    return all(cost(debate) is not None for debate in debates)


def result(outcome: Outcome, task: str, hashes: Mapping[str, str]) -> dict[str, Any]:
    """What an evaluation measured, as JSON. ``metrics`` has the names of SPEC 8.3; ``hashes`` are of questions."""
    reference = next((name for name in REFERENCES if name in outcome.values), None)
    others = [name for name in outcome.values if reference and name != reference]
    accuracy = _as_lists({name: mean(values) for name, values in outcome.values.items()})
    pairs = {name: list(zip(*counts, strict=True)) for name, counts in outcome.counts.items() if counts}
    shares = _as_lists({name: ratio(part, whole) for name, (part, whole) in pairs.items()})
    return {
        "task": task,
        "questions": list(outcome.questions),
        "hashes": [hashes[name] for name in outcome.questions],
        "reference": reference,
        "metrics": {_metric(name, task): value for name, (value, *_) in accuracy.items()},
        "accuracy": accuracy,
        "difference": _as_lists(
            {name: difference(outcome.values[name], outcome.values[reference or ""]) for name in others}
        ),
        "tokens": {name: sum(values) / len(values) for name, values in outcome.tokens.items()},
        "shares": {name: [*share, sum(pairs[name][1])] for name, share in shares.items()},
        "values": {name: [v if math.isfinite(v) else None for v in values] for name, values in outcome.values.items()},
        "counts": {name: [list(pair) for pair in counts] for name, counts in outcome.counts.items()},
    }


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two results side by side, question by question: what both measured, over the questions both asked.

    A question is the same if its name, its words and its answer are.
    """
    asked = set(zip(second["questions"], second["hashes"], strict=True))
    shared = [name for name, sum_ in zip(first["questions"], first["hashes"], strict=True) if (name, sum_) in asked]
    rows: dict[str, Any] = {}
    for name in first["values"]:
        if name in second["values"]:
            a, b = (_over(result, name, shared) for result in (first, second))
            intervals = _as_lists({"first": mean(a), "second": mean(b), "difference": difference(b, a)})
            if len(intervals) == 3:
                pairs = list(zip(a, b, strict=True))  # NaN is neither better nor worse
                rows[name] = intervals | {"better": sum(y > x for x, y in pairs), "worse": sum(y < x for x, y in pairs)}
    return {"questions": shared, "rows": rows}


def _over(result: Mapping[str, Any], name: str, questions: Sequence[str]) -> list[float]:
    at = dict(zip(result["questions"], result["values"][name], strict=True))
    return [_or_nan(at[question]) for question in questions]


def _metric(name: str, task: str) -> str:
    """``debate/winner`` of gsm8k is ``eval/debate/gsm8k/winner``."""
    way, _, what = name.partition("/")
    return f"eval/{way}/{task}/{what}"


def _as_lists(intervals: Mapping[str, Interval | None]) -> dict[str, Any]:
    """Those that there are, as JSON knows them."""
    return {name: [one.value, one.low, one.high] for name, one in intervals.items() if one}


def _last_answers(debates: Answers, grade: Grader) -> list[Grade]:
    """The final answer of each debate of one agent."""
    return [final_grades(debate, grades)[0] for debate, grades in zip(debates, turn_grades(debates, grade), strict=True)]


def _chain_counts(way: str, chains: Answers, grade: Grader) -> Counts:
    """Right→wrong and wrong→right of somebody who sees only itself, and what could not be graded in time."""
    graded = list(zip(chains, turn_grades(chains, grade), strict=True))
    counts = total(vote_counts(score(chain), truth(grades)) for chain, grades in graded)
    flips = {f"{way}/{name}": count for name, count in counts.items() if name.startswith("flips/")}
    return flips | total(_late(grades) for _, grades in graded)


def _late(answers: Sequence[Grade]) -> Counts:
    return {"grading/timed_out": (float(sum(answer.timed_out for answer in answers)), float(len(answers)))}


def _by_name(by_question: Iterable[Counts]) -> dict[str, list[tuple[float, float]]]:
    questions = list(by_question)
    names = sorted({name for counts in questions for name in counts})
    return {name: [counts.get(name, (0.0, 0.0)) for counts in questions] for name in names}


def _at_k(drawn: Sequence[Sequence[Grade]], k: int, way: str) -> dict[str, list[float]]:
    return {
        f"{way}/pass@{k}": [_known(answers, float(any(answer.correct for answer in answers))) for answers in drawn],
        f"{way}/avg@{k}": list(map(_share, drawn)),
        f"{way}/cons@{k}": list(map(_vote, drawn)),
    }


def _formed(answers: Sequence[Grade]) -> float:
    return _known(answers, sum(answer.format for answer in answers) / max(1, len(answers)))


def _vote(answers: Sequence[Grade]) -> float:
    return _known(answers, vote_is_right(answers))


def _known(answers: Sequence[Grade], value: float) -> float:
    """A value of some answers, unless none of them could be graded in time."""
    return math.nan if answers and all(answer.timed_out for answer in answers) else value


def _share(answers: Sequence[Grade]) -> float:
    return _or_nan(share_right(answers))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _tokens(debates: Answers, by: Cost) -> float:
    return float(sum(cost(debate, by) or 0 for debate in debates))

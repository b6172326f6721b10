"""What an evaluation found, question by question (SPEC 9.1): what tables, intervals and comparisons are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from peergrad.debate.types import Debate
from peergrad.measure.answers import share_right, vote_is_right
from peergrad.measure.batch import Counts, total
from peergrad.measure.budget import Cost, affordable, cost
from peergrad.measure.debates import form_counts
from peergrad.measure.grades import final_grades, truth, turn_grades
from peergrad.measure.quality import vote_counts, winner_is_right
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored, score
from peergrad.tasks.base import Grade, Grader


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
    greedy = _last_answers(direct, grade)
    values = {"direct/correct": [_share([answer]) for answer in greedy], "direct/format": _formed([[a] for a in greedy])}
    tokens = {"direct/correct": [_tokens([debate], by) for debate in direct]}
    counts = [_late([answer]) for answer in greedy]
    if any(samples):
        drawn = [_last_answers(answers[:k], grade) for answers in samples]
        values |= _at_k(drawn, k, "direct")
        tokens[f"direct/cons@{k}"] = [_tokens(answers[:k], by) for answers in samples]
        counts = [_late([answer, *answers]) for answer, answers in zip(greedy, drawn, strict=True)]
    return Outcome(tuple(ids), values, tokens, _counts(counts))


def debate_outcome(
    ids: Sequence[str],
    debates: Answers,
    samples: Sequence[Answers],
    alone: Sequence[Answers],
    grade: Grader,
    by: Cost,
) -> Outcome:
    """The debate after each round and by its votes, beside what the same tokens give without talking to others."""
    scored = [score(debate) for debate in debates]
    graded = turn_grades(debates, grade)
    truths = [truth(given) for given in graded]
    rounds = max((debate.rounds for debate in debates), default=0)
    values: dict[str, list[float]] = {}
    for round_ in range(rounds):
        values[f"debate/vote_after_round_{round_ + 1}"] = [
            _vote(final_grades(debate, given, round_ + 1)) for debate, given in zip(debates, graded, strict=True)
        ]
    final = [final_grades(debate, given) for debate, given in zip(debates, graded, strict=True)]
    values |= {"debate/correct": [_share(answers) for answers in final], "debate/format": _formed(final)}
    values |= _at_k(final, len(final[0]) if final else 0, "debate")
    won = [winner_is_right(one, right) for one, right in zip(scored, truths, strict=True)]
    values["debate/winner"] = [float("nan") if one is None else one for one in won]
    budgets = [int(_tokens([debate], by)) for debate in debates] if counted(debates) else None
    tokens = {"debate/correct": [_tokens([debate], by) for debate in debates]}
    counts = [
        dict(vote_counts(one, right)) | _form_counts(one) | _late(given)
        for one, right, given in zip(scored, truths, graded, strict=True)
    ]
    made = Outcome(tuple(ids), values, tokens, _counts(counts))
    if budgets is None:  # nobody counted tokens: nothing can be said about equal cost
        return made
    majority = _bought_outcome("direct", ids, samples, budgets, grade, by)
    return joined(made, majority, _bought_outcome("alone", ids, alone, budgets, grade, by))


def _bought_outcome(
    way: str, ids: Sequence[str], drawn: Sequence[Answers], budgets: Sequence[int], grade: Grader, by: Cost
) -> Outcome:
    """The vote of as many independent answers, or chains of somebody alone, as the debates' tokens buy."""
    prices = [[int(_tokens([one], by)) for one in answers] for answers in drawn]
    bought = [answers[:most] for answers, most in zip(drawn, affordable(prices, budgets), strict=True)]
    values = {f"{way}/majority": [_vote(_last_answers(answers, grade)) for answers in bought]}
    tokens = {f"{way}/majority": [_tokens(answers, by) for answers in bought]}
    return Outcome(tuple(ids), values, tokens, _counts([_chain_counts(way, answers, grade) for answers in bought]))


def seat_outcome(ids: Sequence[str], by_seat: Sequence[Answers], grade: Grader) -> Outcome:
    """The policy in each seat in turn against fixed opponents: ``by_seat[i][q]`` is the debate with the policy in seat i."""
    policy: list[list[float]] = [[] for _ in ids]
    others: list[list[float]] = [[] for _ in ids]
    won: list[dict[str, tuple[float, float]]] = [{} for _ in ids]
    late: list[list[Grade]] = [[] for _ in ids]
    for seat, debates in enumerate(by_seat):
        for q, (debate, given) in enumerate(zip(debates, turn_grades(debates, grade), strict=True)):
            final = final_grades(debate, given)
            policy[q].append(_share([final[seat]]))
            others[q].append(_share([answer for agent, answer in enumerate(final) if agent != seat]))
            late[q] += given
            tallied = score(debate).tally
            about = [vote for vote in tallied.votes if seat in (vote.a, vote.b) and vote.author != seat]
            if about:
                before = won[q].get("role-averaged/votes_won", (0.0, 0.0))
                rate = win_rate(debate.agents, tallied.votes)[seat]
                won[q]["role-averaged/votes_won"] = before[0] + rate * len(about), before[1] + len(about)
    values = {
        "role-averaged/correct": [_mean(one) for one in policy],
        "role-averaged/opponents": [_mean(one) for one in others],
    }
    return Outcome(tuple(ids), values, {}, _counts([one | _late(given) for one, given in zip(won, late, strict=True)]))


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


def _last_answers(debates: Answers, grade: Grader) -> list[Grade]:
    """The final answer of each debate of one agent."""
    return [final_grades(debate, given)[0] for debate, given in zip(debates, turn_grades(debates, grade), strict=True)]


def _form_counts(scored: Scored) -> dict[str, tuple[float, float]]:
    counts = form_counts(scored)
    names = ("replies/readable", "replies/truncated", "votes/due_turns_with_vote")
    return {name: counts[name] for name in names} | {"votes/debates_with_vote": (float(bool(scored.tally.votes)), 1.0)}


def _chain_counts(way: str, chains: Answers, grade: Grader) -> Counts:
    """Right→wrong and wrong→right of somebody who sees only itself, and what could not be graded in time."""
    graded = list(zip(chains, turn_grades(chains, grade), strict=True))
    counts = total(vote_counts(score(chain), truth(grades)) for chain, grades in graded)
    flips = {f"{way}/{name}": count for name, count in counts.items() if name.startswith("flips/")}
    return flips | dict(total(_late(grades) for _, grades in graded))


def _late(given: Sequence[Grade]) -> dict[str, tuple[float, float]]:
    return {"grading/timed_out": (float(sum(answer.timed_out for answer in given)), float(len(given)))}


def _counts(by_question: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    names = sorted({name for counted in by_question for name in counted})
    return {name: [counted.get(name, (0.0, 0.0)) for counted in by_question] for name in names}


def _at_k(answers: Sequence[Sequence[Grade]], k: int, way: str) -> dict[str, list[float]]:
    return {
        f"{way}/pass@{k}": [_known(given, float(any(answer.correct for answer in given))) for given in answers],
        f"{way}/avg@{k}": [_share(given) for given in answers],
        f"{way}/cons@{k}": [_vote(given) for given in answers],
    }


def _formed(answers: Sequence[Sequence[Grade]]) -> list[float]:
    return [_known(given, sum(answer.format for answer in given) / max(1, len(given))) for given in answers]


def _vote(answers: Sequence[Grade]) -> float:
    return _known(answers, vote_is_right(answers))


def _known(answers: Sequence[Grade], value: float) -> float:
    """A value that answers give, unless none of them could be graded in time."""
    return float("nan") if answers and all(answer.timed_out for answer in answers) else value


def _share(answers: Sequence[Grade]) -> float:
    share = share_right(answers)
    return float("nan") if share is None else share


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


def _tokens(debates: Answers, by: Cost = "processed") -> float:
    return float(sum(cost(debate, by) or 0 for debate in debates))

"""What an evaluation found, question by question (SPEC 9.1): the values that tables, intervals and comparisons are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from peergrad.debate.types import Debate
from peergrad.measure.budget import Cost, affordable, cost
from peergrad.measure.grades import Grader, final_grades, truth, turn_grades
from peergrad.measure.metrics import share_right, vote_is_right
from peergrad.measure.quality import vote_counts, winner_is_right
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored, score
from peergrad.reward.tally import vote_due
from peergrad.tasks.base import Grade


@dataclass(frozen=True)
class Outcome:
    """Per question: how right each method is, what it cost, and counts of what else was seen.

    ``values[name][q]`` is in [0, 1], NaN where a question has no value. ``tokens`` are of the methods that have a cost of
    their own. ``counts[name][q]`` is a part and a whole, to be summed over questions.
    """

    questions: tuple[str, ...]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tokens: Mapping[str, Sequence[float]] = field(default_factory=dict)
    counts: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


# By question: its debates. Independent answers and lone chains are several to a question, in the order drawn.
Answers = Sequence[Debate]


def direct_outcome(ids: Sequence[str], direct: Answers, samples: Sequence[Answers], k: int, grade: Grader) -> Outcome:
    """The likeliest answer, and k independent ones: pass@k, avg@k, cons@k."""
    greedy = _last_answers(direct, grade)
    drawn = [_last_answers(answers[:k], grade) for answers in samples]
    values = {
        "direct": [_share([answer]) for answer in greedy],
        f"pass@{k}": [float(any(answer.correct for answer in answers)) for answers in drawn],
        f"avg@{k}": [_share(answers) for answers in drawn],
        f"cons@{k}": [vote_is_right(answers) for answers in drawn],
    }
    tokens = {
        "direct": [_tokens([debate]) for debate in direct],
        f"cons@{k}": [_tokens(answers[:k]) for answers in samples],
    }
    counts = _counts([_late([first, *answers]) for first, answers in zip(greedy, drawn, strict=True)])
    return Outcome(tuple(ids), values, tokens, counts)


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
    rounds = max((-(-len(debate.turns) // debate.agents) for debate in debates), default=0)
    values: dict[str, list[float]] = {}
    for round_ in range(rounds):
        values[f"vote after round {round_ + 1}"] = [
            vote_is_right(final_grades(debate, given, round_ + 1)) for debate, given in zip(debates, graded, strict=True)
        ]
    final = [final_grades(debate, given) for debate, given in zip(debates, graded, strict=True)]
    values["an agent at the end"] = [_share(answers) for answers in final]
    values["winner by votes"] = [winner_is_right(one, right) for one, right in zip(scored, truths, strict=True)]
    budgets = [int(_tokens([debate], by)) for debate in debates] if all_counted(debates) else None
    tokens = {"debate": [_tokens([debate], by) for debate in debates]}
    for name, drawn in (("majority vote, equal cost", samples), ("self-correction, equal cost", alone)):
        if budgets is None:  # nobody counted tokens: nothing can be said about equal cost
            continue
        prices = [[int(_tokens([one], by)) for one in answers] for answers in drawn]
        bought = [answers[:most] for answers, most in zip(drawn, affordable(prices, budgets), strict=True)]
        values[name] = [vote_is_right(_last_answers(answers, grade)) for answers in bought]
        tokens[name] = [_tokens(answers, by) for answers in bought]
    counts = _counts(
        [
            dict(vote_counts(one, right)) | _form_counts(one) | _late(given)
            for one, right, given in zip(scored, truths, graded, strict=True)
        ]
    )
    counts |= {f"alone/{name}": made for name, made in _counts([_flips(answers, grade) for answers in alone]).items()}
    return Outcome(tuple(ids), values, tokens, counts)


def seat_outcome(ids: Sequence[str], by_seat: Sequence[Answers], grade: Grader) -> Outcome:
    """The policy in each seat in turn against fixed opponents: ``by_seat[i][q]`` is the debate with the policy in seat i."""
    policy: list[list[float]] = [[] for _ in ids]
    others: list[list[float]] = [[] for _ in ids]
    won: list[dict[str, tuple[float, float]]] = [{} for _ in ids]
    for seat, debates in enumerate(by_seat):
        for q, (debate, given) in enumerate(zip(debates, turn_grades(debates, grade), strict=True)):
            final = final_grades(debate, given)
            policy[q].append(_share([final[seat]]))
            others[q].append(_share([answer for agent, answer in enumerate(final) if agent != seat]))
            tallied = score(debate).tally
            about = [vote for vote in tallied.votes if seat in (vote.a, vote.b) and vote.author != seat]
            if about:
                before = won[q].get("votes/won_by_policy", (0.0, 0.0))
                rate = win_rate(debate.agents, tallied.votes)[seat]
                won[q]["votes/won_by_policy"] = before[0] + rate * len(about), before[1] + len(about)
    values = {"policy, over all seats": [_mean(one) for one in policy], "opponents": [_mean(one) for one in others]}
    return Outcome(tuple(ids), values, {}, _counts(won))


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


def all_counted(debates: Answers) -> bool:
    """Whether the engine said of every debate how many tokens it took."""
    return all(cost(debate) is not None for debate in debates)


def _last_answers(debates: Answers, grade: Grader) -> list[Grade]:
    """The final answer of each debate of one agent."""
    return [final_grades(debate, given)[0] for debate, given in zip(debates, turn_grades(debates, grade), strict=True)]


def _form_counts(scored: Scored) -> dict[str, tuple[float, float]]:
    debate = scored.debate
    voters = {vote.turn for vote in scored.tally.votes if vote.judged}
    due = [index in voters for index, turn in enumerate(debate.turns) if vote_due(debate, turn)]
    readable = sum(turn.parsed.error is None for turn in debate.turns)
    return {
        "replies/readable": (float(readable), float(len(debate.turns))),
        "replies/truncated": (float(sum(turn.truncated for turn in debate.turns)), float(len(debate.turns))),
        "votes/due_turns_with_vote": (float(sum(due)), float(len(due))),
        "votes/debates_with_vote": (float(bool(scored.tally.votes)), 1.0),
    }


def _flips(chains: Answers, grade: Grader) -> dict[str, tuple[float, float]]:
    """Right→wrong and wrong→right of somebody who sees only itself."""
    total: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for chain, given in zip(chains, turn_grades(chains, grade), strict=True):
        for name, (part, whole) in vote_counts(score(chain), truth(given)).items():
            if name.startswith("flips/"):
                total[name] = total[name][0] + part, total[name][1] + whole
    return dict(total)


def _late(given: Sequence[Grade]) -> dict[str, tuple[float, float]]:
    return {"grading/timed_out": (float(sum(answer.timed_out for answer in given)), float(len(given)))}


def _counts(by_question: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    names = sorted({name for counted in by_question for name in counted})
    return {name: [counted.get(name, (0.0, 0.0)) for counted in by_question] for name in names}


def _share(answers: Sequence[Grade]) -> float:
    share = share_right(answers)
    return float("nan") if share is None else share


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


def _tokens(debates: Answers, by: Cost = "processed") -> float:
    return float(sum(cost(debate, by) or 0 for debate in debates))

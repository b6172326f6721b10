"""What an evaluation measured (SPEC 9.1): question by question, what answers cost, and as a result with intervals."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from peergrad.debate.types import Debate
from peergrad.measure.counts import (
    AT_K,
    Counts,
    bias_counts,
    diversity,
    final_answers,
    final_diversity,
    final_grades,
    form_counts,
    share_right,
    total,
    turn_grades,
    vote_counts,
    vote_is_right,
    winner_is_right,
)
from peergrad.measure.statistics import Interval, difference, mean, ratio
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored, score
from peergrad.reward.tally import Vote, tally
from peergrad.tasks.base import Grade, Grader

# What everything is compared with: the best that the same tokens give without debate, where it was measured.
REFERENCES = ("direct/majority", "direct/correct")

Cost = Literal["processed", "sampled"]
Debates = Sequence[Debate]
"""One about each question; or several about one question, in the order drawn."""
Values = list[float | None]
"""By question, from 0 to 1; ``None`` where a question has no value."""


@dataclass(frozen=True)
class Outcome:
    """Per question: how right each way of answering is, what it cost, and counts of what else was seen.

    A name in ``values`` is a way of answering and what is measured of it, such as ``debate/winner``. ``tokens`` are of the
    ways that have a cost of their own. ``counts[q]`` are those of question q.
    """

    questions: tuple[str, ...]
    values: Mapping[str, Values]
    tokens: Mapping[str, Sequence[int]]
    counts: Sequence[Counts]


def direct_outcome(
    ids: Sequence[str], direct: Debates, samples: Sequence[Debates], k: int, grade: Grader, by: Cost
) -> Outcome:
    """The likeliest answer, and the first k of independent ones, if there are any: pass@k, avg@k, cons@k."""
    answers = final_answers(direct, grade)
    values = {"direct/correct": list(map(share_right, answers)), "direct/format": _each(_share_found, answers)}
    tokens = {"direct/correct": [_tokens([debate], by) for debate in direct]}
    apart: list[Counts] = [{}] * len(ids)
    if any(samples):
        drawn = [[answer for (answer, *_) in final_answers(debates[:k], grade)] for debates in samples]
        values |= _at_k(drawn, k, "direct")
        tokens[f"direct/cons@{k}"] = [_tokens(debates[:k], by) for debates in samples]
        answers = [first + more for first, more in zip(answers, drawn, strict=True)]
        texts = [[debate.turns[0].text for debate in debates[:k]] for debates in samples]
        apart = [{"diversity/direct": diversity(one.question, said)} for one, said in zip(direct, texts, strict=True)]
    return Outcome(tuple(ids), values, tokens, [_timed_out(one) | more for one, more in zip(answers, apart, strict=True)])


def debate_outcome(
    ids: Sequence[str], debates: Debates, samples: Sequence[Debates], alone: Sequence[Debates], grade: Grader, by: Cost
) -> Outcome:
    """The debate after each round and by its votes, beside what the same tokens give without talking to others."""
    graded = list(zip(debates, turn_grades(debates, grade), strict=True))
    final = [final_grades(*one) for one in graded]
    rounds = sorted({turn.round + 1 for debate in debates for turn in debate.turns if turn.asked_to_answer})
    values = {
        f"debate/vote_after_round_{after}": _each(vote_is_right, [final_grades(*one, after) for one in graded])
        for after in rounds
    }
    values |= {"debate/correct": list(map(share_right, final)), "debate/format": _each(_share_found, final)}
    for k in sorted({*map(len, final)}):  # debates may differ in their agents: a question has a value for its own k
        values |= _at_k([answers if len(answers) == k else None for answers in final], k, "debate")
    winners, counts = Values(), list[Counts]()
    for debate, grades in graded:
        scored = score(debate)
        winners.append(winner_is_right(scored, grades))
        counts.append(vote_counts(scored, grades) | _said(scored) | _timed_out(grades))
    prices = [_tokens([debate], by) for debate in debates]
    outcome = Outcome(tuple(ids), values | {"debate/winner": winners}, {"debate/correct": prices}, counts)
    if not counted(debates):  # nobody counted tokens: nothing can be said about equal cost
        return outcome
    majority = _bought_outcome("direct", ids, samples, prices, grade, by)
    others = [_bought_outcome("alone", ids, alone, prices, grade, by)] if any(alone) else []
    return joined(outcome, majority, *others)


def _said(scored: Scored) -> Counts:
    """What is counted in a debate whether or not anybody knows what is right."""
    form = form_counts(scored)
    return (
        {name: form[name] for name in ("replies/readable", "replies/truncated", "votes/due_turns_with_vote")}
        | {"votes/debates_with_vote": (float(bool(scored.tally.votes)), 1.0)}
        | {"diversity/debate": final_diversity(scored.debate)}
        | bias_counts(scored)
    )


def _bought_outcome(
    way: str, ids: Sequence[str], drawn: Sequence[Debates], budgets: Sequence[int], grade: Grader, by: Cost
) -> Outcome:
    """The vote of as many independent answers, or chains of somebody alone, as the debates' tokens buy."""
    prices = [[_tokens([one], by) for one in answers] for answers in drawn]
    bought = [answers[:most] for answers, most in zip(drawn, affordable(prices, budgets), strict=True)]
    tokens = [_tokens(answers, by) for answers in bought]
    answers, counts = list[list[Grade]](), list[Counts]()
    for chains in bought:  # right→wrong and wrong→right of somebody who sees only itself, and what was not graded in time
        graded = list(zip(chains, turn_grades(chains, grade), strict=True))
        answers.append([final_grades(*one)[0] for one in graded])
        flips = total(vote_counts(score(chain), grades) for chain, grades in graded)
        flips = {f"{way}/{name}": count for name, count in flips.items() if name.startswith("flips/")}
        counts.append(flips | total(_timed_out(grades) for _, grades in graded))
    return Outcome(tuple(ids), {f"{way}/majority": _each(vote_is_right, answers)}, {f"{way}/majority": tokens}, counts)


def seat_outcome(ids: Sequence[str], by_seat: Sequence[Debates], grade: Grader | None) -> Outcome:
    """The policy in each seat in turn against fixed opponents: ``by_seat[i][q]`` is the debate with the policy in seat i.

    Without a grader, as nobody knows what is right, its win rate by their votes is all there is.
    """
    counts: list[Counts] = []
    for seats in zip(*by_seat, strict=True):
        seen: list[Counts] = []
        for seat, scored in enumerate(map(score, seats)):
            votes = scored.tally.votes  # of the others' votes about the policy, those that it won
            about = float(sum(seat in (vote.a, vote.b) and vote.author != seat for vote in votes))
            won = win_rate(scored.debate.agents, votes)[seat] * about if about else 0.0
            seen += [_said(scored), {"role-averaged/votes_won": (won, about)}]
        counts.append(total(seen))
    if grade is None:
        about = [one["role-averaged/votes_won"] for one in counts]
        rates = {"role-averaged/win_rate": [won / votes if votes else None for won, votes in about]}
        return Outcome(tuple(ids), rates, {}, counts)
    policy, others, graded = Values(), Values(), [turn_grades(debates, grade) for debates in by_seat]
    for question, by_question in enumerate(zip(*graded, strict=True)):
        final = [final_grades(debates[question], grades) for debates, grades in zip(by_seat, by_question, strict=True)]
        policy.append(share_right([one for seat, answers in enumerate(final) for one in answers[seat : seat + 1]]))
        rest = [one for seat, answers in enumerate(final) for one in answers[:seat] + answers[seat + 1 :]]
        others.append(share_right(rest))
        counts[question] = total([counts[question], *map(_timed_out, by_question)])
    return Outcome(tuple(ids), {"role-averaged/correct": policy, "role-averaged/opponents": others}, {}, counts)


def pair_outcome(ids: Sequence[str], pairs: Debates) -> Outcome:
    """Two models' answers head to head (SPEC 9.10): which is better by their own votes, and by a judge's."""
    values: dict[str, Values] = {f"head-to-head/{name}": [] for name in ("votes", "votes_of_model", "votes_of_opponent")}
    if any(debate.agents > 2 for debate in pairs):
        values["head-to-head/judge"] = []
    counts: list[Counts] = []
    for debate in pairs:
        votes = tally(debate, self_votes="keep").votes
        ballots = [[vote for vote in votes if vote.author == voter] for voter in range(debate.agents)]
        model, opponent, *judge = map(_verdict, ballots)
        both = None if model is None or opponent is None else (model + opponent) / 2
        for name, value in zip(values, (both, model, opponent, *judge), strict=True):
            values[name].append(value)
        own = [] if both is None or model is None or opponent is None else [model, 1 - opponent]
        answers = [turn for turn in debate.turns if turn.asked_to_answer]
        judged = {f"judge/{name}": count for name, count in _ballot_counts(debate, ballots[2:]).items()}
        counts.append(
            _ballot_counts(debate, ballots[:2])
            | judged
            | {"bias/own": (sum(own), float(len(own)))}
            | {"replies/truncated": (float(sum(turn.truncated for turn in answers)), float(len(answers)))}
            | {"diversity/pair": diversity(debate.question, [turn.text for turn in answers])}
        )
    return Outcome(tuple(ids), values, {}, counts)


def _verdict(votes: Sequence[Vote]) -> float | None:
    """Whether a voter finds agent 0's answer better over both orders, a tie being half; ``None`` unless both can be read."""
    if len(votes) != 2:
        return None
    lead = sum(vote.value(0) for vote in votes)
    return 0.5 if lead == 0 else float(lead > 0)


def _ballot_counts(debate: Debate, ballots: Sequence[Sequence[Vote]]) -> Counts:
    """How many ballots can be read, how often the order decided, and what they favour: the first shown, the longer."""
    shares: dict[str, list[float]] = {"votes/read": [], "votes/order_decided": [], "bias/first": [], "bias/longer": []}
    for votes in ballots:
        shares["votes/read"] += [1.0] * len(votes) + [0.0] * (2 - len(votes))
        if len(votes) == 2:
            shares["votes/order_decided"].append(float(votes[0].value(0) * votes[1].value(0) < 0))
        for vote in votes:
            first = debate.turns[vote.turn].candidates[0] == (vote.a,)
            shares["bias/first"].append(0.5 if vote.tied else float(first))
            winner, loser = (len(debate.turns[index].text) for index in vote.judged or (0, 0))
            if winner != loser and not vote.tied:
                shares["bias/longer"].append(float(winner > loser))
    return {name: (sum(values), float(len(values))) for name, values in shares.items()}


def joined(first: Outcome, *others: Outcome) -> Outcome:
    """One outcome of several about the same questions."""
    for other in others:
        assert other.questions == first.questions
        counts = [total(pair) for pair in zip(first.counts, other.counts, strict=True)]
        first = Outcome(first.questions, {**first.values, **other.values}, {**first.tokens, **other.tokens}, counts)
    return first


def counted(debates: Debates) -> bool:
    """Whether the engine said of every debate how many tokens it took."""
    return all(cost(debate) is not None for debate in debates)


def result(outcome: Outcome, task: str, hashes: Mapping[str, str]) -> dict[str, Any]:
    """What an evaluation measured, as JSON. ``metrics`` has the names of SPEC 8.3; ``hashes`` are of questions."""
    values, reference = outcome.values, next((name for name in REFERENCES if name in outcome.values), None)
    against = {name: difference(values[name], values[reference]) for name in values if reference and name != reference}
    accuracy = _as_lists({name: mean(by_question) for name, by_question in values.items()})
    names = sorted({name for counts in outcome.counts for name in counts})
    counts = {name: [list(by_name.get(name, (0.0, 0.0))) for by_name in outcome.counts] for name in names}
    shares = _as_lists({name: ratio(*zip(*pairs, strict=True)) for name, pairs in counts.items()})
    return {
        "task": task,
        "questions": list(outcome.questions),
        "hashes": [hashes[name] for name in outcome.questions],
        "reference": reference,
        # ``debate/winner`` of gsm8k is ``eval/debate/gsm8k/winner``.
        "metrics": {f"eval/{name.replace('/', f'/{task}/', 1)}": value for name, (value, *_) in accuracy.items()},
        "accuracy": accuracy,
        "difference": _as_lists(against),
        "tokens": {name: sum(tokens) / len(tokens) for name, tokens in outcome.tokens.items()},
        "shares": {name: [*share, sum(whole for _, whole in counts[name])] for name, share in shares.items()},
        "values": values,
        "counts": counts,
    }


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two results side by side: what both measured, over the questions (by name, words and answer) that both asked."""
    asked = set(zip(second["questions"], second["hashes"], strict=True))
    shared = [name for name, hashed in zip(first["questions"], first["hashes"], strict=True) if (name, hashed) in asked]
    rows: dict[str, Any] = {}
    for name in first["values"]:
        if name in second["values"]:
            by_name = (dict(zip(one["questions"], one["values"][name], strict=True)) for one in (first, second))
            a, b = ([values[question] for question in shared] for values in by_name)
            intervals = _as_lists({"first": mean(a), "second": mean(b), "difference": difference(b, a)})
            if len(intervals) == 3:
                pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
                rows[name] = intervals | {"better": sum(y > x for x, y in pairs), "worse": sum(y < x for x, y in pairs)}
    return {"questions": shared, "rows": rows}


def _as_lists(intervals: Mapping[str, Interval | None]) -> dict[str, Any]:
    """Those that there are, as JSON knows them."""
    return {name: [one.value, one.low, one.high] for name, one in intervals.items() if one}


def _timed_out(answers: Sequence[Grade]) -> Counts:
    return {"grading/timed_out": (float(sum(answer.timed_out for answer in answers)), float(len(answers)))}


def _at_k(drawn: Sequence[Sequence[Grade] | None], k: int, way: str) -> dict[str, Values]:
    return {f"{way}/{name}@{k}": _each(measure, drawn) for name, measure in AT_K.items()}


def _each(measure: Callable[[Sequence[Grade]], float | None], by_question: Sequence[Sequence[Grade] | None]) -> Values:
    """A value for each question with answers, unless none of them could be graded in time."""
    late = [one is None or (bool(one) and all(answer.timed_out for answer in one)) for one in by_question]
    return [None if nobody_knows else measure(one or ()) for nobody_knows, one in zip(late, by_question, strict=True)]


def _share_found(answers: Sequence[Grade]) -> float:
    return sum(answer.format for answer in answers) / max(1, len(answers))


def _tokens(debates: Debates, by: Cost) -> int:
    return sum(cost(debate, by) or 0 for debate in debates)


# Equal cost: what a debate took in tokens, and how many independent answers the same tokens buy


def cost(debate: Debate, by: Cost = "processed") -> int | None:
    """The tokens a debate took; ``None`` if its engine did not count them.

    ``sampled`` counts replies alone. ``processed`` counts prompts as well, each token once where it is computed once: the
    prompts of a parallel agent are one growing dialogue, so its last prompt and reply hold all there was. Prompts of
    different agents, of sequential turns and of independent answers are counted in full, each by itself.
    """
    used = [turn.used for turn in debate.turns]
    if any(one is None for one in used):
        return None
    if by == "sampled":
        return sum(one.sampled for one in used if one)
    if debate.protocol.one_dialogue:
        used = {turn.agent: one for turn, one in zip(debate.turns, used, strict=True)}.values()
    return sum(one.prompt + one.sampled for one in used if one)


def draws(spent: Sequence[Sequence[int]], budgets: Sequence[int], least: int) -> list[int]:
    """How many more answers to draw to each question, given what those drawn so far cost; all 0 when there are enough.

    At least ``least`` answers to a question are drawn, and then until they cost what may be spent on it. Most of what is
    left is drawn at once, and the last ones one by one, so that few are drawn in vain.
    """
    drawn = [price for prices in spent for price in prices]
    usual = sum(drawn) / len(drawn) if drawn else None
    more: list[int] = []
    for prices, budget in zip(spent, budgets, strict=True):
        missing = least - len(prices)
        left = budget - sum(prices)
        if left > 0 and usual:
            price = sum(prices) / len(prices) if prices else usual
            missing = max(missing, 1, int(0.8 * left / max(price, 1.0)))
        more.append(max(missing, 0))
    return more


def affordable(spent: Sequence[Sequence[int]], budgets: Sequence[int]) -> list[int]:
    """How many of the answers drawn to each question count, in the order drawn, at least one.

    The number whose cost comes closest; what was spent too much or too little is made up for at the next question, so that
    over all questions the cost differs by less than one answer's.
    """
    counted: list[int] = []
    carried = 0
    for prices, budget in zip(spent, budgets, strict=True):
        sums = list(accumulate(prices))
        target = budget + carried
        after = min(bisect.bisect_left(sums, target), len(sums) - 1)
        best = min(after, max(after - 1, 0), key=lambda index: abs(sums[index] - target))
        counted.append(best + 1)
        carried = target - sums[best]
    return counted

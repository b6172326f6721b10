"""The one shape of reward; separate rewards for generating, judging and form, one value per turn (SPEC 4.5 to 4.12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from peergrad.debate.types import Debate, Turn
from peergrad.reward.tally import Tally, Vote

Consensus = Literal["all", "others"]
Form = Literal["graded", "literal"]
Unjudged = Literal["skip", "literal"]
Voices = Literal["agents", "votes"]

_TOLERATED, _UNREADABLE, _NO_VOTE, _NO_ANSWER = -0.1, -1.0, -0.5, -0.5


@dataclass(frozen=True, slots=True)
class Stream:
    """One reward signal: a value per unit, and which of the unit's sections it is credited to.

    ``None`` is a unit without signal: left out of every mean, advantage 0. ``sections=None`` credits all tokens.
    ``votes[u]`` are the indices (in the tally) of the votes that made unit u's value (SPEC 4.9). ``follows`` is what the
    stream should reward, where the truth is known: a right ``solution``, or ``votes`` for who is right. Training never asks;
    ``peergrad rescore`` and ``check`` measure it.
    """

    name: str
    unit: Literal["agent", "turn"]
    values: tuple[float | None, ...]
    sections: tuple[str, ...] | None = None
    weight: float = 1.0
    votes: tuple[tuple[int, ...], ...] = ()
    follows: Literal["solution", "votes"] | None = None


def soft_vote_ratio(debate: Debate, tallied: Tally, *, unjudged: Unjudged = "skip", weight: float = 1.0) -> Stream:
    """Generator reward: how far the votes that judge a turn are for it, from -1 to +1; a tie is half for, half against."""
    by_turn = _judging(debate, tallied.all_votes)
    nobody = None if unjudged == "skip" else -1.0
    weighed = [[(value, tallied.weight(index)) for index, value in judging] for judging in by_turn]
    values = tuple(weighted_mean(judging) if judging else nobody for judging in weighed)
    why = tuple(tuple(index for index, _ in judging) for judging in by_turn)
    return Stream("gen", "turn", values, ("solution", "evaluation"), weight, why, "solution")


def borda(debate: Debate, tallied: Tally, *, pool_equal: bool, weight: float = 1.0) -> Stream:
    """Reward of an answer: its wins less its losses among the answers of a ballot, from -1 to +1, as a mean over ballots.

    ``pool_equal``: answers of one round with the same final value share the mean of their scores.
    """
    votes = tallied.all_votes
    by_turn = _judging(debate, votes)
    values: list[float | None] = []
    for judging in by_turn:
        ballots: dict[tuple[int, float], list[float]] = defaultdict(list)
        for index, value in judging:
            ballots[votes[index].turn, tallied.weight(index)].append(value)
        means = [(_mean(ballot), counts_as) for (_, counts_as), ballot in ballots.items()]
        values.append(weighted_mean(means) if means else None)
    if pool_equal:
        values = _pooled(debate, values)
    why = tuple(tuple(index for index, _ in judging) for judging in by_turn)
    return Stream("borda", "turn", tuple(values), ("solution",), weight, why, "solution")


def consensus_alignment(
    debate: Debate, tallied: Tally, *, consensus: Consensus, voices: Voices = "agents", weight: float = 1.0
) -> Stream:
    """Judge reward: the mean over a turn's votes of +1 for going with the consensus on the pair, -1 against, 0 at a tie.

    ``voices``: an agent that votes on a pair in several turns is one voice, its last, or as many as it has votes.
    """
    on_pair: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)
    cast: dict[tuple[int, Hashable], list[int]] = defaultdict(list)
    votes, by_letter = tallied.all_votes, any(turn.candidates for turn in debate.turns)
    for index, vote in enumerate(votes):
        if vote.judged:
            turn = debate.turns[vote.turn] if index < len(tallied.votes) else None  # a judge's is no turn
            # Ballots after a revision are on other answers.
            pair = frozenset(vote.judged if (turn.candidates if turn else by_letter) else (vote.a, vote.b))
            on_pair[pair][vote.author if voices == "agents" else index] = index
            if turn and turn.parsed.sections:  # else it has no words to be held to
                cast[vote.turn, pair].append(index)
    agreements: list[list[float]] = [[] for _ in debate.turns]
    why: list[set[int]] = [set() for _ in debate.turns]
    for (turn, pair), own in cast.items():
        author, low = debate.turns[turn].agent, min(votes[own[0]].a, votes[own[0]].b)
        jury = [i for i in on_pair[pair].values() if consensus == "all" or votes[i].author != author]
        if jury:
            # Soft votes that cancel may leave a rounding.
            lead = round(sum(tallied.weight(i) * votes[i].value(low) for i in jury), 6)
            agreements[turn] += [_agreement(votes[i], lead if votes[i].a == low else -lead) for i in own]
            why[turn].update(own, jury)
    values = tuple(_mean(agreed) if agreed else None for agreed in agreements)
    return Stream("judge", "turn", values, ("comparison",), weight, tuple(tuple(sorted(w)) for w in why), "votes")


def diagnosis(debate: Debate, tallied: Tally, *, weight: float = 1.0) -> Stream:
    """Reward of critiques: whether the answers of those criticised came to be judged as the critic judged them.

    For each agent in a ballot: how far the ballot is for it, times half of how far the others' votes on it rose from this
    round of ballots to the last. The value is the mean over the agents in it; a ballot of the last round has none.
    """
    first: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))  # round → agent → votes
    for index, vote in enumerate(tallied.votes):
        if vote.judged:
            for agent in {vote.a, vote.b} - {vote.author}:
                first[debate.turns[vote.turn].round][agent].append((index, vote.value(agent)))
    last = max(first, default=0)
    values: list[float | None] = []
    why: list[tuple[int, ...]] = []
    for index, turn in enumerate(debate.turns):
        worth: list[float] = []
        used: list[int] = []
        for agent, before in first.get(turn.round, {}).items() if turn.round < last else ():
            own = [(i, value) for i, value in before if tallied.votes[i].turn == index]
            others = [(i, value) for i, value in before if tallied.votes[i].author != turn.agent]
            after = [(i, value) for i, value in first[last][agent] if tallied.votes[i].author != turn.agent]
            if own and others and after:
                own_mean, before_mean, after_mean = (_mean([v for _, v in part]) for part in (own, others, after))
                worth.append(own_mean * (after_mean - before_mean) / 2)
                used += [i for part in (own, others, after) for i, _ in part]
        values.append(_mean(worth) if worth else None)
        why.append(tuple(sorted({*used})))
    return Stream("diagnosis", "turn", tuple(values), ("evaluation",), weight, tuple(why))


def contract_penalty(debate: Debate, tallied: Tally, *, form: Form = "graded", weight: float = 1.0) -> Stream:
    """What a turn's form costs, on all of its tokens: -1 if unreadable, -0.1 if it was only tolerated, -0.5 without the
    final answer that was asked for, and -0.5 times the share of the pairs due that it has no valid vote on. The literal
    rule knows no shares and no answers: -0.5 without any valid vote. A turn of choices says nothing and has no form.
    """
    values: list[float | None] = []
    for index, turn in enumerate(debate.turns):
        if turn.chosen:
            values.append(None)
        elif turn.parsed.error:
            values.append(_UNREADABLE)
        elif form == "literal":
            values.append(_NO_VOTE if index in tallied.missing else 0.0)
        else:
            tolerated = _TOLERATED if turn.parsed.tolerated else 0.0
            unanswered = _NO_ANSWER if _lacks_answer(debate, turn) else 0.0
            values.append(tolerated + unanswered + _NO_VOTE * tallied.unvoted[index])
    return Stream("format", "turn", tuple(values), None, weight, ((),) * len(values))


def _lacks_answer(debate: Debate, turn: Turn) -> bool:
    style = debate.question.style
    return style.required and turn.asked_to_answer and not (style.answer(turn.solution or "") or "").strip()


def default_consensus(agents: int) -> Consensus:
    """Up to three agents, at most one may judge a pair, so nobody else's votes are there to agree with (SPEC 4.8)."""
    return "others" if agents >= 4 else "all"


def _judging(debate: Debate, votes: Sequence[Vote]) -> list[list[tuple[int, float]]]:
    """Per turn the votes that judge it and are not by its author: the index of each, and how far it is for the turn."""
    judging: list[list[tuple[int, float]]] = [[] for _ in debate.turns]
    for index, vote in enumerate(votes):
        for agent, judged in zip((vote.a, vote.b), vote.judged or (), strict=False):
            if agent != vote.author:
                judging[judged].append((index, vote.value(agent)))
    return judging


def _pooled(debate: Debate, values: Sequence[float | None]) -> list[float | None]:
    """Values averaged over the turns of a round whose answers have the same final value."""
    same: dict[Hashable, list[float]] = defaultdict(list)
    keys: list[Hashable] = []
    for index, (turn, value) in enumerate(zip(debate.turns, values, strict=True)):
        answer = debate.question.style.value(turn.solution or "") if value is not None else None
        keys.append(index if answer is None else (turn.round, answer))
        if value is not None:
            same[keys[-1]].append(value)
    return [None if value is None else _mean(same[key]) for key, value in zip(keys, values, strict=True)]


def _agreement(vote: Vote, lead: float) -> float:
    """How far a vote goes with the majority, given by how far its ``a`` leads its ``b``."""
    if lead == 0:
        return 0.0
    return -1.0 if vote.op == "=" else vote.strength if lead > 0 else -vote.strength


def weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    """The mean of values with weights. Where these are less than one vote together, it is so much nearer to 0."""
    return sum(value * weight for value, weight in values) / max(1.0, sum(weight for _, weight in values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

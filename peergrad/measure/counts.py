"""Which answers of debates are right, and what is counted in a debate: its form (SPEC 8.2) and its votes (SPEC 8.4)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from math import comb
from operator import attrgetter

from peergrad.debate.ballot import Ballot
from peergrad.debate.contract import read_votes
from peergrad.debate.protocol import call_protocol
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.question import Question
from peergrad.debate.quote import MARK
from peergrad.debate.types import Ask, Debate, Turn, Verdict
from peergrad.reward.pairwise import win_rate
from peergrad.reward.rewards import Scored
from peergrad.reward.tally import Vote, vote_due
from peergrad.tasks.base import UNANSWERED, Grade, Grader, grade_all, grade_turn

Counts = dict[str, tuple[float, float]]
"""Shares by name, each as what was counted and of how many: sums over debates divide to the share of a batch."""


# Which answers are right


def turn_grades(debates: Sequence[Debate], grade: Grader) -> list[tuple[Grade, ...]]:
    """The grades of every turn of every debate; an unreadable one answers nothing."""
    turns = [(debate.question, turn) for debate in debates for turn in debate.turns]
    grades = iter(grade_all(grade, [(question, text) for question, turn in turns if (text := turn.solution) is not None]))
    return [tuple(grade_turn(turn, lambda _: next(grades)) for turn in debate.turns) for debate in debates]


def known_grades(
    debates: Sequence[Debate], grade: Grader, known: Callable[[Question], bool] = attrgetter("known")
) -> list[tuple[Grade, ...] | None]:
    """The grades of each debate about a question that is known; ``None`` for the others."""
    grades = iter(turn_grades([debate for debate in debates if known(debate.question)], grade))
    return [next(grades) if known(debate.question) else None for debate in debates]


def final_grades(debate: Debate, grades: Sequence[Grade], rounds: int | None = None) -> list[Grade]:
    """Each agent's last answer, or its last within so many rounds; one who did not speak has none."""
    last = {
        turn.agent: grade
        for turn, grade in zip(debate.turns, grades, strict=True)
        if turn.asked_to_answer and (rounds is None or turn.round < rounds)
    }
    return [last.get(agent, UNANSWERED) for agent in range(debate.agents)]


def final_answers(debates: Sequence[Debate], grade: Grader, rounds: int | None = None) -> list[list[Grade]]:
    """The last answer of each agent of each debate, or the last within so many rounds."""
    graded = zip(debates, turn_grades(debates, grade), strict=True)
    return [final_grades(debate, grades, rounds) for debate, grades in graded]


def share_right(answers: Sequence[Grade]) -> float | None:
    """The share of right answers among those that could be graded in time; ``None`` if there are none."""
    graded = [answer.right for answer in answers if answer.right is not None]
    return sum(graded) / len(graded) if graded else None


def vote_is_right(answers: Sequence[Grade]) -> float:
    """Whether the most frequent answer is right; between equally frequent ones, the chance that a fair draw is."""
    times = Counter(answer.answer for answer in answers if answer.answer is not None)
    right = {answer.answer for answer in answers if answer.correct}
    top = [answer in right for answer, count in times.items() if count == max(times.values())]
    return sum(top) / len(top) if top else 0.0


AT_K: dict[str, Callable[[Sequence[Grade]], float | None]] = {
    "pass": lambda answers: float(any(answer.correct for answer in answers)),
    "avg": share_right,
    "cons": vote_is_right,
    "strict_cons": lambda answers: float(2 * sum(answer.correct for answer in answers) > len(answers)),
}
"""What is measured of k answers to a question (SPEC 8.3): whether any is right, how many are, whether the most frequent one
is, and, as published, whether more than half are."""


# What is counted


def total(counts: Iterable[Counts]) -> Counts:
    """The counts of several debates, added up."""
    sums: Counts = {}
    for one in counts:
        for name, (part, whole) in one.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + part, before[1] + whole
    return sums


def shares(counts: Counts) -> dict[str, float]:
    """The share each count is; without any it has no value and is left out."""
    return {name: part / whole for name, (part, whole) in sorted(counts.items()) if whole}


def form_counts(scored: Scored) -> Counts:
    """Whether replies can be read and votes are cast; opponents' replies and turns of choices are left out."""
    turns, votes = scored.debate.turns, [vote for vote in scored.tally.votes if vote.judged]
    voters = {vote.turn for vote in votes}
    due = [index in voters for index, turn in enumerate(turns) if vote_due(scored.debate, turn)]
    own = [turn for turn in turns if not turn.by and not turn.chosen]
    counts = {
        "replies/readable": (sum(turn.parsed.error is None for turn in own), len(own)),
        "replies/tolerated": (sum(turn.parsed.tolerated for turn in own), len(own)),
        "replies/truncated": (sum(turn.truncated for turn in own), len(own)),
        "votes/per_due_turn": (len(votes), len(due)),
        "votes/due_turns_with_vote": (sum(due), len(due)),
        "votes/ties": (sum(vote.tied for vote in votes), len(votes)),
        "votes/copied": (len(copied_votes(scored)), sum(bool(turns[vote.turn].parsed.sections) for vote in votes)),
        "votes/agreement": _agreement(votes),
    }
    return {name: (float(part), float(whole)) for name, (part, whole) in counts.items()}


def share_of(scored: Scored, grades: Sequence[Grade] | None) -> float | None:
    """The share of a debate's final answers that are right; where nobody knows, of its pairs of votes that agree."""
    if grades is not None:
        return share_right(final_grades(scored.debate, grades))
    return shares({"votes": _agreement(scored.tally.votes)}).get("votes")


_BY_COINS = 1 / 8  # of the rounds: four voters with one vote each


def copied_votes(scored: Scored) -> frozenset[int]:
    """The votes in words, by index, that follow the prompt or the seats and not what was said (SPEC 8.6): they stand in the
    referee's own words, or more voters of a round than by coins cast the same ballot, by letters or from their seat.
    """
    debate = scored.debate
    by_turn: dict[int, list[int]] = defaultdict(list)
    for index, vote in enumerate(scored.tally.votes):
        if vote.judged and debate.turns[vote.turn].parsed.sections:
            by_turn[vote.turn].append(index)
    ballots: dict[int, list[frozenset[tuple[int, str, int]]]] = defaultdict(list)
    by_voter: dict[int, frozenset[tuple[int, str, int]]] = {}
    copied: set[int] = set()
    for at, indices in by_turn.items():
        turn, shown, ballot = debate.turns[at], _votes_in_prompt(debate, debate.turns[at]), set[tuple[int, str, int]]()
        place = {agent: at for at, letter in enumerate(turn.candidates) for agent in letter}
        for index in indices:
            vote = scored.tally.votes[index]
            a, b = (place.get(agent, (agent - vote.author) % debate.agents) for agent in (vote.a, vote.b))
            ballot.add((a, vote.op, b) if a < b or vote.op == ">" else (b, vote.op, a))
            if (vote.a, vote.op, vote.b) in shown:
                copied.add(index)
        by_voter[at] = frozenset(ballot)
        ballots[turn.round].append(by_voter[at])
    for at, indices in by_turn.items():
        cast = ballots[debate.turns[at].round]
        preferred = [index for index in indices if scored.tally.votes[index].op == ">"]
        alike = cast.count(by_voter[at])
        if alike > 2 and comb(len(cast), alike) <= _BY_COINS * 2 ** (len(preferred) * (alike - 1)):
            copied.update(preferred)
    return frozenset(copied)


def _votes_in_prompt(debate: Debate, turn: Turn) -> frozenset[tuple[int, Verdict, int]]:
    """What reads as votes in the referee's own words of a prompt, quotations left out."""
    words = (line for message in turn.asked if message.role != "assistant" for line in message.text.split("\n"))
    text = "\n".join(line for line in words if not line.startswith(MARK))
    ask = Ask(debate.id, turn.agent, 0, turn.seen, (), (), 0, contract=turn.contract, candidates=turn.candidates)
    read = call_protocol(debate.protocol, debate.protocol.read, ask, text).votes if text and turn.candidates else ()
    return frozenset((*read_votes(text, 0, len(text))[0], *read))


def vote_counts(scored: Scored, grades: Sequence[Grade]) -> Counts:
    """Whether votes find the truth, and whether debate moves towards it.

    A tie between a right and a wrong solution counts half, so that voting blindly scores 0.5 in any style.
    """
    shares: dict[str, list[float]] = defaultdict(list)
    right, own = [grade.right for grade in grades], _own_answers(scored.debate, grades)
    for vote in scored.tally.votes:
        if (share := vote_right(vote, right)) is not None:
            shares["votes/accuracy"].append(share)
            if own[vote.turn] not in {None, *(grades[index].answer for index in vote.judged or ())}:
                shares["votes/accuracy_beyond_own"].append(share)
    if scored.tally.votes and (won := winner_is_right(scored, grades)) is not None:
        shares["votes/winner_is_right"].append(won)
    answers = [(turn.agent, known) for turn, known in zip(scored.debate.turns, right, strict=True) if turn.asked_to_answer]
    for agent in range(scored.debate.agents):
        for before, after in pairwise(known for speaker, known in answers if speaker == agent):
            if before is not None and after is not None:
                shares["flips/right_to_wrong" if before else "flips/wrong_to_right"].append(float(before != after))
    return {name: (sum(values), float(len(values))) for name, values in shares.items()}


def _own_answers(debate: Debate, grades: Sequence[Grade]) -> list[str | None]:
    """What the speaker of each turn answers by then; ``None``: nothing yet, or nothing that can be compared."""
    latest: dict[int, str | None] = {}
    for turn, grade in zip(debate.turns, grades, strict=True):
        if turn.asked_to_answer:
            latest[turn.agent] = grade.answer
    return [latest.get(turn.agent) for turn in debate.turns]


def vote_right(vote: Vote, right: Sequence[bool | None]) -> float | None:
    """Whether a vote between a right and a wrong solution is for the right one; a tie is half, and others have no value."""
    if not vote.judged or {right[vote.judged[0]], right[vote.judged[1]]} != {True, False}:
        return None
    return 0.5 if vote.tied else float(bool(right[vote.judged[0]]))


def winner_is_right(scored: Scored, grades: Sequence[Grade]) -> float | None:
    """Whether the last solution of the agent with the best win rate is right, averaged over equally good ones, if known."""
    final, rates = final_grades(scored.debate, grades), win_rate(scored.debate.agents, scored.tally.votes)
    return share_right([answer for answer, rate in zip(final, rates, strict=True) if rate == max(rates)])


def bias_counts(scored: Scored) -> Counts:
    """What votes favour besides: seats, personas, the answer shown first (a tie is half), the longer one (ties left out)."""
    debate, shares = scored.debate, defaultdict[str, list[float]](list)
    lengths = [len(turn.solution or "") for turn in debate.turns]
    for vote in scored.tally.votes:
        for agent, win in ((vote.a, 1.0), (vote.b, 0.0)):
            share = 0.5 if vote.tied else win
            shares[f"bias/seat/{agent}"].append(share)
            if persona := debate.protocol.persona(agent):
                shares[f"bias/persona/{persona.name}"].append(share)
        if (first := _winner_shown_first(debate, vote)) is not None:
            shares["bias/first"].append(0.5 if vote.tied else float(first))
        if vote.judged and not vote.tied:
            winner, loser = (lengths[index] for index in vote.judged)
            if winner != loser:
                shares["bias/longer"].append(float(winner > loser))
    return {name: (sum(values), float(len(values))) for name, values in shares.items()}


def _winner_shown_first(debate: Debate, vote: Vote) -> bool | None:
    """Whether a voter was shown its preferred answer before the other; ``None`` where no order is known."""
    turn, protocol = debate.turns[vote.turn], debate.protocol
    if not vote.judged:
        return None
    if turn.candidates:
        apart = isinstance(protocol, Ballot) and protocol.ballot_form == "soft-verdict"  # each answer in its own prompt
        places = {agent: place for place, letter in enumerate(turn.candidates) for agent in letter}
        return None if apart else places[vote.a] < places[vote.b]
    if not isinstance(protocol, Parallel | Sequential):
        return None
    first, *_ = protocol.ordered([debate.turns[index] for index in sorted(vote.judged)], vote.author)
    return first.agent == vote.a


def diversity(question: Question, answers: Sequence[str]) -> tuple[float, float]:
    """How far answers to a question are apart, summed over their pairs, and how many pairs there are (SPEC 9.11).

    Two with the same final value are 0 apart, and 1 if their values differ or only one has a value. Without values it is the
    share of their words, in lower case, that only one of them uses.
    """
    values = [question.style.value(answer) for answer in answers]
    words = [set(answer.casefold().split()) for answer in answers]
    pairs = list(combinations(range(len(answers)), 2))
    apart = [
        float(values[i] != values[j])
        if values[i] is not None or values[j] is not None
        else len(words[i] ^ words[j]) / max(1, len(words[i] | words[j]))
        for i, j in pairs
    ]
    return sum(apart), float(len(pairs))


def final_diversity(debate: Debate) -> tuple[float, float]:
    """How far the agents' final solutions are apart, those that can be read."""
    ends = [debate.final_turn(agent) for agent in range(debate.agents)]
    return diversity(debate.question, [debate.turns[at].solution or "" for at in ends if at is not None])


def _agreement(votes: Iterable[Vote]) -> tuple[int, int]:
    """Of the pairs of votes by different agents on the same two turns: how many agree, how many there are."""
    by_turns: dict[frozenset[int], list[tuple[int, int | None]]] = defaultdict(list)
    for vote in votes:
        if vote.judged:
            by_turns[frozenset(vote.judged)].append((vote.author, None if vote.tied else vote.judged[0]))
    pairs = [pair for on_pair in by_turns.values() for pair in combinations(on_pair, 2)]
    agreed = [winner == other for (author, winner), (by, other) in pairs if author != by]
    return sum(agreed), len(agreed)

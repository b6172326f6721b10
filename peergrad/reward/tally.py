"""Which votes count (SPEC 2.3 to 2.7, 3.9): from what agents wrote to votes that judge turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peergrad.debate.types import Debate, Op, Turn

SelfVotes = Literal["drop", "keep"]
Ballots = Literal["once", "literal"]


@dataclass(frozen=True, slots=True)
class Vote:
    """One valid vote. ``judged`` are the turns of ``a`` and ``b`` it is about; ``None`` if the author had not seen both."""

    turn: int
    author: int
    a: int
    op: Op
    b: int
    judged: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the votes that do not count, and of the turns without votes."""

    self_votes: int = 0
    malformed: int = 0
    repeated: int = 0
    contradictory: int = 0
    missing: int = 0
    parse_errors: int = 0
    unseen: int = 0
    """Votes about an agent whose words the author had not seen; malformed too, unless ballots are literal."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The valid votes of a debate in the order cast, the counts of the rest, and the turns whose due vote is missing."""

    votes: tuple[Vote, ...]
    counts: Counts
    missing: frozenset[int]


def tally(debate: Debate, *, self_votes: SelfVotes = "drop", ballots: Ballots = "once") -> Tally:
    """Attach authors, drop what does not count, and say which turns each vote judges."""
    votes: list[Vote] = []
    missing: set[int] = set()
    selves = malformed = repeated = contradictory = unseen = 0
    for index, turn in enumerate(debate.turns):
        valid: list[Vote] = []
        malformed += turn.parsed.malformed
        for a, op, b in turn.parsed.votes:
            if self_votes == "drop" and turn.agent in (a, b):
                selves += 1
                continue
            if a == b or not (a < debate.agents and b < debate.agents):
                malformed += 1
                continue
            judged_a, judged_b = last_seen(debate, turn, a), last_seen(debate, turn, b)
            if judged_a is not None and judged_b is not None:
                valid.append(Vote(index, turn.agent, a, op, b, (judged_a, judged_b)))
                continue
            unseen += 1
            if ballots == "literal":
                valid.append(Vote(index, turn.agent, a, op, b, None))
            else:
                malformed += 1
        if ballots == "once":
            kept, again, against = _one_per_pair(valid)
            valid, repeated, contradictory = kept, repeated + again, contradictory + against
        if not turn.parsed.error and vote_due(debate, turn) and not any(vote.judged for vote in valid):
            missing.add(index)
        votes += valid
    counts = Counts(
        self_votes=selves,
        malformed=malformed,
        repeated=repeated,
        contradictory=contradictory,
        missing=len(missing),
        parse_errors=sum(turn.parsed.error is not None for turn in debate.turns),
        unseen=unseen,
    )
    return Tally(tuple(votes), counts, frozenset(missing))


def verdict_votes(debate: Debate) -> tuple[Vote, ...]:
    """The valid votes of a debate's judge, each about the final solutions of two debaters. Rewards do not count them.

    Their ``turn`` is one past the last, their author the seat after the last.
    """
    if not debate.verdict:
        return ()
    ends = {agent: debate.final_turn(agent) for agent in range(debate.agents)}
    valid: list[Vote] = []
    for a, op, b in debate.verdict.parsed.votes:
        judged_a, judged_b = ends.get(a), ends.get(b)
        if a != b and judged_a is not None and judged_b is not None:
            valid.append(Vote(len(debate.turns), debate.agents, a, op, b, (judged_a, judged_b)))
    return tuple(_one_per_pair(valid)[0])


def last_seen(debate: Debate, turn: Turn, agent: int) -> int | None:
    """The turn of ``agent`` that a vote in ``turn`` is about: its last one among those shown."""
    return next((i for i in range(turn.seen - 1, turn.since - 1, -1) if debate.turns[i].agent == agent), None)


def vote_due(debate: Debate, turn: Turn) -> bool:
    """Whether votes were asked for, and the author could see words of at least two other agents (SPEC 4.6)."""
    return turn.asked_to_vote and len({other.agent for other in debate.turns[turn.since : turn.seen]} - {turn.agent}) >= 2


def _one_per_pair(votes: list[Vote]) -> tuple[list[Vote], int, int]:
    """One vote per unordered pair; repeats dropped, contradictions cancelled; with the count of each (SPEC 2.6)."""
    by_pair: dict[tuple[int, int], dict[int | None, Vote]] = {}
    for vote in votes:
        winner = vote.a if vote.op == ">" else None
        by_pair.setdefault((min(vote.a, vote.b), max(vote.a, vote.b)), {}).setdefault(winner, vote)
    distinct = sum(map(len, by_pair.values()))
    kept = [vote for said in by_pair.values() if len(said) == 1 for vote in said.values()]
    return kept, len(votes) - distinct, distinct - len(kept)

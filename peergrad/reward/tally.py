"""Which votes count (SPEC 2.3 to 2.7, 3.9): from what agents wrote to votes that judge turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peergrad.debate.contract import MAX_VOTES
from peergrad.debate.types import Debate, Op, Turn, Verdict

SelfVotes = Literal["drop", "keep"]
Ballots = Literal["once", "literal"]


@dataclass(frozen=True, slots=True)
class Vote:
    """One valid vote: ``a`` is better than ``b``, or as good (``=``).

    ``judged`` are the turns of ``a`` and ``b`` it is about; ``None`` if the author had not seen both. ``strength`` is below
    1 for a soft vote (SPEC 2.8).
    """

    turn: int
    author: int
    a: int
    op: Op
    b: int
    judged: tuple[int, int] | None
    strength: float = 1.0

    @property
    def tied(self) -> bool:
        """Whether it prefers neither."""
        return self.op == "=" or not self.strength

    def value(self, agent: int) -> float:
        """How far it is for an agent, from -1 to 1: a tie is 0."""
        return 0.0 if self.tied else self.strength if agent == self.a else -self.strength


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
    """The valid votes of a debate in the order cast, the counts of the rest, and the turns whose due vote is missing.

    ``unvoted`` is, of every turn, the share of the pairs due that have no valid vote (SPEC 4.6). ``verdict`` are a judge's
    votes, each counting as ``judge_weight`` of an agent's (SPEC 4.16); none if that is 0.
    """

    votes: tuple[Vote, ...]
    counts: Counts
    missing: frozenset[int]
    unvoted: tuple[float, ...] = ()
    verdict: tuple[Vote, ...] = ()
    judge_weight: float = 0.0

    @property
    def all_votes(self) -> tuple[Vote, ...]:
        """Those of agents, then those of a judge."""
        return self.votes + self.verdict

    def weight(self, index: int) -> float:
        """How many votes one of ``all_votes`` counts as."""
        return 1.0 if index < len(self.votes) else self.judge_weight


def tally(debate: Debate, *, self_votes: SelfVotes = "drop", ballots: Ballots = "once", judge_weight: float = 0.0) -> Tally:
    """Attach authors, drop what does not count, and say which turns each vote judges."""
    votes: list[Vote] = []
    missing: set[int] = set()
    unvoted: list[float] = []
    selves = malformed = repeated = contradictory = unseen = 0
    for index, turn in enumerate(debate.turns):
        valid: list[Vote] = []
        malformed += turn.parsed.malformed
        for a, verdict, b in turn.parsed.votes:
            if self_votes == "drop" and turn.agent in (a, b):
                selves += 1
                continue
            if a == b or not (a < debate.agents and b < debate.agents):
                malformed += 1
                continue
            judged_a, judged_b = last_seen(debate, turn, a), last_seen(debate, turn, b)
            if judged_a is not None and judged_b is not None:
                valid.append(_vote(index, turn.agent, a, verdict, b, (judged_a, judged_b)))
                continue
            unseen += 1
            if ballots == "literal":
                valid.append(_vote(index, turn.agent, a, verdict, b, None))
            else:
                malformed += 1
        if ballots == "once":
            kept, again, against = _one_per_pair(valid)
            valid, repeated, contradictory = kept, repeated + again, contradictory + against
        due = min(pairs_due(debate, turn), MAX_VOTES)
        voted = {frozenset((vote.a, vote.b)) for vote in valid if vote.judged and vote.author not in (vote.a, vote.b)}
        unvoted.append(max(0.0, 1 - len(voted) / due) if due else 0.0)
        if not turn.parsed.error and due and not any(vote.judged for vote in valid):
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
    verdict = verdict_votes(debate) if judge_weight else ()
    return Tally(tuple(votes), counts, frozenset(missing), tuple(unvoted), verdict, judge_weight)


def verdict_votes(debate: Debate) -> tuple[Vote, ...]:
    """The valid votes of a debate's judge, each about the final solutions of two debaters.

    Their ``turn`` is one past the last, their author the seat after the last.
    """
    if not debate.verdict:
        return ()
    ends = {agent: debate.final_turn(agent) for agent in range(debate.agents)}
    valid: list[Vote] = []
    for a, verdict, b in debate.verdict.parsed.votes:
        judged_a, judged_b = ends.get(a), ends.get(b)
        if a != b and judged_a is not None and judged_b is not None:
            valid.append(_vote(len(debate.turns), debate.agents, a, verdict, b, (judged_a, judged_b)))
    return tuple(_one_per_pair(valid)[0])


def _vote(turn: int, author: int, a: int, verdict: Verdict, b: int, judged: tuple[int, int] | None) -> Vote:
    """A vote as it was written; of a soft one the preferred agent comes first."""
    if isinstance(verdict, str):
        return Vote(turn, author, a, verdict, b, judged)
    if verdict < 0:
        a, b, judged = b, a, judged and (judged[1], judged[0])
    return Vote(turn, author, a, ">", b, judged, abs(verdict))


def last_seen(debate: Debate, turn: Turn, agent: int) -> int | None:
    """The turn of ``agent`` that a vote in ``turn`` is about: its last answer among those shown."""
    if turn.candidates and not any(agent in letter for letter in turn.candidates):
        return None
    shown = range(turn.seen - 1, turn.since - 1, -1)
    return next((i for i in shown if debate.turns[i].agent == agent and debate.turns[i].asked_to_answer), None)


def pairs_due(debate: Debate, turn: Turn) -> int:
    """How many pairs of other agents the author was asked to compare, and could: it was shown their words (SPEC 4.6)."""
    if not turn.asked_to_vote:
        return 0
    letters = turn.candidates or tuple((agent,) for agent in {t.agent for t in debate.turns[turn.since : turn.seen]})
    sizes = [len({*letter} - {turn.agent}) for letter in letters]
    return (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def vote_due(debate: Debate, turn: Turn) -> bool:
    """Whether votes were asked for, and the author could see words of at least two other agents (SPEC 4.6)."""
    return pairs_due(debate, turn) > 0


def _one_per_pair(votes: list[Vote]) -> tuple[list[Vote], int, int]:
    """One vote per unordered pair; repeats dropped, contradictions cancelled; with the count of each (SPEC 2.6)."""
    by_pair: dict[tuple[int, int], dict[tuple[float, int | None], Vote]] = {}
    for vote in votes:
        winner = (vote.strength, vote.a if vote.op == ">" else None)
        by_pair.setdefault((min(vote.a, vote.b), max(vote.a, vote.b)), {}).setdefault(winner, vote)
    distinct = sum(map(len, by_pair.values()))
    kept = [vote for said in by_pair.values() if len(said) == 1 for vote in said.values()]
    return kept, len(votes) - distinct, distinct - len(kept)

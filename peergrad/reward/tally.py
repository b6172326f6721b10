"""Which votes count (SPEC 2.3 to 2.7, 3.9): from what agents wrote to votes that judge turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peergrad.debate.contract import MAX_VOTES
from peergrad.debate.types import Debate, Op, Turn, Verdict

SelfVotes = Literal["drop", "keep"]
Ballots = Literal["once", "literal"]
Why = Literal["self_vote", "same_agent", "unknown_agent", "unseen", "repeated", "contradictory"]
"""Why a vote that was written does not count."""


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
    whys: list[Why | None] = []
    unseen = 0
    for index, turn in enumerate(debate.turns):
        cast = cast_votes(debate, index, self_votes=self_votes, ballots=ballots)
        whys.extend(why for _, why in cast)
        valid = [vote for vote, why in cast if why is None]
        unseen += sum(why == "unseen" for _, why in cast) + sum(vote.judged is None for vote in valid)
        due = min(pairs_due(debate, turn), MAX_VOTES)
        voted = {frozenset((vote.a, vote.b)) for vote in valid if vote.judged and vote.author not in (vote.a, vote.b)}
        unvoted.append(max(0.0, 1 - len(voted) / due) if due else 0.0)
        if not turn.parsed.error and due and not any(vote.judged for vote in valid):
            missing.add(index)
        votes += valid
    never = sum(why in ("same_agent", "unknown_agent", "unseen") for why in whys)
    counts = Counts(
        self_votes=whys.count("self_vote"),
        malformed=sum(turn.parsed.malformed for turn in debate.turns) + never,
        repeated=whys.count("repeated"),
        contradictory=whys.count("contradictory"),
        missing=len(missing),
        parse_errors=sum(turn.parsed.error is not None for turn in debate.turns),
        unseen=unseen,
    )
    verdict = verdict_votes(debate) if judge_weight else ()
    return Tally(tuple(votes), counts, frozenset(missing), tuple(unvoted), verdict, judge_weight)


def cast_votes(
    debate: Debate, index: int, *, self_votes: SelfVotes = "drop", ballots: Ballots = "once"
) -> list[tuple[Vote, Why | None]]:
    """Every vote that a turn wrote, in order, each with why it does not count; ``None``: it does."""
    turn = debate.turns[index]
    cast: list[tuple[Vote, Why | None]] = []
    for a, verdict, b in turn.parsed.votes:
        why: Why | None = None
        judged: tuple[int, int] | None = None
        if self_votes == "drop" and turn.agent in (a, b):
            why = "self_vote"
        elif a == b:
            why = "same_agent"
        elif not (a < debate.agents and b < debate.agents):
            why = "unknown_agent"
        else:
            judged_a, judged_b = last_seen(debate, turn, a), last_seen(debate, turn, b)
            judged = None if judged_a is None or judged_b is None else (judged_a, judged_b)
            why = "unseen" if judged is None and ballots == "once" else None
        cast.append((_vote(index, turn.agent, a, verdict, b, judged), why))
    return _one_per_pair(cast) if ballots == "once" else cast


def verdict_votes(debate: Debate) -> tuple[Vote, ...]:
    """The valid votes of a debate's judge, each about the final solutions of two debaters.

    Their ``turn`` is one past the last, their author the seat after the last.
    """
    return tuple(vote for vote, why in cast_verdict(debate) if why is None)


def cast_verdict(debate: Debate) -> list[tuple[Vote, Why | None]]:
    """Every vote that a debate's judge wrote, each with why it does not count, as ``cast_votes``."""
    ends = {agent: debate.final_turn(agent) for agent in range(debate.agents)}
    cast: list[tuple[Vote, Why | None]] = []
    for a, verdict, b in debate.verdict.parsed.votes if debate.verdict else ():
        judged_a, judged_b = ends.get(a), ends.get(b)
        judged = None if judged_a is None or judged_b is None else (judged_a, judged_b)
        known = a in ends and b in ends
        why: Why | None = "same_agent" if a == b else "unknown_agent" if not known else None if judged else "unseen"
        cast.append((_vote(len(debate.turns), debate.protocol.agents, a, verdict, b, judged), why))
    return _one_per_pair(cast)


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


def _one_per_pair(cast: list[tuple[Vote, Why | None]]) -> list[tuple[Vote, Why | None]]:
    """Of the valid votes one per unordered pair: repeats do not count, nor do contradictions (SPEC 2.6)."""
    said: dict[frozenset[int], set[tuple[float, int | None]]] = {}
    for vote, why in cast:
        if why is None:
            said.setdefault(frozenset((vote.a, vote.b)), set()).add(_winner(vote))
    before: set[tuple[frozenset[int], tuple[float, int | None]]] = set()
    checked: list[tuple[Vote, Why | None]] = []
    for vote, why in cast:
        pair = frozenset((vote.a, vote.b))
        if why is None:
            key = pair, _winner(vote)
            why = "repeated" if key in before else "contradictory" if len(said[pair]) > 1 else None
            before.add(key)
        checked.append((vote, why))
    return checked


def _winner(vote: Vote) -> tuple[float, int | None]:
    """What a vote says of its pair."""
    return vote.strength, vote.a if vote.op == ">" else None

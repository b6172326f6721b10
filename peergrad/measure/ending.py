"""How a debate ended (SPEC 9.6): who won by which votes, and with what answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.types import Debate, Usage
from peergrad.reward.pairwise import win_rate
from peergrad.reward.tally import Counts, Vote, tally, verdict_votes
from peergrad.tasks.grading import answer_name

DecidedBy = Literal["votes", "answers", "nothing"]


@dataclass(frozen=True, slots=True)
class Final:
    """What an agent answers in the end: its last solution that can be read, if it has one, and how it fared in the votes.

    ``answer`` is what the question's style finds in the solution, under a name that equal answers share. ``last`` is false
    if the agent said something unreadable after it.
    """

    agent: int
    round: int | None
    solution: str | None
    answer: str | None
    last: bool
    won: int
    tied: int
    lost: int
    win_rate: float


@dataclass(frozen=True, slots=True)
class Ending:
    """A debate's outcome. ``winners`` are equally good; there may be none. ``by`` says what decided: votes; where
    there are none for anybody who can be read, how often an answer was given (one agent alone always wins); or nothing.
    """

    debate: Debate
    votes: tuple[Vote, ...]
    counts: Counts
    finals: tuple[Final, ...]
    winners: tuple[int, ...]
    by: DecidedBy

    @property
    def winner(self) -> int | None:
        """The one agent that won, or the first of several who give the same answer; ``None`` if there is none."""
        answers = {self.finals[agent].answer for agent in self.winners}
        alike = len(answers) == 1 and None not in answers
        return self.winners[0] if len(self.winners) == 1 or (self.winners and alike) else None


def ending(debate: Debate) -> Ending:
    """Who won. The best win rate over all votes, a judge's included; an agent without a readable solution can't win."""
    tallied = tally(debate)
    votes = tallied.votes + verdict_votes(debate)
    rates = win_rate(debate.agents, votes)
    finals = tuple(_final(debate, agent, votes, rates[agent]) for agent in range(debate.agents))
    winners, by = _winners(finals, votes)
    return Ending(debate, votes, tallied.counts, finals, winners, by)


def _winners(finals: Sequence[Final], votes: Sequence[Vote]) -> tuple[tuple[int, ...], DecidedBy]:
    able = [final for final in finals if final.solution]
    best = max((final.win_rate for final in able), default=0.0)
    if votes and best > 0:
        return tuple(final.agent for final in able if final.win_rate == best), "votes"
    if len(finals) == 1 and able:
        return (0,), "answers"
    times = Counter(final.answer for final in able if final.answer is not None).most_common(2)
    if times and (len(times) == 1 or times[0][1] > times[1][1]):
        return tuple(final.agent for final in able if final.answer == times[0][0]), "answers"
    return (), "nothing"


def _final(debate: Debate, agent: int, votes: Sequence[Vote], rate: float) -> Final:
    at = debate.final_turn(agent)
    text = None if at is None else debate.turns[at].solution
    spoke = [index for index, turn in enumerate(debate.turns) if turn.agent == agent and turn.asked_to_answer]
    about = [vote for vote in votes if agent in (vote.a, vote.b) and vote.author != agent]
    return Final(
        agent=agent,
        round=None if at is None else debate.turns[at].round,
        solution=text,
        answer=None if text is None else answer_name(debate.question, text),
        last=bool(spoke) and spoke[-1] == at,
        won=sum(vote.value(agent) > 0 for vote in about),
        tied=sum(vote.tied for vote in about),
        lost=sum(vote.value(agent) < 0 for vote in about),
        win_rate=rate,
    )


def used(debate: Debate) -> Usage:
    """The tokens of all replies of a debate, its verdict included, as far as they were counted."""
    counted = [turn.used for turn in (*debate.turns, *filter(None, [debate.verdict])) if turn.used]
    return Usage(sum(usage.prompt for usage in counted), sum(usage.sampled for usage in counted))


def seat_name(protocol: BaseProtocol, agent: int) -> str:
    """What to call who holds a seat: the agent with its character, or the judge."""
    if agent == protocol.agents:
        return "Judge"
    persona = protocol.persona(agent)
    return f"Agent {agent} ({persona.name})" if persona else f"Agent {agent}"


def as_object(end: Ending, models: Sequence[str]) -> dict[str, Any]:
    """The outcome for programs; ``models`` are by seat, a judge's last. Rounds are counted from 1."""
    debate, winner, verdict = end.debate, end.winner, end.debate.verdict
    agents: list[dict[str, Any]] = []
    for final in end.finals:
        persona = debate.protocol.persona(final.agent)
        about = {"agent": final.agent, "model": models[final.agent], "persona": persona and persona.name}
        agents.append(about | asdict(final) | {"round": None if final.round is None else final.round + 1})
    judge = verdict and {
        "model": models[debate.protocol.agents],
        "evaluation": verdict.section("evaluation"),
        "error": str(verdict.parsed.error) if verdict.parsed.error else None,
    }
    votes: list[dict[str, Any]] = []
    for vote in end.votes:
        judged = vote.author >= debate.agents
        author, round = ("judge", None) if judged else (vote.author, debate.turns[vote.turn].round + 1)
        soft = {} if vote.strength == 1 else {"strength": vote.strength}
        votes.append({"author": author, "round": round, "a": vote.a, "op": vote.op, "b": vote.b} | soft)
    return {
        "id": debate.id,
        "question": debate.question.text,
        "protocol": debate.protocol.name,
        "rounds": debate.rounds,
        "winner": winner,
        "winners": list(end.winners),
        "decided_by": end.by,
        "answer": None if winner is None else end.finals[winner].solution,
        "agents": agents,
        "judge": judge,
        "votes": votes,
        "counts": asdict(end.counts),
        "usage": asdict(used(debate)),
    }

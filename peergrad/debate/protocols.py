"""The two ways to debate, and none; each a pure function from transcript to the next wave of asks (SPEC 3, 9.1).

The frozen dataclass that configures a protocol is the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from peergrad.debate import contract, prompts
from peergrad.debate.contract import FULL, SHORT, Order, said
from peergrad.debate.errors import UserError
from peergrad.debate.personas import PERSONAS, Persona
from peergrad.debate.prompts import Wording
from peergrad.debate.quote import clip, quote
from peergrad.debate.types import Ask, Debate, Message, Parsed, Turn

MAX_AGENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    agents: int = 3
    max_rounds: int = 3
    max_tokens: int = 1024
    order: Order = "strict"
    max_votes: int = 64
    wording: Wording = "full"

    def __post_init__(self) -> None:
        for name in ("agents", "max_rounds", "max_tokens", "max_votes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give a whole number of at least 1")
        if self.agents > MAX_AGENTS:
            raise UserError(f"agents: {self.agents} is not possible; give a whole number from 1 to {MAX_AGENTS}")

    def _system(self, debate: Debate, agent: int, *, full: bool, persona: Persona | None = None) -> str:
        if self.wording == "brief":
            return prompts.brief_system(agent, self.agents, persona=persona, full=full)
        return prompts.system(agent, self.agents, debate.question.style, persona=persona, full=full)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(_Rules):
    """Agents speak one after another and see everything said so far; a round in which all say YES ends it (SPEC 3.1)."""

    history_rounds: int = -1
    """How many rounds of history a prompt shows, the running one included: -1 all, 0 none."""
    max_chars_per_field: int = 4000
    """Longer sections of others are clipped to this many characters."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _Rules.__post_init__(self)
        if self.history_rounds < -1:
            raise UserError(f"history_rounds: {self.history_rounds} is not possible; -1 is all, 0 none, K the last K rounds")
        if self.max_chars_per_field < 1:
            raise UserError(f"max_chars_per_field: {self.max_chars_per_field} is not possible; give at least 1")
        if self.temperature < 0:
            raise UserError(f"temperature: {self.temperature} is not possible; give 0 or more")

    def wave(self, debate: Debate) -> list[Ask]:
        turns, now = debate.turns, len(debate.turns)
        if turns and (turns[-1].parsed.error or consensus_reached(debate)):
            return []
        round_ = debate.round(now)
        if round_ >= self.max_rounds:
            return []
        agent = _missing(debate, round_)[0]
        since = self.since(now)
        history = [
            f"{prompts.speaker(turn.agent, debate.round(index))}\n{quote(self._shown(turn))}"
            for index, turn in enumerate(turns[since:], since)
        ]
        shown = {turn.agent for turn in turns[since:]}
        task = prompts.sequential_task(round_, agent, shown)
        parts = [prompts.question(debate.question, self.wording), *history, task]
        system = self._system(debate, agent, full=True)
        return [
            Ask(
                debate=debate.id,
                agent=agent,
                turn=now,
                seen=now,
                since=since,
                messages=(Message("system", system), Message("user", "\n\n".join(parts))),
                stop=(FULL.stop,),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
            )
        ]

    def since(self, turn: int) -> int:
        """The first turn that a turn's prompt shows."""
        if self.history_rounds == -1:
            return 0
        return min(turn, max(0, turn // self.agents - self.history_rounds + 1) * self.agents)

    def read(self, text: str, truncated: bool = False) -> Parsed:
        return contract.read(text, FULL, truncated=truncated, order=self.order, max_votes=self.max_votes)

    def _shown(self, turn: Turn) -> dict[str, str]:
        """What later agents see of a turn: every field, clipped."""
        if turn.parsed.error:
            return {"solution": prompts.UNREADABLE}
        return {name: clip(said(turn.text, turn.parsed, name), self.max_chars_per_field) for name in FULL.names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(_Rules):
    """All agents of a round are asked at once and see earlier rounds only, votes hidden (SPEC 3.5).

    Each agent's prompts are one growing dialogue, its own replies in it as the exact tokens sampled (SPEC 3.7).
    """

    personas: tuple[Persona, ...] = PERSONAS

    def __post_init__(self) -> None:
        _Rules.__post_init__(self)
        if not self.personas:
            raise UserError("personas: at least one is needed; leave it out for the five built-in ones")

    def wave(self, debate: Debate) -> list[Ask]:
        now = len(debate.turns)
        round_ = debate.round(now)
        if round_ >= self.max_rounds:
            return []
        heard = [
            f"{prompts.speaker(turn.agent, debate.round(index))}\n{quote(_blind(turn))}"
            for index, turn in enumerate(debate.turns)
        ]
        return [
            Ask(
                debate=debate.id,
                agent=agent,
                turn=now + place,
                seen=round_ * self.agents,
                messages=self._dialogue(debate, agent, round_, heard),
                stop=(SHORT.stop,),
                max_tokens=self.max_tokens,
                temperature=self.persona(agent).temperature,
            )
            for place, agent in enumerate(_missing(debate, round_))
        ]

    def read(self, text: str, truncated: bool = False) -> Parsed:
        return contract.read(text, SHORT, truncated=truncated, order=self.order, max_votes=self.max_votes)

    def _dialogue(self, debate: Debate, agent: int, round_: int, heard: list[str]) -> tuple[Message, ...]:
        """The agent's dialogue up to its turn in this round: the last round's, extended."""
        if round_ == 0:
            system = self._system(debate, agent, full=False, persona=self.persona(agent))
            task = prompts.parallel_task(0, agent, self.agents, None, self.wording)
            return Message("system", system), Message("user", f"{prompts.question(debate.question, self.wording)}\n\n{task}")
        last_round = range((round_ - 1) * self.agents, round_ * self.agents)
        own = next(debate.turns[index] for index in last_round if debate.turns[index].agent == agent)
        since = [heard[index] for index in last_round if debate.turns[index] is not own]
        task = prompts.parallel_task(round_, agent, self.agents, own.parsed.error, self.wording)
        return (
            *(own.asked or self._dialogue(debate, agent, round_ - 1, heard)),
            Message("assistant", own.text, own.tokens),
            Message("user", "\n\n".join((*since, task))),
        )

    def persona(self, agent: int) -> Persona:
        """The character that holds a seat."""
        return self.personas[agent % len(self.personas)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """No debate: each agent answers the question once, alone and in its own words. What debates are measured against."""

    agents: int = 1
    max_tokens: int = 1024
    temperature: float = 0.0

    def wave(self, debate: Debate) -> list[Ask]:
        return [
            Ask(
                debate=debate.id,
                agent=agent,
                turn=len(debate.turns) + place,
                seen=0,
                messages=(Message("user", prompts.question(debate.question)),),
                stop=(),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
            )
            for place, agent in enumerate(_missing(debate, 0))
        ]

    def read(self, text: str, truncated: bool = False) -> Parsed:  # noqa: ARG002 (there is no contract to break)
        return Parsed()


def solution(debate: Debate, turn: Turn) -> str | None:
    """What a turn answers: its solution, or all of it where there is no contract; ``None`` if it can't be read."""
    if isinstance(debate.protocol, Direct):
        return turn.text
    return None if turn.parsed.error else said(turn.text, turn.parsed, "solution")


def final_turn(debate: Debate, agent: int) -> int | None:
    """The turn that an agent's final solution is in: its last one that can be read; ``None`` if it has none."""
    said = range(len(debate.turns) - 1, -1, -1)
    return next((i for i in said if debate.turns[i].agent == agent and solution(debate, debate.turns[i])), None)


def _missing(debate: Debate, round_: int) -> list[int]:
    """Who has not spoken in a round: everybody, unless a transcript breaks off within it."""
    spoken = {turn.agent for turn in debate.turns[round_ * debate.agents :]}
    return [agent for agent in range(debate.agents) if agent not in spoken]


def consensus_reached(debate: Debate) -> bool:
    """Whether the last turn completed a round in which every agent said YES."""
    turns, agents = debate.turns, debate.agents
    return bool(turns) and len(turns) % agents == 0 and all(turn.parsed.consensus for turn in turns[-agents:])


def _blind(turn: Turn) -> dict[str, str]:
    """What others see of a parallel turn: solution and evaluation, never its votes."""
    if turn.parsed.error:
        return {"solution": prompts.UNREADABLE}
    return {name: said(turn.text, turn.parsed, name) for name in ("solution", "evaluation")}

"""The ways to debate, and none; each a pure function from transcript to the next wave of asks (SPEC 3, 9.1).

The frozen dataclass that configures a protocol is the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peergrad.debate import contract, prompts
from peergrad.debate.ballot import Ballot
from peergrad.debate.contract import FULL, MAX_VOTES, SHORT, Order, Reading
from peergrad.debate.errors import UserError
from peergrad.debate.personas import PERSONAS, Persona
from peergrad.debate.prompts import Wording
from peergrad.debate.protocol import BaseProtocol, answers_agree, built_in_names, seats_taken
from peergrad.debate.quote import clip, quote
from peergrad.debate.types import Ask, Contract, Debate, Message, Parsed, ParseError, Turn

OrderShown = Literal["rotated", "seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds(BaseProtocol):
    max_rounds: int = 3
    reading: Reading = "tolerant"
    order: Order = "strict"
    order_shown: OrderShown = "rotated"
    max_votes: int = MAX_VOTES
    wording: Wording = "full"

    def __post_init__(self) -> None:
        BaseProtocol.__post_init__(self)
        self.at_least(1, "max_rounds", "max_votes")

    @property
    def rounds(self) -> int:
        return self.max_rounds

    def read(self, ask: Ask, text: str, truncated: bool = False) -> Parsed:
        reading, order, most = self.reading, self.order, self.max_votes
        return contract.read(text, ask.contract, truncated=truncated, reading=reading, order=order, max_votes=most)

    def _system(self, agent: int, *, full: bool, persona: Persona | None = None) -> str:
        return prompts.system(agent, self.agents, persona=persona, full=full, wording=self.wording, own=self.prompts)

    def _task(
        self, debate: Debate, agent: int, shown: Sequence[Turn], *, full: bool, error: ParseError | None = None
    ) -> str:
        seats = tuple(dict.fromkeys(turn.agent for turn in shown))
        if self.wording == "brief":
            return prompts.brief_task(seats, agent, error=error, own=self.prompts)
        tagged = self.reading == "strict"
        return prompts.task(debate.question, agent, seats, full=full, tagged=tagged, error=error, own=self.prompts)

    def ordered(self, turns: Sequence[Turn], viewer: int) -> Sequence[Turn]:
        """Turns in the order a viewer is shown them: everybody stands at every place for somebody (SPEC 3.15)."""
        if self.order_shown == "seat":
            return turns
        return sorted(turns, key=lambda turn: (turn.round, (turn.agent - viewer) % self.agents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(_Rounds):
    """Agents speak one after another and see everything said so far; a round in which all say YES ends it (SPEC 3.1)."""

    history_rounds: int = -1
    """How many rounds of history a prompt shows, the running one included: -1 all, 0 none."""
    max_chars_per_field: int = 4000
    """Longer sections of others are clipped to this many characters."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _Rounds.__post_init__(self)
        if self.history_rounds < -1:
            raise UserError(f"history_rounds: {self.history_rounds} is not possible; -1 is all, 0 none, K the last K rounds")
        self.at_least(1, "max_chars_per_field")
        self.at_least(0, "temperature")

    @property
    def contract(self) -> Contract:
        return FULL

    @property
    def ends_on_error(self) -> bool:
        return True

    def wave(self, debate: Debate) -> list[Ask]:
        turns = debate.turns
        round_, missing = self.speakers(debate)
        if round_ >= self.max_rounds or (turns and (turns[-1].parsed.error or consensus_reached(debate))):
            return []
        agent, (since, seen) = missing[0], self.window(len(turns))
        shown = self.ordered(turns[since:], agent)
        question = prompts.question(debate.question, self.wording, self.prompts)
        parts = [
            question,
            *(_quoted(turn, self._shown(turn)) for turn in shown),
            self._task(debate, agent, shown, full=True),
        ]
        messages = Message("system", self._system(agent, full=True)), Message("user", "\n\n".join(parts))
        window, temperature = (since, seen), self.temperature
        return [self.ask(debate, agent, messages, round=round_, shown=window, contract=FULL, temperature=temperature)]

    def window(self, turn: int) -> tuple[int, int]:
        if self.history_rounds == -1:
            return 0, turn
        return min(turn, max(0, turn // self.agents - self.history_rounds + 1) * self.agents), turn

    def _shown(self, turn: Turn) -> dict[str, str]:
        """What later agents see of a turn: every field, clipped."""
        if turn.parsed.error:
            return {"solution": prompts.UNREADABLE}
        return {name: clip(turn.section(name), self.max_chars_per_field) for name in FULL.names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(_Rounds):
    """All agents of a round are asked at once and see earlier rounds only, votes hidden (SPEC 3.5).

    Each agent's prompts are one growing dialogue, its own replies in it as the exact tokens sampled (SPEC 3.7).
    """

    personas: tuple[Persona, ...] = PERSONAS
    temperature: float = 1.0
    """What the personas' own temperatures are multiplied by."""
    end_early: bool = False
    extra_rounds: int = 0
    agents_min: int = 0
    """How many are asked first; the others only if these do not agree (SPEC 3.22). 0: all at once."""

    def __post_init__(self) -> None:
        _Rounds.__post_init__(self)
        self.check_first(self.agents_min)
        self.at_least(0, "temperature", "extra_rounds")
        if not self.personas:
            raise UserError("personas: at least one is needed; leave it out for the five built-in ones")

    @property
    def contract(self) -> Contract:
        return SHORT

    @property
    def rounds(self) -> int:
        return self.max_rounds + self.extra_rounds

    @property
    def one_dialogue(self) -> bool:
        return True

    def seats(self, debate: Debate) -> int:
        return seats_taken(debate, self.agents_min, self.agents)

    def wave(self, debate: Debate) -> list[Ask]:
        round_, missing = self.speakers(debate)
        may_end = self.end_early or round_ >= self.max_rounds
        if round_ >= self.rounds or (may_end and answers_agree(debate, round_ - 1)):
            return []
        heard = _heard(debate, round_)
        return [
            self.ask(
                debate,
                agent,
                self._dialogue(debate, agent, round_, heard),
                round=round_,
                shown=(0, round_ * debate.agents),
                place=place,
                contract=SHORT,
                temperature=self.temperature * self.persona(agent).temperature,
            )
            for place, agent in enumerate(missing)
        ]

    def _dialogue(self, debate: Debate, agent: int, round_: int, heard: Mapping[int, str]) -> tuple[Message, ...]:
        """The agent's dialogue up to its turn in this round: the last round's, extended by what was ``heard`` in it."""
        if round_ == 0:
            system = self._system(agent, full=False, persona=self.persona(agent))
            task = self._task(debate, agent, (), full=False)
            question = prompts.question(debate.question, self.wording, self.prompts)
            return Message("system", system), Message("user", f"{question}\n\n{task}")
        last_round = debate.in_round(round_ - 1)[1]
        own = last_round[agent]
        shown = self.ordered([*last_round.values()], agent)
        since = [heard[turn.agent] for turn in shown if turn is not own]
        task = self._task(debate, agent, shown, full=False, error=own.parsed.error)
        return (
            *(own.asked or self._dialogue(debate, agent, round_ - 1, _heard(debate, round_ - 1))),
            Message("assistant", own.text, own.tokens),
            Message("user", "\n\n".join((*since, task))),
        )

    def persona(self, agent: int) -> Persona:
        return self.personas[agent % len(self.personas)]

    def alone(self, agent: int) -> BaseProtocol:
        usual = {"agents_min": 0, "end_early": False, "extra_rounds": 0}
        return replace(self, agents=1, personas=(self.persona(agent),), **usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct(BaseProtocol):
    """No debate: each agent answers the question once, alone and in its own words. What debates are measured against."""

    agents: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        BaseProtocol.__post_init__(self)
        self.at_least(0, "temperature")

    @property
    def rounds(self) -> int:
        return 1

    def wave(self, debate: Debate) -> list[Ask]:
        round_, missing = self.speakers(debate)
        messages = (Message("user", prompts.question(debate.question, own=self.prompts)),)
        return [
            self.ask(debate, agent, messages, round=0, shown=(0, 0), place=place, temperature=self.temperature)
            for place, agent in enumerate(missing if round_ == 0 else [])
        ]


PROTOCOLS: dict[str, type[BaseProtocol]] = {
    "sequential": Sequential,
    "parallel": Parallel,
    "ballot": Ballot,
    "direct": Direct,
}
built_in_names.update({kind: name for name, kind in PROTOCOLS.items()})


def consensus_reached(debate: Debate) -> bool:
    """Whether the last turn completed a round in which every agent said YES."""
    last = [turn for turn in debate.turns if turn.round == debate.rounds - 1]
    return len(last) == debate.agents and all(turn.parsed.consensus for turn in last)


def _quoted(turn: Turn, fields: dict[str, str]) -> str:
    return f"{prompts.speaker(turn.agent, turn.round)}\n{quote(fields)}"


def _heard(debate: Debate, round_: int) -> dict[int, str]:
    """What parallel agents are told before a round of each agent's turn in the last one: never its votes."""
    heard: dict[int, str] = {}
    for turn in debate.in_round(round_ - 1)[1].values() if round_ else ():
        names = () if turn.parsed.error else ("solution", "evaluation")
        fields = {name: turn.section(name) for name in names} or {"solution": prompts.UNREADABLE}
        heard[turn.agent] = _quoted(turn, fields)
    return heard

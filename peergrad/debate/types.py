"""What a debate is: a question, and the turns said about it. Here are the turns.

Everything here is frozen. Array names end in their axis: ``_T`` is tokens.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from peergrad.debate.errors import UserError
from peergrad.debate.question import Question
from peergrad.debate.quote import only_text

if TYPE_CHECKING:
    from peergrad.debate.protocol import BaseProtocol

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Op = Literal[">", "="]
_THINK = re.compile(r"</?think>", re.IGNORECASE)
Verdict = Op | float
"""What a vote says of two agents: the first is better, they are equal, or by how much it is better, from -1 to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The exact tokens of one reply, as sampled; never made by tokenising its text again (SPEC 3.7, 6.5).

    ``starts_T[t]`` is where token t begins in the UTF-8 bytes of the reply's text. Tokens without text (an end of turn)
    start at the end. ``logprobs_T`` are of the distribution sampled from, temperature included (SPEC 6.7).
    """

    prompt_T: Ids
    ids_T: Ids
    logprobs_T: Floats
    starts_T: Ids
    temperature: float = 1.0

    @staticmethod
    def of(
        prompt: Sequence[int],
        ids: Sequence[int],
        logprobs: Sequence[float],
        starts: Sequence[int],
        temperature: float = 1.0,
    ) -> Tokens:
        """From plain lists."""
        prompt_T, ids_T, starts_T = (np.asarray(one, np.int32) for one in (prompt, ids, starts))
        return Tokens(prompt_T, ids_T, np.asarray(logprobs, np.float32), starts_T, temperature)

    @property
    def sound(self) -> bool:
        """Whether a trainer can use them: something before them, one of each per token, finite log-probabilities."""
        same_length = len(self.ids_T) == len(self.logprobs_T) == len(self.starts_T)
        return same_length and len(self.prompt_T) > 0 and bool(np.isfinite(self.logprobs_T).all())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Tokens):
            return NotImplemented
        arrays = "ids_T", "prompt_T", "starts_T", "logprobs_T"
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        return same and self.temperature == other.temperature

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:  # short: asyncio and test runners print what tasks return
        return f"Tokens({len(self.prompt_T)} prompt, {len(self.ids_T)} sampled, temperature={self.temperature})"


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens a reply took: read as its prompt, and sampled."""

    prompt: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. An assistant message that carries ``tokens`` is rendered by copying their ids verbatim."""

    role: Literal["system", "user", "assistant"]
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """What a turn is asked for: the sections its reply must have, each between tags, in this order."""

    names: tuple[str, ...]

    @property
    def stop(self) -> str:
        """The text after which there is nothing more to say (SPEC 3.11)."""
        return f"</{self.names[-1]}>"

    @property
    def tags(self) -> list[str]:
        """Opening and closing tags, in order."""
        return [tag for name in self.names for tag in (f"<{name}>", f"</{name}>")]


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt that is answered by one of a few words. What is asked for is how likely each of them is (SPEC 3.18)."""

    messages: tuple[Message, ...]
    options: tuple[str, ...]


Candidates = tuple[tuple[int, ...], ...]
"""Whose answers an agent is shown under the letters A, B, …: of each letter the agents that gave the answer (SPEC 3.16)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that one agent speak: what it sees and how to sample it.

    ``debate``, ``agent`` and ``turn`` name it uniquely, which is what an engine seeds its randomness with.
    The agent is shown words from turns ``since`` up to, not including, ``seen`` (SPEC 3.9). ``contract`` is how its reply is
    read; without one the whole reply is the answer. With ``choices`` nothing is sampled: the reply says how likely the
    options are.
    """

    debate: str
    agent: int
    turn: int
    seen: int
    messages: tuple[Message, ...]
    stop: tuple[str, ...]
    max_tokens: int
    temperature: float = 1.0
    since: int = 0
    round: int = 0
    contract: Contract | None = None
    candidates: Candidates = ()
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a sampler answers to an ask. ``truncated``: the token limit cut it off. The stop text stays in ``text``.

    An engine that has no tokens to give may still say how many there were (``usage``). ``by`` says who answered, if it was
    an opponent of the policy that is trained.
    """

    text: str
    truncated: bool = False
    tokens: Tokens | None = None
    usage: Usage | None = None
    by: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", only_text(self.text))


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why a reply is unreadable (SPEC 1.6): a kind for machines, and the tag it is about, if any."""

    kind: str
    tag: str | None = None

    def __str__(self) -> str:
        return self.kind if self.tag is None else f"{self.kind} <{self.tag}>"


@dataclass(frozen=True, slots=True)
class Section:
    """A section as a span of the raw reply, its tags included (SPEC 1.4, 6.4). ``between`` is the span of its text, if that
    is not what lies between the tags.
    """

    name: str
    start: int
    end: int
    between: tuple[int, int] | None = None

    @property
    def inner(self) -> tuple[int, int]:
        """The span of its text, without the tags."""
        return self.between or (self.start + len(self.name) + 2, self.end - len(self.name) - 3)

    def words(self, reply: str) -> str:
        """What it holds of the reply, thinking markers left out (SPEC 1.3)."""
        return _THINK.sub("", reply[slice(*self.inner)])


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the referee read in a reply. ``votes`` are as written: ``(a, verdict, b)``, the author is known (SPEC 2.3).

    ``malformed`` counts what looked like a vote and could not be read as one. An unreadable reply has no sections.
    ``tolerated``: it can be read, but is not in the form asked for (SPEC 1.8).
    """

    sections: tuple[Section, ...] = ()
    votes: tuple[tuple[int, Verdict, int], ...] = ()
    malformed: int = 0
    consensus: bool | None = None
    error: ParseError | None = None
    tolerated: bool = False

    def __post_init__(self) -> None:
        for _, verdict, _ in cast("Any", self.votes):  # a protocol of somebody's own may have read anything
            if verdict not in (">", "=") and not (isinstance(verdict, int | float) and -1 <= verdict <= 1):
                raise UserError(f"protocol: a vote says {verdict!r}; give '>', '=' or a number from -1 to 1")


@dataclass(frozen=True, slots=True)
class Turn:
    """One agent speaking once. ``asked`` is what it was shown; a thinned-out transcript leaves it empty.

    ``round`` counts from 0. ``contract`` is what the reply was read by. ``chosen``: it was asked for choices, so nothing of
    it was sampled (SPEC 3.18). ``by`` names the opponent that spoke, if one did.
    """

    agent: int
    seen: int
    text: str
    parsed: Parsed
    truncated: bool = False
    since: int = 0
    asked: tuple[Message, ...] = ()
    tokens: Tokens | None = None
    usage: Usage | None = None
    round: int = 0
    contract: Contract | None = None
    candidates: Candidates = ()
    chosen: bool = False
    by: str = ""

    @staticmethod
    def of(ask: Ask, reply: Reply, parsed: Parsed) -> Turn:
        """An ask with its answer."""
        return Turn(
            agent=ask.agent,
            seen=ask.seen,
            text=reply.text,
            parsed=parsed,
            truncated=reply.truncated,
            since=ask.since,
            asked=ask.messages,
            tokens=reply.tokens,
            usage=reply.usage,
            round=ask.round,
            contract=ask.contract,
            candidates=ask.candidates,
            chosen=bool(ask.choices),
            by=reply.by,
        )

    @property
    def dialogue(self) -> tuple[Message, ...]:
        """What the agent was shown and then said: how a growing dialogue goes on. Empty if that was not kept."""
        return (*self.asked, Message("assistant", self.text, self.tokens)) if self.asked else ()

    def section(self, name: str) -> str:
        """The text of a section, thinking markers left out (SPEC 1.3); empty if there is no such section."""
        return next((s.words(self.text).strip() for s in self.parsed.sections if s.name == name), "")

    @property
    def asked_to_answer(self) -> bool:
        """Whether this turn was asked for a solution; other turns only judge."""
        return self.contract is None or "solution" in self.contract.names

    @property
    def asked_to_vote(self) -> bool:
        """Whether this turn was asked for votes."""
        return self.contract is not None and "comparison" in self.contract.names

    @property
    def solution(self) -> str | None:
        """The answer in this turn: its solution, or all of it without a contract; ``None`` if there is none to read."""
        if self.contract is None:
            return self.text
        return self.section("solution") if self.asked_to_answer and not self.parsed.error else None

    @property
    def used(self) -> Usage | None:
        """What it took, as far as is known: by its tokens, or by what was counted where these are not kept."""
        return Usage(len(self.tokens.prompt_T), len(self.tokens.ids_T)) if self.tokens else self.usage


@dataclass(frozen=True, slots=True)
class Debate:
    """A question, the protocol that rules, and the turns so far, in speaking order.

    ``verdict`` is what a judge said when it was over, if there was one; its ``agent`` is the seat after the protocol's last.
    """

    id: str
    question: Question
    protocol: BaseProtocol
    turns: tuple[Turn, ...] = field(default=())
    verdict: Turn | None = None

    @property
    def agents(self) -> int:
        """How many take part: all, or so far as many as are asked first (SPEC 3.22)."""
        return self.protocol.seats(self)

    @property
    def opponents(self) -> frozenset[int]:
        """The seats that an opponent held."""
        return frozenset(turn.agent for turn in self.turns if turn.by)

    @property
    def rounds(self) -> int:
        """How many rounds were begun."""
        return max((turn.round for turn in self.turns), default=-1) + 1

    def __repr__(self) -> str:  # short, as for Tokens
        return f"Debate({self.id!r}, {self.agents} agents, {len(self.turns)} turns)"

    def in_round(self, round_: int) -> tuple[tuple[int, int], dict[int, Turn]]:
        """From where to where the turns of a round stand, and the turns by agent."""
        at = [index for index, turn in enumerate(self.turns) if turn.round == round_]
        return (min(at), max(at) + 1), {self.turns[index].agent: self.turns[index] for index in at}

    def final_turn(self, agent: int) -> int | None:
        """The index of the turn with an agent's final solution: the last one that can be read; ``None`` if it has none."""
        turns = reversed(list(enumerate(self.turns)))
        return next((index for index, turn in turns if turn.agent == agent and turn.solution), None)

    def show(self) -> Any:
        """The viewer's page about the debate, inside a notebook."""
        # By name: this room does not import the one that shows it.
        return importlib.import_module("peergrad.web.report").show(self)

    def extend(self, wave: Sequence[Ask], replies: Sequence[Reply]) -> Debate:
        """The debate after this wave was answered."""
        turns = tuple(
            Turn.of(ask, reply, self.protocol.read(ask, reply.text, reply.truncated))
            for ask, reply in zip(wave, replies, strict=True)
        )
        return replace(self, turns=self.turns + turns)

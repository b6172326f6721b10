"""What a debate is: a question, and the turns said about it.

Everything here is frozen. Array names end in their axis: ``_T`` is tokens.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.payload import frozen
from peergrad.debate.style import OPEN, STYLES, Style

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Op = Literal[">", "="]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to debate.

    ``style`` says how to answer; a built-in one may be given by its name: ``style="boxed"`` asks for the final answer in
    ``\\boxed{}``. ``payload`` is for the grader alone (the tests of a program, a rubric): JSON-like data, which no agent is
    shown. Lists in it become tuples.
    """

    id: str
    text: str
    answer: str | None = None
    style: Style = OPEN
    dataset: str = ""
    payload: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.style, str):
            if self.style not in STYLES:
                raise UserError(f"style: {self.style!r} is not known; {nearest(self.style, tuple(STYLES))}")
            object.__setattr__(self, "style", STYLES[self.style])
        object.__setattr__(self, "payload", frozen(self.payload))

    @property
    def known(self) -> bool:
        """Whether there is something to grade by."""
        return self.answer is not None or self.payload is not None


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
        return Tokens(
            np.asarray(prompt, np.int32),
            np.asarray(ids, np.int32),
            np.asarray(logprobs, np.float32),
            np.asarray(starts, np.int32),
            temperature,
        )

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
        return (
            self.temperature == other.temperature
            and np.array_equal(self.ids_T, other.ids_T)
            and np.array_equal(self.prompt_T, other.prompt_T)
            and np.array_equal(self.starts_T, other.starts_T)
            and np.array_equal(self.logprobs_T, other.logprobs_T)
        )

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
class Ask:
    """A request that one agent speak: what it sees and how to sample it.

    ``debate``, ``agent`` and ``turn`` name it uniquely, which is what an engine seeds its randomness with.
    The agent is shown words from turns ``since`` up to, not including, ``seen`` (SPEC 3.9).
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


@dataclass(frozen=True, slots=True)
class Reply:
    """What a sampler answers to an ask. ``truncated``: the token limit cut it off. The stop text stays in ``text``.

    An engine that has no tokens to give may still say how many there were (``usage``).
    """

    text: str
    truncated: bool = False
    tokens: Tokens | None = None
    usage: Usage | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", only_text(self.text))


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why a reply is unreadable (SPEC 1.6): a kind for machines, and the tag it is about, if any."""

    kind: Literal["missing", "unclosed", "repeated", "order", "consensus", "truncated"]
    tag: str | None = None

    def __str__(self) -> str:
        return self.kind if self.tag is None else f"{self.kind} <{self.tag}>"


@dataclass(frozen=True, slots=True)
class Section:
    """A section as a span of the raw reply, its tags included (SPEC 1.4, 6.4)."""

    name: str
    start: int
    end: int

    @property
    def inner(self) -> tuple[int, int]:
        """The span between the tags."""
        return self.start + len(self.name) + 2, self.end - len(self.name) - 3


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the referee read in a reply. ``votes`` are as written, ``(a, op, b)``: the author is known, not read (SPEC 2.3).

    ``malformed`` counts what looked like a vote and could not be read as one. An unreadable reply has no sections.
    """

    sections: tuple[Section, ...] = ()
    votes: tuple[tuple[int, Op, int], ...] = ()
    malformed: int = 0
    consensus: bool | None = None
    error: ParseError | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One agent speaking once. ``asked`` is what it was shown; a thinned-out transcript leaves it empty."""

    agent: int
    seen: int
    text: str
    parsed: Parsed
    truncated: bool = False
    since: int = 0
    asked: tuple[Message, ...] = ()
    tokens: Tokens | None = None
    usage: Usage | None = None

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
        )

    @property
    def used(self) -> Usage | None:
        """What it took, as far as is known: by its tokens, or by what was counted where these are not kept."""
        return Usage(len(self.tokens.prompt_T), len(self.tokens.ids_T)) if self.tokens else self.usage


def only_text(text: str) -> str:
    """Text with U+FFFD for halves of surrogate pairs, which are not text; it has as many bytes, so offsets hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


class Protocol(typing.Protocol):
    """Who speaks when and sees what: a pure function of the transcript (SPEC 3.12)."""

    @property
    def agents(self) -> int: ...

    def wave(self, debate: Debate) -> list[Ask]:
        """The turns to ask for now, all at the same moment; [] means the debate is over."""
        ...

    def read(self, text: str, truncated: bool = False) -> Parsed:
        """Read a reply. Never raises: what is wrong with it is data."""
        ...


@dataclass(frozen=True, slots=True)
class Debate:
    """A question, the protocol that rules, and the turns so far, in speaking order. Round of turn t is ``t // agents``.

    ``verdict`` is what a judge said when it was over, if there was one; its ``agent`` is ``agents``, a seat of its own.
    """

    id: str
    question: Question
    protocol: Protocol
    turns: tuple[Turn, ...] = field(default=())
    verdict: Turn | None = None

    @property
    def agents(self) -> int:
        return self.protocol.agents

    def __repr__(self) -> str:  # short, as for Tokens
        return f"Debate({self.id!r}, {self.agents} agents, {len(self.turns)} turns)"

    def round(self, turn: int) -> int:
        """The 0-based round that a turn belongs to."""
        return turn // self.agents

    def extend(self, wave: Sequence[Ask], replies: Sequence[Reply]) -> Debate:
        """The debate after this wave was answered."""
        read = self.protocol.read
        said = tuple(
            Turn.of(ask, reply, read(reply.text, reply.truncated)) for ask, reply in zip(wave, replies, strict=True)
        )
        return replace(self, turns=self.turns + said)

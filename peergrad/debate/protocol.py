"""What protocols have in common: the base of the built-in ones, and of one's own (docs/how-to/extend.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, cast

from peergrad.debate import contract
from peergrad.debate.errors import UserError
from peergrad.debate.personas import Persona
from peergrad.debate.prompts import Texts
from peergrad.debate.settings import import_path, imported, is_import_path, refused, where_it_failed
from peergrad.debate.types import Ask, Contract, Debate, Message, Parsed

MAX_AGENTS = 1000
T = TypeVar("T")
built_in_names: dict[type, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseProtocol:
    """Who speaks when and sees what (SPEC 3.12). Derive a protocol from it and write ``wave``; the rest has usual answers.

    The fields of a subclass are its settings, in TOML and as flags. Example: ``examples/my_protocol.py``
    """

    agents: int = 3
    max_tokens: int = 1024
    reward: ClassVar[str] = "streams"
    """The reward of a run with it, unless the run names another."""
    prompts: Texts = ()
    """Texts of one's own in place of the referee's, by name (SPEC 3.20)."""

    def __post_init__(self) -> None:
        self.at_least(1, "agents", "max_tokens")
        if self.agents > MAX_AGENTS:
            raise UserError(f"agents: {self.agents} is not possible; give a whole number from 1 to {MAX_AGENTS}")

    def at_least(self, least: int, *names: str) -> None:
        """Refuse settings below a number."""
        for name in names:
            if getattr(self, name) < least:
                wanted = f"a whole number of at least {least}" if least else "0 or more"
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give {wanted}")

    def check_first(self, least: int) -> None:
        """Refuse a number of agents to ask first that can't be (SPEC 3.22)."""
        if least and not 2 <= least <= self.agents:
            raise UserError(f"agents_min: {least} is not possible; give 0, for all at once, or from 2 to {self.agents}")

    @property
    def name(self) -> str:
        """Its name in settings and transcripts: a built-in one's, or an import path."""
        return built_in_names.get(type(self)) or import_path(type(self))

    @property
    def contract(self) -> Contract | None:
        """How replies are read where a transcript does not say it of a turn."""
        return None

    @property
    def rounds(self) -> int | None:
        """How many rounds there are at most; ``None`` where only playing tells."""
        return None

    @property
    def size(self) -> str:
        """How many agents and rounds there are, in words."""
        return f"{self.agents} agents" + (f", {self.rounds} round{'s' * (self.rounds > 1)}" if self.rounds else "")

    @property
    def ends_on_error(self) -> bool:
        """Whether an unreadable reply ends the debate, and costs its author a reward of -1 (SPEC 3.4)."""
        return False

    @property
    def one_dialogue(self) -> bool:
        """Whether each prompt of an agent continues its last one, so that no token is computed twice."""
        return False

    def chooses(self, contract: Contract | None) -> bool:  # noqa: ARG002
        """Whether turns of this contract are choices (SPEC 3.18), which a transcript then need not say."""
        return False

    def wave(self, debate: Debate) -> list[Ask]:
        """The turns to ask for now, all at the same moment; [] means the debate is over."""
        raise NotImplementedError

    def read(self, ask: Ask, text: str, truncated: bool = False) -> Parsed:
        """Read the reply to an ask. Never raises: what is wrong with it is data."""
        return contract.read(text, ask.contract, truncated=truncated)

    def window(self, turn: int) -> tuple[int, int]:
        """The turns that a turn's prompt shows, from the first up to, not including, the second."""
        return 0, turn - turn % self.agents

    def persona(self, agent: int) -> Persona | None:  # noqa: ARG002
        """The character of an agent, if it has one."""
        return None

    def alone(self, agent: int) -> BaseProtocol:  # noqa: ARG002
        """The same for a debater without others, in the character of this agent."""
        return replace(self, agents=1)

    def seats(self, debate: Debate) -> int:  # noqa: ARG002
        """How many agents take part in a debate: all, or those that are asked first (SPEC 3.22)."""
        return self.agents

    def speakers(self, debate: Debate) -> tuple[int, list[int]]:
        """The round to play now, the first in which somebody has not spoken, and who has not: everybody, unless a transcript
        breaks off within it, or others are to be asked because those asked first do not agree (SPEC 3.22).
        """
        seats = self.seats(debate)  # its own: a debate of another protocol may begin as this one does
        spoken = {(turn.round, turn.agent) for turn in debate.turns}
        for round_ in range(debate.rounds):
            if missing := [agent for agent in range(seats) if (round_, agent) not in spoken]:
                return round_, missing
        if debate.rounds == 1 and seats < self.agents and not answers_agree(debate, 0):
            return 0, list(range(seats, self.agents))
        return debate.rounds, list(range(seats))

    def ask(
        self,
        debate: Debate,
        agent: int,
        messages: Sequence[Message],
        *,
        round: int,
        shown: tuple[int, int],
        place: int = 0,
        contract: Contract | None = None,
        temperature: float = 1.0,
    ) -> Ask:
        """The ask for the turn that is ``place`` turns after the last one, by a prompt with words of the turns ``shown``."""
        return Ask(
            debate=debate.id,
            agent=agent,
            turn=len(debate.turns) + place,
            seen=shown[1],
            messages=tuple(messages),
            stop=(contract.stop,) if contract else (),
            max_tokens=self.max_tokens,
            temperature=temperature,
            since=shown[0],
            round=round,
            contract=contract,
        )


def answers_agree(debate: Debate, round_: int) -> bool:
    """Whether two agents or more answered in a round, and all of them with the same final value (SPEC 3.21)."""
    answers = [turn.solution for turn in debate.turns if turn.round == round_ and turn.asked_to_answer]
    values = {None if answer is None else debate.question.style.value(answer) for answer in answers}
    return len(answers) > 1 and len(values) == 1 and None not in values


def seats_taken(debate: Debate, least: int, most: int) -> int:
    """As many as are asked first, until others are asked too (SPEC 3.22); all where ``least`` is 0."""
    return most if not least or any(turn.agent >= least for turn in debate.turns) else least


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(BaseProtocol):
    """A protocol known by its transcripts alone: they can be scored and shown, and not be continued."""

    protocol: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        return self.protocol

    def wave(self, debate: Debate) -> list[Ask]:  # noqa: ARG002
        return []


def playable(protocol: BaseProtocol) -> BaseProtocol:
    """Refuse a protocol that is only named by a folder: what a folder names is not imported."""
    if isinstance(protocol, Recorded):
        raise UserError(f"protocol: {protocol.name} is somebody's own; give --protocol {protocol.name} to import it")
    return protocol


def call_protocol(protocol: BaseProtocol, call: Callable[..., T], *args: Any) -> T:
    """What a protocol's code returns. An exception in somebody's own is a sentence about their code."""
    if not is_import_path(protocol.name):
        return call(*args)
    try:
        return call(*args)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"protocol: {protocol.name}: failed ({where_it_failed(error)})") from error


def can_vote(protocol: BaseProtocol) -> bool:
    """Whether any turn is shown words of two others. Protocols without a number of rounds have a second one."""
    agents = protocol.agents
    for turn in range(agents * (protocol.rounds or 2)):
        first, last = call_protocol(protocol, protocol.window, turn)
        if len({other % agents for other in range(first, last)} - {turn % agents}) >= 2:
            return True
    return False


_own: dict[str, type[BaseProtocol]] = {}


def own_protocol(path: str) -> type[BaseProtocol]:
    """Somebody's own protocol by its import path. From now on transcripts may name it."""
    kind: Any = imported(path, "protocol")
    if not isinstance(kind, type) or not issubclass(kind, BaseProtocol) or "__dataclass_fields__" not in vars(kind):
        raise refused("protocol", path, cast("object", kind), "a dataclass derived from peergrad.BaseProtocol")
    _own[path] = _own[import_path(kind)] = kind
    return kind


def imported_protocol(path: str) -> type[BaseProtocol] | None:
    """The protocol of an import path if a person has named it in this process: nothing is imported here."""
    return _own.get(path)

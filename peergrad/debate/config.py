"""The settings of a debate. A protocol of one's own brings its own: every field of its dataclass is a setting."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from peergrad.debate.contract import Order, Reading
from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.personas import PERSONAS, Persona, read_personas
from peergrad.debate.prompts import Texts, Wording, read_texts
from peergrad.debate.protocol import BaseProtocol, Recorded, imported_protocol, own_protocol
from peergrad.debate.protocols import PROTOCOLS, OrderShown, Parallel
from peergrad.debate.settings import RESUMABLE, is_import_path, sentences, where_it_failed


@dataclass(frozen=True, kw_only=True)
class DebateConfig:
    """How a debate goes."""

    protocol: str = "parallel"
    """All agents of a round speak at once and see earlier rounds (parallel), or sequentially, or answer alone and
    then vote (ballot, whose own settings --protocol ballot --help-all shows) or do not (direct); or module:name."""
    agents: int = 3
    """How many copies of the policy debate a question; votes need at least 3."""
    max_rounds: int = 3
    """Parallel and sequential: every agent speaks once a round. Sequential debates may end earlier, when all say so."""
    end_early: bool = False
    """Parallel and ballot: end as soon as all answers of a round have the same final value."""
    extra_rounds: int = 0
    """Parallel, and ballot with revise: up to so many rounds more while the answers differ."""
    agents_min: int = 0
    """Parallel and ballot: ask so many agents first, and the others only where these do not agree; 0: all at once."""
    max_tokens: int = 1024
    """The longest reply, in tokens; one that is cut off is unreadable."""
    wording: Wording = "full"
    """Full instructions, or brief ones for a model that knows the form (after a warm start)."""
    prompts: Annotated[Path | None, RESUMABLE] = None
    """A folder with texts of your own: each file NAME.txt replaces the prompt of that name."""
    personas: Annotated[Path | None, RESUMABLE] = None
    """Parallel: a TOML file with characters of your own, by seat: [[persona]] with name, temperature and text."""
    reading: Reading = "tolerant"
    """Also read replies that are nearly in the form asked for, at a cost; or only the exact form."""
    order: Order = "strict"
    """Whether the sections of a reply must come in the order of the contract, if reading is strict."""
    order_shown: OrderShown = "rotated"
    """Others' words in an order that is another for each agent, so that places even out; or by seat."""
    temperature: float = 1.0
    """Sampling temperature; in parallel debates each persona has its own, which is multiplied by this."""
    history_rounds: int = -1
    """Sequential: how many rounds a prompt shows, the running one included; -1 is all."""
    max_chars_per_field: int = 4000
    """Sequential and ballot: what others said is clipped to this many characters a section."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS and not is_import_path(self.protocol):
            hint = nearest(self.protocol, tuple(PROTOCOLS))
            raise UserError(f"protocol: {self.protocol!r} is not known; {hint}, or module:name of your own")

    @property
    def texts(self) -> Texts:
        """The texts of one's own."""
        return read_texts(self.prompts) if self.prompts else ()

    @property
    def characters(self) -> tuple[Persona, ...]:
        """Those of one's own, or the built-in ones."""
        return read_personas(self.personas) if self.personas else PERSONAS

    def build(self, temperature: float | None = None) -> BaseProtocol:
        """The protocol itself, all of it sampled at one temperature where an engine has no other.

        One's own is imported by ``with_protocol``; until then it is only recorded, which is enough to show what was said.
        """
        kind = PROTOCOLS.get(self.protocol) or imported_protocol(self.protocol)
        if kind is None:
            return Recorded(agents=self.agents, max_tokens=self.max_tokens, protocol=self.protocol)
        names = {field.name for field in dataclasses.fields(kind)}
        settings = {name: getattr(self, name) for name in names if hasattr(self, name)}
        settings |= {"prompts": self.texts, "personas": self.characters}
        if temperature is not None and settings.get("temperature", temperature) != temperature:
            given = f"temperature: {self.temperature} is not possible with this engine"
            raise UserError(f"{given}, where all debates are at {temperature:g}; give {temperature:g}")
        if temperature is not None:
            settings["personas"] = tuple(replace(persona, temperature=1.0) for persona in settings["personas"])
        if not issubclass(kind, Parallel):
            settings.pop("personas")
        try:
            return kind(**settings)
        except UserError:
            raise
        except Exception as error:  # it may be somebody's code
            raise UserError(f"protocol: {self.protocol} refuses its settings ({where_it_failed(error)})") from error


def _default(field: dataclasses.Field[Any], protocol: str) -> Any:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        raise UserError(f"protocol: {protocol!r} has no default for {field.name}; give it one")
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_setting(kind: Any) -> bool:
    """Whether values of a type can be written in TOML and given as a flag; other fields keep their defaults."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if kind in (int, float, str, bool, type(None), ...) or typing.get_origin(kind) is typing.Literal:
        return True
    return bool(typing.get_args(kind)) and all(map(_is_setting, typing.get_args(kind)))


@cache
def section_of(protocol: str) -> type[DebateConfig]:
    """The settings of a debate by a protocol that has more of them: the usual ones, and its fields."""
    kind = PROTOCOLS.get(protocol) or own_protocol(protocol)
    try:
        types = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:
        raise UserError(f"protocol: {protocol!r} has fields of unknown types ({where_it_failed(error)})") from error
    usual = {field.name for field in dataclasses.fields(DebateConfig)}
    more: list[Any] = [
        (field.name, types[field.name], dataclasses.field(default=_default(field, protocol)))
        for field in dataclasses.fields(kind)
        if field.name not in usual and _is_setting(types[field.name])
    ]
    said = sentences(kind)  # which help finds in the docstring, as there is no source of what is made here
    lines = [f"    {name}: {said[name]}" for name, *_ in more if name in said]
    about = {"__doc__": "\n".join([DebateConfig.__doc__ or "", "", "Attributes:", *lines])} if lines else {}
    name, bases = f"{kind.__name__}Config", (DebateConfig,)
    return dataclasses.make_dataclass(name, more, bases=bases, namespace=about, frozen=True, kw_only=True)


def defaults_of(protocol: str) -> dict[str, Any]:
    """How many agents there are with a protocol, and the reward of a run with it, where a person gives neither. One that is
    for a single agent (direct) takes as many as there are.
    """
    kind = PROTOCOLS.get(protocol) or own_protocol(protocol)
    agents = _default(kind.__dataclass_fields__["agents"], protocol)
    return {"reward": kind.reward} | ({"agents": agents} if agents != 1 else {})


def has_own_settings(protocol: object) -> bool:
    """Whether a protocol, by its name, has settings beside the usual ones."""
    return isinstance(protocol, str) and (protocol == "ballot" or is_import_path(protocol))

"""The characters of parallel debate, and the temperature each is sampled at: five, or a file's (SPEC 3.10)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peergrad.debate.fields import Field, nearest, read_toml


@dataclass(frozen=True, slots=True)
class Persona:
    """How one seat is told to think."""

    name: str
    style: str
    temperature: float


PERSONAS = (
    Persona("Methodical Analyst", "You work step by step and check every step.", 0.6),
    Persona("Creative Problem-Solver", "You look for an approach the others will not think of.", 1.0),
    Persona("Devil's Advocate", "You doubt every claim and look for a counterexample.", 0.9),
    Persona("Synthesizer", "You combine the best parts of several views.", 1.0),
    Persona("First Principles Thinker", "You go back to definitions and build up from them.", 0.8),
)

_FIELDS = ("name", "temperature", "text")


def read_personas(path: Path) -> tuple[Persona, ...]:
    """The personas of a TOML file: a table ``[[persona]]`` with name, temperature and text for each."""
    at = Field(read_toml(path, "personas"), f"personas: {path}")
    for name in at.names():
        if name != "persona":
            at[name].wrong("is not known; write each persona as a table [[persona]]")
    personas = tuple(_read_persona(one) for one in at.get("persona", []))
    return personas or at.wrong("has no table [[persona]]; write one for each, or leave it out for the built-in ones")


def _read_persona(at: Field) -> Persona:
    for name in at.names():
        if name not in _FIELDS:
            at[name].wrong(f"is not known; {nearest(name, _FIELDS)}")
    name = at["name"].text()
    if not name.strip() or not name.isprintable():
        at["name"].wrong(f"{at['name'].shown} is no name; give words on one line")
    return Persona(name, at["text"].text(), at["temperature"].number(0))


def personas_toml(personas: Sequence[Persona]) -> str:
    """A file that ``read_personas`` reads back to the same."""
    tables = [{"name": one.name, "temperature": one.temperature, "text": one.style} for one in personas]
    lines = ["\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items()) for table in tables]
    return "\n".join(f"[[persona]]\n{table}\n" for table in lines).replace("\x7f", "\\u007f")

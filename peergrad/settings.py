"""Settings by name, whatever section they are in: read from TOML and written, changed, and refused early."""

from __future__ import annotations

import functools
import json
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest, read_toml
from peergrad.debate.settings import Above, Range

T = TypeVar("T")
M = TypeVar("M")

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
_KINDS[tuple] = "a list"
_hints = functools.cache(typing.get_type_hints)


def check_settings(config: Any) -> None:
    """Refuse settings that can't be, by name; those that only have to be written otherwise, a path as text or a tuple as a
    list, are put right in place.
    """
    for name, (section, wanted) in _typed(config).items():
        value = getattr(section, name)
        right = _checked(value, wanted, name, "settings")
        if type(right) is not type(value):
            object.__setattr__(section, name, right)  # frozen for everybody else
    bounds: dict[str, Range | Above] = markers(config, Range | Above)
    for name, value in flat(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name}: {value} is not possible; give a number")
        if name in bounds and value is not None and not bounds[name].allows(value):
            raise UserError(f"{name}: {value} is not possible; give {bounds[name]}")
        if isinstance(value, str | Path) and re.search("[\0\ud800-\udfff]", str(value)):  # NUL, or bytes of no character
            raise UserError(f"{name}: {str(value)!r} is not text that can be written down; give another name")


def _typed(config: Any) -> dict[str, tuple[Any, Any]]:
    """Every setting by its name: the section it is in, and the type it has to have."""
    typed: dict[str, tuple[Any, Any]] = {}
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        typed |= _typed(value) if is_dataclass(value) and isinstance(value, hint) else {name: (config, hint)}
    return typed


def markers(config: Any, kind: type[M] | UnionType) -> dict[str, M]:
    """Markers of a kind, by the setting they stand beside: ``Annotated[int, marker]``."""
    beside: dict[str, Any] = {}
    for name, hint in _hints(type(config), include_extras=True).items():
        if is_dataclass(section := getattr(config, name)):
            beside |= markers(section, kind)
        for marker in getattr(hint, "__metadata__", ()):
            if isinstance(marker, kind):
                beside[name] = marker
    return beside


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its name, whatever section it is in: names are unique."""
    settings: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        settings |= flat(value) if is_dataclass(value) else {one.name: value}
    return settings


def changed(config: T, settings: Mapping[str, Any], where: str) -> T:
    """The same with other settings, given by name."""
    sections: Any = config
    known, types = flat(config), _hints(type(config))
    for name in settings:
        if name not in known:
            raise UserError(f"{where}: no setting is called {name!r}; {nearest(name, tuple(known))}")
    new: dict[str, Any] = {}
    for one in fields(sections):
        value = getattr(config, one.name)
        if is_dataclass(value):
            new[one.name] = changed(value, {name: settings[name] for name in flat(value) if name in settings}, where)
        elif one.name in settings:
            new[one.name] = _checked(settings[one.name], types[one.name], one.name, where)
    return replace(sections, **new)


def from_file(config: T, path: Path) -> T:
    """The same with the settings of a TOML file."""
    return changed(config, read_settings(path), str(path))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file by name; its sections are for the reader, names alone count."""
    settings: dict[str, Any] = {}
    for name, value in read_toml(path, "config").items():
        settings |= value if isinstance(value, dict) else {name: value}
    return settings


def to_toml(config: Any, notes: Mapping[str, str] = MappingProxyType({})) -> str:
    """All settings as a TOML file that ``from_file`` reads back to the same; unset ones are commented out. Settings may
    have notes.
    """
    lines: list[str] = []
    for section in fields(config):
        lines.append(f"[{section.name}]")
        for name, value in flat(getattr(config, section.name)).items():
            # JSON is TOML as far as settings go, but for its escapes of what can't be seen.
            text = json.dumps(value, ensure_ascii=False, default=str)
            written = "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)
            line = f"# {name} is not set" if value is None else f"{name} = {written}"
            lines.append(f"{line}  # {notes[name]}" if name in notes else line)
        lines.append("")
    return "\n".join(lines)


def _checked(value: Any, wanted: Any, name: str, where: str) -> Any:
    """A value of the type a setting has, or a sentence that says what would be right."""
    origin, options = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (UnionType, typing.Union):  # the first of them is what a person usually gives
        return value if type(value) in options else _checked(value, options[0], name, where)
    if origin is Literal and value not in options:
        raise UserError(f"{where}, {name}: {value!r} is not known; {nearest(str(value), options)}")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, options[0], name, where) for item in typing.cast("list[Any]", value))
    if wanted is Path and isinstance(value, str | Path):
        return Path(value)
    if wanted is float and type(value) is int:
        return float(value) if abs(value) < 1e300 else math.inf
    if origin is not Literal and type(value) is not wanted:
        raise UserError(f"{where}, {name}: {value!r} is not possible; give {_KINDS.get(origin or wanted, 'another value')}")
    return value

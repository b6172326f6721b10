"""Settings: what they are made of, read and written by name, checked early, and somebody's own object by its import path."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import operator
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest, read_toml

T = TypeVar("T")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Range:
    """A whole number of at least ``least`` and, where more would only do harm, at most ``most``."""

    least: int
    most: int | None = None

    def allows(self, value: float) -> bool:
        return value >= self.least and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"a whole number {f'of at least {self.least}' if self.most is None else f'from {self.least} to {self.most}'}"


@dataclass(frozen=True, slots=True)
class Above:
    """A number above ``limit``."""

    limit: float

    def allows(self, value: float) -> bool:
        return value > self.limit

    def __str__(self) -> str:
        return f"a number above {self.limit:g}"


class Resumable:
    """The setting may change when work is resumed: it decides how long, how fast or what is kept, not what comes out."""


RESUMABLE = Resumable()


def sentences(kind: type) -> dict[str, str]:
    """What stands under each field of a dataclass and of those it is made from; nothing where a source can't be read."""
    return {name: said for one in reversed(kind.__mro__[:-1]) for name, said in _own_sentences(one).items()}


def _own_sentences(kind: type) -> dict[str, str]:
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, ValueError, SyntaxError):  # made at run time; or somebody's own, in any way
        return {}
    under = {
        ast.unparse(field.target): " ".join(str(below.value.value).split())
        for field, below in pairwise(made.body if isinstance(made, ast.ClassDef) else [])
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
    return {name: sentence for name, sentence in under.items() if sentence}


# By name, whatever section they are in

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
_KINDS[tuple] = "a list"
hints = cache(typing.get_type_hints)
"""The types of a class's fields, which take a millisecond to find."""


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


def _typed(config: object) -> dict[str, tuple[Any, Any]]:
    """Every setting by its name: the section it is in, and the type it has to have."""
    typed: dict[str, tuple[Any, Any]] = {}
    for name, hint in hints(type(config)).items():
        value = getattr(config, name)
        typed |= _typed(value) if is_dataclass(value) and isinstance(value, hint) else {name: (config, hint)}
    return typed


def markers(config: object, kind: type[M] | UnionType) -> dict[str, M]:
    """Markers of a kind, by the setting they stand beside: ``Annotated[int, marker]``."""
    beside: dict[str, Any] = {}
    for name, hint in hints(type(config), include_extras=True).items():
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
    known, types = flat(config), hints(type(config))
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


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file by name; its sections are for the reader, names alone count."""
    settings: dict[str, Any] = {}
    for name, value in read_toml(path, "config").items():
        settings |= value if isinstance(value, dict) else {name: value}
    return settings


def to_toml(config: Any, notes: Mapping[str, str] = MappingProxyType({})) -> str:
    """All settings as a TOML file that gives the same when it is read; unset ones are commented out. Settings may
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


# Somebody's own objects


def is_import_path(name: str) -> bool:
    """Whether a name is an import path rather than a built-in's name. Example: ``my_rewards:agreement``."""
    return ":" in name


@cache
def imported(path: str, setting: str) -> Any:
    """The object ``module:name`` stands for. Modules in the current folder are found too, after installed ones."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise UserError(f"{setting}: {path!r} is no import path; give module:name, such as my_module:my_{setting}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a file here never stands in for a library
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        why = f"no module {error.name!r} is installed or in {os.getcwd()}"
        raise UserError(f"{setting}: {path!r} can't be imported ({why})") from error
    except (Exception, SystemExit) as error:  # it is somebody's code, which may do anything
        raise UserError(f"{setting}: {path!r} can't be imported ({type(error).__name__}: {error})") from error
    try:
        return operator.attrgetter(name)(found)
    except AttributeError:
        raise UserError(f"{setting}: module {module!r} has no {name!r}") from None
    except Exception as error:
        raise UserError(f"{setting}: {path!r} can't be imported ({where_it_failed(error)})") from error


def own_functions(paths: Sequence[str], setting: str) -> dict[str, Callable[..., Any]]:
    """Somebody's own functions by their import paths."""
    functions = {path: imported(path, setting) for path in paths}
    for path, function in functions.items():
        if not callable(function):
            raise refused(setting, path, function, "a function")
    return functions


def call_own(function: Callable[..., Any], path: str, setting: str, *arguments: Any) -> Any:
    """What somebody's own function gives; an exception in it is a sentence about their code."""
    try:
        return function(*arguments)
    except Exception as error:
        raise UserError(f"{setting}: {path}: failed ({where_it_failed(error)})") from error


def import_path(thing: Any) -> str:
    """The import path of a class or a function, by which settings and transcripts name it."""
    return f"{thing.__module__}:{thing.__qualname__}"


def install_hint(*extras: str) -> str:
    """How to get the libraries of some extras: by their own names, for peergrad itself may be nowhere to be had."""
    needs = metadata.requires("peergrad") or ()
    wanted = [need.partition(";")[0].strip() for need in needs if any(f"extra == '{extra}'" in need for extra in extras)]
    return "pip install " + " ".join(map(repr, wanted))


def refused(setting: str, path: str, thing: object, wanted: str) -> UserError:
    """What to tell a person whose object does not fit."""
    what = f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
    return UserError(f"{setting}: {path!r} is {what}, not {wanted}")


def where_it_failed(error: BaseException) -> str:
    """What an exception in somebody's code says, and the line it comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = f", {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {error}{line}"

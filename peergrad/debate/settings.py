"""What settings are made of: the numbers one may be, whether it may change, and somebody's own object by its import path."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import pairwise
from typing import Any

from peergrad.debate.errors import UserError


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
    """What stands under each field of a dataclass; nothing where its source can't be read."""
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

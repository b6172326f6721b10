"""Reading a person's files, JSON and TOML, with errors that say where: file, line, field, and what would be right.

A file may be somebody else's, so hostile: only plain files are opened, and what would take for ever to read is refused.
"""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from peergrad.debate.errors import UserError

_MISSING = object()
_DEEPEST = 64
_FLOAT32 = 3.4028235e38
_MOST_TOML = 1 << 20
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
# Time to read a dotted key grows with the square of its parts, and a number of so many digits can't be shown.
_HOSTILE = re.compile(rf"(?<![\w-])(?:{_PART}\.[ \t]*+){{50}}|(?<!\w)0[xob][0-9a-fA-F_]{{100}}")


def open_plain(path: Path) -> BinaryIO:
    """A file that was given by its path. A pipe or a device, which may never end, is an ``OSError``."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (returned open)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file")
    return file


def read_toml(path: Path, setting: str) -> dict[str, Any]:
    """A TOML file. Whatever is wrong with it is a ``UserError`` that begins with the name of the setting."""
    try:
        with open_plain(path) as file:
            raw = file.read(_MOST_TOML + 1)
        if len(raw) > _MOST_TOML:
            raise UserError(f"{setting}: {path} has more than {_MOST_TOML >> 20} MiB; give a file of settings")
        if hostile := _HOSTILE.search(text := raw.decode("utf-8-sig")):
            line = text.count("\n", 0, hostile.start()) + 1
            raise UserError(f"{setting}: {path}, line {line}: {hostile[0][:20]!r}… is too long for a name or a number")
        return tomllib.loads(text)
    except OSError as error:
        raise UserError(f"{setting}: {path} can't be read ({error.strerror}); give a TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of thousands of digits
        raise UserError(f"{setting}: {path} is not TOML ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours. Somebody may have sent it: whatever it holds, it is an object or a sentence."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or _too_deep(value):
        raise UserError(f"{path}: is damaged or missing; restore it")
    return cast("dict[str, Any]", value)


def _too_deep(value: Any) -> bool:
    """Whether it is nested more deeply than anything of ours: whoever follows it down would not return."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        nested: list[Any] = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in nested for item in cast("Any", one.values() if isinstance(one, dict) else one)]
    return bool(level)


@dataclass(frozen=True, slots=True)
class Field:
    """A JSON value and where it was found."""

    value: Any
    where: str
    path: str = ""

    @staticmethod
    def parse(line: str | bytes, where: str) -> Field:
        """One line of JSON, which must be an object."""
        try:
            value = json.loads(line)
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
        except json.JSONDecodeError as error:
            hint = "the line is torn or not JSON; each line must be one whole JSON object"
            raise UserError(f"{where}, column {error.colno}: {error.msg}; {hint}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: can't be read as JSON ({error}); each line must be one whole JSON object") from None
        at = Field(value, where)
        if not isinstance(value, dict):
            at.wrong(f"{at.shown} is not an object; each line must be one JSON object")
        return at

    def wrong(self, what: str) -> NoReturn:
        """Refuse this field."""
        raise UserError(f"{self.where}, {self.path}: {what}" if self.path else f"{self.where}: {what}")

    @property
    def shown(self) -> str:
        """The value as a person wrote it, short."""
        try:
            text = json.dumps(self.value, default=str)  # TOML has dates
        except (RecursionError, ValueError):
            text = "what is nested so deep, or has so many digits,"
        return text if len(text) <= 60 else text[:57] + "..."

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def __getitem__(self, name: str) -> Field:
        """A field that must be there."""
        found = self.get(name)
        if found.value is _MISSING:
            found.wrong("is missing")
        return found

    def get(self, name: str, default: Any = _MISSING) -> Field:
        """A field that may be absent."""
        path = f"{self.path}.{name}" if self.path else name
        return Field(cast("dict[str, Any]", self.value).get(name, default), self.where, path)

    def __iter__(self) -> Iterator[Field]:
        for index, value in enumerate(self.items()):
            yield Field(value, self.where, f"{self.path}[{index}]")

    def items(self) -> list[Any]:
        values = self.value
        if not isinstance(values, list):
            self.wrong(f"{self.shown} is not a list")
        return cast("list[Any]", values)

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.wrong(f"{self.shown} is not text; write it in quotes")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.wrong(f"{self.shown} is not true or false")
        return self.value

    def whole(self, least: int, most: int | None = None, why: str = "") -> int:
        """A whole number within bounds."""
        if type(self.value) is not int or self.value < least or (most is not None and self.value > most):
            bounds = f"a whole number from {least} to {most}" if most is not None else f"a whole number of at least {least}"
            self.wrong(f"{self.shown} is not possible; give {bounds}{why}")
        return self.value

    def wholes(self, least: int, most: int) -> list[int]:
        """A list of whole numbers within bounds, which may be long."""
        values = self.items()
        if set(map(type, values)) - {int} or (values and not (least <= min(values) and max(values) <= most)):
            return [field.whole(least, most) for field in self]
        return values

    def numbers(self) -> list[float]:
        """A list of finite numbers, which may be long."""
        values = self.items()
        if set(map(type, values)) - {float} or not all(-_FLOAT32 <= value <= _FLOAT32 for value in values):
            return [field.number() for field in self]
        return values

    def number(self, least: float = -math.inf) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not abs(self.value) <= _FLOAT32:
            self.wrong(f"{self.shown} is not a number, or too large for one")
        if self.value < least:
            self.wrong(f"{self.shown} is not possible; give {least:g} or more")
        return float(self.value)

    def one_of(self, allowed: tuple[str, ...]) -> str:
        if self.value not in allowed:
            self.wrong(f"{self.shown} is not known; {nearest(str(self.value), allowed)}")
        return self.value

    def object(self) -> Field:
        if not isinstance(self.value, dict):
            self.wrong(f"{self.shown} is not an object")
        return self

    def names(self) -> list[str]:
        return list(cast("dict[str, Any]", self.object().value))


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def nearest(name: str, allowed: tuple[str, ...]) -> str:
    """What a person who wrote ``name`` may have meant."""
    close = difflib.get_close_matches(name, allowed, 1)
    return f"did you mean {close[0]!r}?" if close else "it may be " + ", ".join(map(repr, allowed))

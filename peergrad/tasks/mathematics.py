"""Comparing mathematics with math-verify. It may never come back, so it is called in a ``Pool``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import math_verify
import sympy

_LONGEST = 500


def compare(gold: str, answer: str) -> Iterator[dict[str, Any]]:
    """Whether an expression equals the right one; then, if not, also a name that equal expressions share."""
    known = math_verify.parse(rf"\boxed{{{gold}}}", parsing_timeout=0)
    parsed = math_verify.parse(rf"\boxed{{{answer}}}", parsing_timeout=0)
    equal = math_verify.verify(known, parsed, timeout_seconds=0)
    yield {"equal": equal, "name": ""}
    if not equal and parsed:
        yield {"equal": equal, "name": _name(parsed[0])}


def _name(parsed: Any) -> str:
    """One text for all spellings of an expression, as far as sympy brings them together; empty if it is none."""
    if isinstance(parsed, str):
        return ""
    with contextlib.suppress(Exception):
        value = parsed.doit()
        if isinstance(value, sympy.Float):
            value = sympy.Rational(str(value))
        name = str(sympy.simplify(value) if isinstance(value, sympy.Expr) else value)
        return name if len(name) <= _LONGEST else ""
    return ""


list(compare(r"(\frac{\sqrt{3} x^2 + 1}{2}, 5)", r"[-\pi, 2x)"))  # loads what is needed, before a worker is copied

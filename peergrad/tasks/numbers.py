"""Numbers as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)?(\.\d*)?", re.ASCII)
_LONGEST = 200


def as_number(text: str) -> Fraction | None:
    """The number that a text is, exactly: digits, thousands commas, a decimal point, a sign, a dollar; else ``None``.

    Example: ``as_number("$1,234.50") == Fraction(2469, 2)``
    """
    text = text.strip()
    if len(text) > _LONGEST:  # no answer is that long, and turning digits into a number is not linear
        return None
    text = text.replace("\\$", "").replace("$", "").replace("\u2212", "-").strip()
    match = _NUMBER.fullmatch(text)
    if not match or not (match[2] or (match[3] or "").strip(".")):
        return None
    return Fraction(f"{match[1]}{(match[2] or '0').replace(',', '')}{(match[3] or '').rstrip('.')}")

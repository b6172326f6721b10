"""Amounts in words."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """A length of time, short."""
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def money(usd: float, digits: int = 4) -> str:
    """What was paid, to be added to a sentence; nothing if it was nothing."""
    return f", ${usd:,.{digits}f}" if usd else ""

"""Which tokens of a turn a reward is credited to (SPEC 6.3 to 6.5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peergrad.debate.types import Debate, Floats, Turn
from peergrad.learn.advantages import Values
from peergrad.reward.stream import Stream


def credit(debate: Debate, streams: Sequence[Stream], advantages: Sequence[Values]) -> list[Floats]:
    """Per turn, the advantage of each of its sampled tokens: every stream's, times its weight, on its sections.

    A turn without tokens gets an empty array.
    """
    credited: list[Floats] = []
    for index, turn in enumerate(debate.turns):
        total_T = np.zeros(0 if turn.tokens is None else len(turn.tokens.ids_T), np.float32)
        for stream, values in zip(streams, advantages, strict=True):
            value = values[turn.agent if stream.unit == "agent" else index]
            if not value:
                continue
            for tokens in _tokens_of(turn, stream.sections):
                total_T[tokens] += stream.weight * value
        credited.append(total_T)
    return credited


def section_tokens(turn: Turn, name: str) -> slice:
    """The tokens of a section: those whose first byte lies in it, tags included. Empty if the turn has no such section.

    Without a contract the whole reply is the solution.
    """
    if turn.contract is None and name == "solution":
        return slice(None)
    section = next((section for section in turn.parsed.sections if section.name == name), None)
    if section is None or turn.tokens is None:
        return slice(0, 0)
    bounds = [_byte_offset(turn.text, section.start), _byte_offset(turn.text, section.end)]
    first, last = np.searchsorted(turn.tokens.starts_T, bounds)
    return slice(int(first), int(last))


def _tokens_of(turn: Turn, sections: tuple[str, ...] | None) -> list[slice]:
    return [slice(None)] if sections is None else [section_tokens(turn, name) for name in sections]


def _byte_offset(text: str, chars: int) -> int:
    """Where a character begins in the UTF-8 bytes of the text."""
    return chars if text.isascii() else len(text[:chars].encode("utf-8", "surrogatepass"))

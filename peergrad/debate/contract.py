"""Reading what an agent wrote: its sections, its consensus, its votes (SPEC 1).

The text is model output, so hostile: linear in its length, no exception for any input. Nothing is rewritten; sections
are spans of the raw reply, because token credit needs them. Fences, preambles and ``<think>`` markers need no treatment
of their own: they are not contract tags and are passed over.
"""

from __future__ import annotations

import re
from typing import Literal

from peergrad.debate.types import Contract, Parsed, ParseError, Section, section_text
from peergrad.debate.votes import read_votes

Order = Literal["strict", "any"]

_THINK_ENDS = re.compile(r"</think>", re.IGNORECASE)

FULL = Contract(("solution", "evaluation", "comparison", "consensus", "consensus_reason"))
SHORT = Contract(("solution", "evaluation", "comparison"))


def read(text: str, contract: Contract, *, truncated: bool = False, order: Order = "strict", max_votes: int = 64) -> Parsed:
    """Read one reply under a contract. Never raises.

    Example: ``read("<solution>4</solution><evaluation>…", SHORT).sections[0].inner == (10, 11)``
    """
    if truncated:
        return Parsed(error=ParseError("truncated"))
    found = _sections(text, 0, contract, order)
    if isinstance(found, ParseError) and found.kind == "repeated":
        found = _sections_after_thinking(text, contract, order) or found
    if isinstance(found, ParseError):
        return Parsed(error=found)
    by_name = {section.name: section for section in found}
    consensus = None
    if "consensus" in by_name:
        verdict = section_text(text, by_name["consensus"]).strip().upper()
        if verdict not in ("YES", "NO"):
            return Parsed(error=ParseError("consensus", "consensus"))
        consensus = verdict == "YES"
    if "comparison" not in by_name:
        return Parsed(found, consensus=consensus)
    votes, malformed = read_votes(text, *by_name["comparison"].inner, max_votes=max_votes)
    return Parsed(found, votes, malformed, consensus)


def _sections(text: str, start: int, contract: Contract, order: Order) -> tuple[Section, ...] | ParseError:
    """The sections of the contract that begins at ``start``, or the first tag at fault in contract order (SPEC 1.6)."""
    for name in contract.names:
        opened, closed = text.count(f"<{name}>", start), text.count(f"</{name}>", start)
        if opened > 1 or closed > 1:
            return ParseError("repeated", name)
        if not opened:
            return ParseError("missing", name)
        if not closed:
            return ParseError("unclosed", name)
    sections = [
        Section(name, text.find(f"<{name}>", start), text.find(f"</{name}>", start) + len(name) + 3)
        for name in contract.names
    ]
    if order == "any":
        sections.sort(key=lambda section: section.start)
    at = start
    for section in sections:
        if section.start < at or section.inner[1] < section.inner[0]:
            return ParseError("order", section.name)
        at = section.end
    return tuple(sections)


def _sections_after_thinking(text: str, contract: Contract, order: Order) -> tuple[Section, ...] | None:
    """The contract that follows a closed thinking block, if it is whole: what was drafted before does not count (SPEC 1.5).

    The block may have been opened by the chat template, outside the reply, so ``</think>`` alone is enough.
    """
    start = min(text.rfind(tag) for tag in contract.tags)
    drafts = [at + len(tag) for tag in contract.tags if (at := text.rfind(tag, 0, start)) >= 0]
    if not _THINK_ENDS.search(text, max(drafts, default=0), start):
        return None
    found = _sections(text, start, contract, order)
    return None if isinstance(found, ParseError) else found

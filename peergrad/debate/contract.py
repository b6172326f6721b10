"""Reading what an agent wrote: its sections, its consensus, its votes (SPEC 1).

The text is model output, so hostile: linear in its length, no exception for any input. Nothing is rewritten; sections
are spans of the raw reply, because token credit needs them. Fences, preambles and ``<think>`` markers need no treatment
of their own: they are not contract tags and are passed over.

A strict reader wants the exact form. A tolerant one also takes what is nearly in it (SPEC 1.8): most models that reason at
length forget a closing tag, and a reader that throws their replies away teaches them not to reason.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import Literal

from peergrad.debate.types import Contract, Op, Parsed, ParseError, Section

Order = Literal["strict", "any"]
Reading = Literal["tolerant", "strict"]
MAX_VOTES = 64  # that are kept of one reply

_THINK_ENDS = re.compile(r"</think>", re.IGNORECASE)

FULL = Contract(("solution", "evaluation", "comparison", "consensus", "consensus_reason"))
SHORT = Contract(("solution", "evaluation", "comparison"))


def read(
    text: str,
    contract: Contract | None,
    *,
    truncated: bool = False,
    reading: Reading = "strict",
    order: Order = "strict",
    max_votes: int = MAX_VOTES,
) -> Parsed:
    """Read one reply under a contract; without one, all of it is the answer and there is nothing to find. Never raises.

    Example: ``read("<solution>4</solution><evaluation>…", SHORT).sections[0].inner == (10, 11)``
    """
    if contract is None:
        return Parsed()
    if truncated:
        return Parsed(error=ParseError("truncated"))
    exact = _exact(text, contract, order, max_votes, reading)
    return exact if exact.error is None or reading == "strict" else _tolerant(text, contract, max_votes)


def _exact(text: str, contract: Contract, order: Order, max_votes: int, reading: Reading) -> Parsed:
    sections = _sections(text, 0, contract, order)
    if isinstance(sections, ParseError) and sections.kind == "repeated":
        sections = _sections_after_thinking(text, contract, order) or sections
    if isinstance(sections, ParseError):
        return Parsed(error=sections)
    by_name = {section.name: section for section in sections}
    consensus = None
    if "consensus" in by_name:
        verdict = by_name["consensus"].words(text).strip().upper()
        if verdict not in ("YES", "NO"):
            return Parsed(error=ParseError("consensus", "consensus"))
        consensus = verdict == "YES"
    if "comparison" not in by_name:
        return Parsed(sections, consensus=consensus)
    if reading == "tolerant":
        votes, malformed = _escaped_votes(text, by_name["comparison"], max_votes)
    else:
        votes, malformed = read_votes(text, *by_name["comparison"].inner, max_votes=max_votes)
    return Parsed(sections, votes, malformed, consensus)


def _escaped_votes(text: str, section: Section, max_votes: int) -> tuple[tuple[tuple[int, Op, int], ...], int]:
    """Votes whose signs may be written as in HTML."""
    comparison = text[slice(*section.inner)].replace("&gt;", ">").replace("&lt;", "<")
    return read_votes(comparison, 0, len(comparison), max_votes=max_votes)


def _tolerant(text: str, contract: Contract, max_votes: int) -> Parsed:
    """A reply that is not in the exact form: each section from its first opening tag to the next tag of the contract, or to
    the end; what stands before all of them is the solution, if there is no other (SPEC 1.8).
    """
    tags = [(tag.start(), tag.end(), tag[2], not tag[1]) for tag in _tags(contract).finditer(text, _after_thinking(text))]
    first = {name: place for place, (_, _, name, opens) in reversed([*enumerate(tags)]) if opens}
    sections: list[Section] = []
    for name, place in first.items():
        start, begin, _, _ = tags[place]
        end, behind, closes, opens = tags[place + 1] if place + 1 < len(tags) else (len(text), len(text), "", False)
        sections.append(Section(name, start, behind if closes == name and not opens else end, (begin, end)))
    before = text[: tags[0][0]] if tags else text
    if "solution" in contract.names and "solution" not in first:
        if not before.strip():
            return Parsed(error=ParseError("missing", "solution"))
        sections.append(Section("solution", 0, len(before), (0, len(before))))
    elif not sections:
        return Parsed(error=ParseError("missing", contract.names[0]))
    sections.sort(key=lambda section: section.start)
    by_name = {section.name: section.words(text) for section in sections}
    consensus = by_name.get("consensus", "").strip().upper() == "YES" if "consensus" in contract.names else None
    comparison = next((section for section in sections if section.name == "comparison"), Section("", 0, 0, (0, 0)))
    votes, malformed = _escaped_votes(text, comparison, max_votes)
    # A solution without tags before the others is in form: it is what is asked for (SPEC 3.3).
    rest = Contract(tuple(name for name in contract.names if name != "solution"))
    untagged = all(name != "solution" for _, _, name, _ in tags) and bool(rest.names)
    tolerated = not untagged or _exact(text, rest, "strict", max_votes, "tolerant").error is not None
    return Parsed(tuple(sections), votes, malformed, consensus, tolerated=tolerated)


@cache
def _tags(contract: Contract) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(map(re.escape, contract.names))})>")


def _after_thinking(text: str) -> int:
    """Where a reply begins: behind its thinking, if it goes on after it."""
    after = len(text)
    for match in reversed([*_THINK_ENDS.finditer(text)]):
        if text[match.end() : after].strip():
            return match.end()
        after = match.start()
    return 0


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


# Votes (SPEC 2.1, 2.2, 2.5) are found by their operator: a run of comparison signs that touches the name of an agent looks
# like a vote; it is one when the run is exactly >, < or = and both sides are Agent and a number. Looking at operators rather
# than at lines gives several votes on a line, chains, bullets and bold for free, and reads any text in one pass.
#
# Cases are spelt out and every alternative begins by consuming one character of a fixed set: so the regex engine skips
# all other characters at full speed. Repeats are possessive, so no input backtracks.
_SIGNS = "<>=!~≈≠≤≥≺≻"
_THINK = "</?[tT][hH][iI][nN][kK]>"
_BLANK = r" \t\r\f\v\u00a0\u2000-\u200a\u202f\u205f\u3000"
# Atomic where a group is repeated: up to Python 3.11.4 a possessive group forgets where it was when it fails half-way
# (gh-106052), and votes written with < are lost.
_GAP = rf"[{_BLANK}*_`]*+(?>(?:{_THINK}[{_BLANK}*_`]*+)*)"  # between a name and an operator: also emphasis, thinking markers
_OP = rf"[{_SIGNS}]+(?!(?<=<){_THINK[1:]})"  # not the first letter of a thinking marker, which only the last sign may be
_ENT = rf"[eE][nN][tT]{_GAP}"
_ID = r"[-+#]?[^\W_]++(?!\.?[^\W_])"

_LOOKS_LIKE_VOTE = re.compile(
    rf"[aA{_SIGNS}](?:"
    rf"(?<=[aA])[gG](?<![^\W_]..){_ENT}(?P<a>{_ID}){_GAP}(?P<op>{_OP})(?:{_GAP}(?=[aA][gG]{_ENT}(?P<b>{_ID})))?"
    # An operator with an agent on its right only. Not one: the rest of a run, the end of a tag, a Markdown quote mark.
    rf"|(?<![aA])(?<![{_SIGNS}].)(?<!\w.)(?=[{_SIGNS}]*+{_GAP}[aA][gG]{_ENT}{_ID})(?<!\A>)(?<!\n>)"
    r")"
)
_NUMBER = re.compile(r"[0-9]{1,9}")
_MOST = 1024  # what more looks like a vote is not read, so the work after the scan is bounded whatever the text


def read_votes(
    text: str, start: int, end: int, *, max_votes: int = MAX_VOTES
) -> tuple[tuple[tuple[int, Op, int], ...], int]:
    """The votes written in ``text[start:end]`` as ``(a, op, b)``, and how many more looked like votes but are not.

    At most ``max_votes`` are kept, and a vote said again gives way to one that is new: repeating a line pushes none out.

    Example: ``read_votes("Agent 2 > Agent 0 = Agent 1", 0, 27) == (((2, ">", 0), (0, "=", 1)), 0)``
    """
    votes: list[tuple[int, Op, int]] = []
    malformed = 0
    for match in islice(_LOOKS_LIKE_VOTE.finditer(text[start:end]), _MOST):
        a, op, b = match["a"], match["op"], match["b"]
        if not (a and b and op in (">", "<", "=") and _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)):
            malformed += 1
        elif op == "<":
            votes.append((int(b), ">", int(a)))
        else:
            votes.append((int(a), op, int(b)))
    if len(votes) > max_votes:
        first = {vote: index for index, vote in reversed(list(enumerate(votes)))}
        again = [index for index, vote in enumerate(votes) if first[vote] != index]
        votes = [votes[index] for index in sorted([*sorted(first.values()), *again][:max_votes])]
    return tuple(votes), malformed

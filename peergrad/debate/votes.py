"""Reading votes in the comparison section (SPEC 2.1, 2.2, 2.5).

A vote is found by its operator: a run of comparison signs that touches the name of an agent looks like a vote; it is
one when the run is exactly ``>``, ``<`` or ``=`` and both sides are ``Agent`` and a number. Looking at operators rather
than at lines gives several votes on a line, chains, bullets and bold for free, and reads any text in one pass.
"""

from __future__ import annotations

import re

from peergrad.debate.types import Op

# Cases are spelt out and every alternative begins by consuming one character of a fixed set: so the regex engine skips
# all other characters at full speed. Repeats are possessive, so no input backtracks.
_SIGNS = "<>=!~≈≠≤≥≺≻"
_THINK = "</?[tT][hH][iI][nN][kK]>"
_BLANK = r" \t\r\f\v\u00a0\u2000-\u200a\u202f\u205f\u3000"
_GAP = rf"[{_BLANK}*_`]*+(?:{_THINK}[{_BLANK}*_`]*+)*+"  # between a name and an operator: also emphasis, thinking markers
_OP = rf"(?:(?!{_THINK})[{_SIGNS}])++"
_GENT = rf"[gG][eE][nN][tT][{_BLANK}]*+"
_ID = r"[-+#]?[^\W_]++(?!\.?\w)"

_LOOKS_LIKE_VOTE = re.compile(
    rf"[aA{_SIGNS}](?:"
    rf"(?<=[aA])(?<!\w.){_GENT}(?P<a>{_ID}){_GAP}(?P<op>{_OP})(?:{_GAP}(?=[aA]{_GENT}(?P<b>{_ID})))?"
    # An operator with an agent on its right only. Not one: the rest of a run, a Markdown quote mark, a thinking marker.
    rf"|(?<![aA])(?<![{_SIGNS}].)(?<![tT][hH][iI][nN][kK]>)(?=[{_SIGNS}]*+{_GAP}[aA]{_GENT}{_ID})(?<!\A>)(?<!\n>)"
    r")"
)
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_votes(text: str, start: int, end: int, *, max_votes: int = 64) -> tuple[tuple[tuple[int, Op, int], ...], int]:
    """The votes written in ``text[start:end]`` as ``(a, op, b)``, and how many more looked like votes but are not.

    Reading stops at ``max_votes`` of either, so the work after the scan is bounded whatever the text.

    Example: ``read_votes("Agent 2 > Agent 0 = Agent 1", 0, 27) == (((2, ">", 0), (0, "=", 1)), 0)``
    """
    votes: list[tuple[int, Op, int]] = []
    malformed = 0
    for match in _LOOKS_LIKE_VOTE.finditer(text[start:end]):
        a, op, b = match["a"], match["op"], match["b"]
        if a and b and op in (">", "<", "=") and _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b):
            if op == "<":
                votes.append((int(b), ">", int(a)))
            else:
                votes.append((int(a), op, int(b)))
        else:
            malformed += 1
        if max(len(votes), malformed) >= max_votes:
            break
    return tuple(votes), malformed

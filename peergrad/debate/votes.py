"""Reading votes in the comparison section (SPEC 2.1, 2.2, 2.5).

A vote is found by its operator: a run of comparison signs that touches the name of an agent looks like a vote; it is
one when the run is exactly ``>``, ``<`` or ``=`` and both sides are ``Agent`` and a number. Looking at operators rather
than at lines gives several votes on a line, chains, bullets and bold for free, and reads any text in one pass.
"""

from __future__ import annotations

import re
from itertools import islice

from peergrad.debate.types import Op

# Cases are spelt out and every alternative begins by consuming one character of a fixed set: so the regex engine skips
# all other characters at full speed. Repeats are possessive, so no input backtracks.
_SIGNS = "<>=!~≈≠≤≥≺≻"
_THINK = "</?[tT][hH][iI][nN][kK]>"
_BLANK = r" \t\r\f\v\u00a0\u2000-\u200a\u202f\u205f\u3000"
_GAP = rf"[{_BLANK}*_`]*+(?:{_THINK}[{_BLANK}*_`]*+)*+"  # between a name and an operator: also emphasis, thinking markers
_OP = rf"(?:(?!{_THINK})[{_SIGNS}])++"
_ENT = rf"[eE][nN][tT]{_GAP}"
_ID = r"[-+#]?[^\W_]++(?!\.?[^\W_])"

_LOOKS_LIKE_VOTE = re.compile(
    rf"[aA{_SIGNS}](?:"
    rf"(?<=[aA])[gG](?<![^\W_]..){_ENT}(?P<a>{_ID}){_GAP}(?P<op>{_OP})(?:{_GAP}(?=[aA][gG]{_ENT}(?P<b>{_ID})))?"
    # An operator with an agent on its right only. Not one: the rest of a run, the end of a tag, a Markdown quote mark.
    rf"|(?<![aA])(?<![{_SIGNS}].)(?<!\w.)(?=[{_SIGNS}]*+{_GAP}[aA][gG]{_ENT}{_ID})(?<!\A>)(?<!\n>)"
    r")"
)
MAX_VOTES = 64
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

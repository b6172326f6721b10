"""Which debates a report shows: some from before and some from after, on the same questions if possible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from peergrad.debate.types import Debate
from peergrad.runs.folder import Run

SHOWN = 5
_SCANNED = 64  # debates of a file that are looked through for the same questions


@dataclass(frozen=True, slots=True)
class Samples:
    """Debates side by side; ``None`` where there is none. ``paired``: both sides of a row are about the same question."""

    rows: tuple[tuple[Debate | None, Debate | None], ...] = ()
    before: str = ""
    after: str = ""
    paired: bool = False


def samples(run: Run) -> Samples:
    """The first and the last evaluation's debates on the same questions; else the first and the last step's."""
    evaluated = _ends(run, "eval")
    if evaluated:
        (before, first), (after, last) = evaluated
        later = {(debate.question.id, debate.question.text): debate for debate in last}
        rows = [(debate, later.get((debate.question.id, debate.question.text))) for debate in first]
        both = tuple((one, other) for one, other in rows if other)[:SHOWN]
        if before != after and both:
            return Samples(both, _when(before), _when(after), paired=True)
    ends = _ends(run, "step") or evaluated
    if not ends:
        return Samples()
    (before, first), (after, last) = ends
    if before == after:
        return Samples(tuple((debate, None) for debate in first[:SHOWN]), _when(before))
    size = min(SHOWN, max(len(first), len(last)))
    rows = zip(_padded(first, size), _padded(last, size), strict=True)
    return Samples(tuple(rows), _when(before), _when(after))


def _ends(run: Run, kind: str) -> tuple[tuple[str, list[Debate]], tuple[str, list[Debate]]] | None:
    """The first and the last file of a kind that has debates, with some of them."""
    found = {
        int(match[1]): path.stem
        for path in (run.path / "debates").glob(f"{kind}_*.jsonl")
        if (match := re.fullmatch(rf"{kind}_(\d{{1,9}})", path.stem))
    }
    order = [found[step] for step in sorted(found)]
    first = next(((name, some) for name in order if (some := _some(run, name))), None)
    last = next(((name, some) for name in reversed(order) if (some := _some(run, name))), None)
    return (first, last) if first and last else None


def _some(run: Run, name: str) -> list[Debate]:
    return [debate for _, debate in islice(run.debates(name), _SCANNED)]


def _padded(debates: Sequence[Debate], size: int) -> list[Debate | None]:
    return [*debates[:size], *[None] * (size - len(debates))]


def _when(name: str) -> str:
    kind, _, number = name.partition("_")
    if kind == "eval":
        return "held-out questions before training" if int(number) == 0 else f"held-out questions after step {int(number)}"
    return f"self-play, step {int(number)}"

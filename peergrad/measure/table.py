"""What changed over a run, for the table on the terminal and in the report."""

from __future__ import annotations

from dataclasses import dataclass

from peergrad.measure.history import RunHistory, fifths, mean
from peergrad.measure.shown import SHOWN, Shown, matches, own_names


@dataclass(frozen=True, slots=True)
class Row:
    """A metric before and after; ``None`` where it was not measured."""

    label: str
    before: float | None
    after: float | None
    form: str

    @property
    def share(self) -> bool:
        return self.form.endswith("%}")


def rows_before_and_after(history: RunHistory) -> list[Row]:
    """Self-play over the first and the last fifth of its steps; held out, the first and the last evaluation."""
    own = [Shown(name, row=name, form="{:.4g}") for name in own_names(history.names["train"])]
    parts = {"train": fifths(history.train), "eval": (history.evals[:1], history.evals[1:][-1:])}
    rows: list[Row] = []
    for shown in (*SHOWN, *own):
        phase = "eval" if shown.name.startswith("eval/") else "train"
        found = matches(shown, history.names[phase])[:4] if shown.row else []
        for name, stars in found:
            before, after = (mean(lines, name, shown.weight) for lines in parts[phase])
            label = f"{shown.row}: {stars[0]}" if len(found) > 1 else shown.row
            rows += [Row(label or name, before, after, shown.form)] if before is not None or after is not None else []
    return rows

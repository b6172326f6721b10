"""A run's metrics before and after: what got better, what got worse, and of how many cases."""

from __future__ import annotations

from dataclasses import dataclass

from peergrad.measure.history import RunHistory, all_shown, fifths, mean, total

CASES = {
    "replies/readable": ("replies/read", 1),
    "eval/debate/*/replies/readable": ("eval/debate/*/replies/read", 1),
    "train_*/correct": ("train_*/answers", 1),
    "eval/direct/*/correct": ("eval/direct/*/answers", 1),
    "eval/sampled/*/correct": ("eval/sampled/*/answers", 1),
    "eval/debate/*/correct": ("eval/debate/*/answers", 1),
    "eval/role-averaged/*/correct": ("eval/role-averaged/*/questions", 1),
    "eval/role-averaged/*/win_rate": ("eval/role-averaged/*/questions", 1),
    "votes/per_due_turn": ("votes/due_turns", 0),
    "votes/due_turns_with_vote": ("votes/due_turns", 1),
    "votes/accuracy": ("votes/between_right_and_wrong", 1),
    "votes/copied": ("v2/total_votes", -1),
    "debates/without_signal": ("debates/done", -1),
}
"""What counts the cases that a metric is a share of, and whether more of it is better (1), or less (-1)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A metric before and after; ``None`` where it was not measured."""

    label: str
    before: float | None
    after: float | None
    form: str
    cases: tuple[int | None, ...] = (None, None)
    """Of how many cases each is, if they were counted."""
    good: int = 0

    @property
    def change(self) -> int:
        """1 for better, -1 for worse, 0 where it is the same as far as it is shown, or not known."""
        if self.before is None or self.after is None or self.form.format(self.before) == self.form.format(self.after):
            return 0
        return self.good if self.after > self.before else -self.good

    @property
    def share(self) -> bool:
        return self.form.endswith("%}")


def rows_before_and_after(history: RunHistory) -> list[Row]:
    """Self-play over the first and the last fifth of its steps; held out, the first and the last evaluation."""
    names = history.names
    parts = {"train": fifths(history.train), "eval": (history.evals[:1], history.evals[1:][-1:])}
    rows: list[Row] = []
    for shown in all_shown(names["train"]):
        named = shown.matches(names[shown.phase])[:4] if shown.row else []
        for name, stars in named:
            before, after = (mean(lines, name, shown.weight) for lines in parts[shown.phase])
            label = f"{shown.row}: {stars[0]}" if len(named) > 1 else shown.row
            counter, good = CASES.get(shown.name, ("", 0))
            counter = counter.replace("*", stars[0] if stars else "", 1)
            cases = tuple(round(total(lines, counter)) or None for lines in parts[shown.phase])
            if before is not None or after is not None:
                rows.append(Row(label or name, before, after, shown.form, cases, good))
    return rows

"""How metrics are shown: in the live view, in the table before and after, and in the charts of the report.

A metric that is not named here, such as somebody's own, is shown in all three under its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peergrad.measure.history import RunHistory, fifths, mean, number


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines on common axes. A unit that begins with % is of numbers from 0 to 1."""

    group: str
    title: str
    unit: str
    note: str | None = None
    chance: float | None = None
    """Where a coin would be."""
    from_zero: bool = False
    axis: str = "step"

    @property
    def share(self) -> bool:
        return self.unit.startswith("%")


@dataclass(frozen=True, slots=True)
class Shown:
    """One metric: its line in a chart, its heading in the live view, its row in the table. Unset, it is not there.

    A * in the name stands for anything, such as a task; ``{0}`` in label and title is what the first one stands for. The
    mean in the table is weighted by the metric called ``weight``.
    """

    name: str
    label: str = ""
    chart: Chart | None = None
    live: str | None = None
    row: str | None = None
    form: str = "{:.0%}"
    weight: str | None = None


READABLE = Chart("Form and skill", "Readable replies", "% of replies")
ACCURACY = Chart(
    "Form and skill",
    "Accuracy",
    "% of answers",
    "Final answers that are right, where the answer is known. It is measured, never rewarded.",
)
DUE = "A vote is due once an agent has seen the words of two others."
CAST = Chart("Votes", "Votes cast", "per due turn", DUE, from_zero=True)
QUALITY = Chart("Votes", "Quality of votes", "% of votes", "The thin line is where a coin would be.", chance=0.5)
SIGNAL = Chart(
    "Votes",
    "Debates without signal",
    "% of debates",
    "A debate without signal has no advantage that differs from 0: nothing is learned from it.",
)
STREAMS = Chart("Rewards", "Mean reward of each stream", "reward")
KL = Chart(
    "Learning",
    "KL, sampler to trainer",
    "nats",
    "How far the policy that learns is from the one that spoke; near 0 unless batches are sampled ahead.",
)
SPEED = Chart("Lengths and speed", "Speed", "tokens per second")

SHOWN = (
    Shown("replies/readable", "self-play", READABLE, live="readable", row="Readable replies"),
    Shown("eval/debate/*/replies/readable", "held out", READABLE, row="Readable replies, held out"),
    Shown("replies/truncated", "cut off by the token limit", READABLE),
    Shown("train_*/correct", "self-play", ACCURACY, row="Right answers in self-play"),
    Shown("eval/direct/*/correct", "held out, alone", ACCURACY, row="Right answers alone, held out"),
    Shown("eval/debate/*/correct", "held out, in debate", ACCURACY, row="Right answers in debate, held out"),
    Shown(
        "votes/per_due_turn",
        "valid votes per due turn",
        CAST,
        live="votes per due turn",
        row="Valid votes per due turn",
        form="{:.2f}",
    ),
    Shown("votes/due_turns_with_vote", "due turns with a vote", CAST, row="Due turns with a vote"),
    Shown(
        "votes/accuracy",
        "right, between a right and a wrong solution",
        QUALITY,
        row="Right votes between a right and a wrong solution",
        weight="votes/between_right_and_wrong",
    ),
    Shown("votes/agreement", "alike, by different agents on the same pair", QUALITY),
    Shown("votes/ties", "ties", QUALITY),
    Shown("debates/without_signal", "without signal", SIGNAL, live="no signal", row="Debates without signal"),
    Shown("debates/same_answer", "all agents end on the same answer", SIGNAL),
    Shown("debates/dropped", live="dropped", form="{:.0f}"),
    Shown("reward/*/mean", "{0}", STREAMS),
    Shown("pairwise_reward", "score per agent", STREAMS),
    Shown("reward/*/seat/*", "agent {1}", Chart("Rewards", "Reward by seat: {0}", "reward")),
    Shown("optim/kl_sample_train_v1", "v1, mean difference", KL),
    Shown("optim/kl_sample_train_v2", "v2, half mean square", KL),
    Shown("optim/entropy", "self-play", Chart("Learning", "Entropy", "nats per token")),
    Shown("optim/loss", "self-play", Chart("Learning", "Loss", "loss")),
    Shown("optim/grad_norm", "self-play", Chart("Learning", "Gradient norm", "norm, unclipped")),
    Shown("warm/loss", "cross-entropy", Chart("Learning", "Warm start", "loss", axis="warm step")),
    Shown("env/all/ac_tokens_per_turn", "reply", Chart("Lengths and speed", "Length of replies", "tokens per turn")),
    Shown("env/all/ob_tokens_per_turn", "prompt", Chart("Lengths and speed", "Length of prompts", "tokens per turn")),
    Shown("tokens/sampled_per_s", "sampled", SPEED, live="tok/s", form="{:.0f}"),
    Shown("tokens/trained_per_s", "trained on", SPEED),
)

LOGGED = """
phase step warm alarms lr debates/done tokens/sampled tokens/trained time/train_s time/sample_s votes/agreement_pairs
votes/between_right_and_wrong votes/winner_is_right pairwise_* consensus_reached round parse_error env/all/* v2/*
reward/*/std flips/right_to_wrong flips/wrong_to_right bias/seat/* bias/persona/* bias/longer optim/* train_*/* eval/* warm/*
""".split()  # noqa: SIM905 (one a line would be 30 lines)
"""Built-in metrics that are logged and not shown."""

_MOST_OWN = 24  # a file may name any number of them


def matches(shown: Shown, names: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that are meant, shorter ones first, each with what every * in it stands for."""
    pattern = _pattern(shown.name)
    named = [(name, match.groups()) for name in names if (match := pattern.fullmatch(name))]
    return sorted(named, key=lambda item: (len(item[0]), item[0]))


def filled(template: str, stars: tuple[str, ...]) -> str:
    """A label or title with what the *s stand for. Not ``format``: names come from a file and may hold anything."""
    for index, star in enumerate(stars):
        template = template.replace(f"{{{index}}}", star)
    return template


def own_names(names: Iterable[str]) -> list[str]:
    """Metrics that nothing here knows, such as somebody's own."""
    known = [_pattern(name) for name in (*(shown.name for shown in SHOWN), *LOGGED)]
    return sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in known))[:_MOST_OWN]


def live_values(line: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the live view shows of a step: headings and numbers."""
    of_ours = [(shown.live, number(line.get(shown.name)), shown.form) for shown in SHOWN if shown.live]
    own = [(name, number(line[name]), "{:.4g}") for name in own_names(line)]
    return [(heading, form.format(value)) for heading, value, form in (*of_ours, *own) if heading and value is not None]


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
        named = matches(shown, history.names[phase])[:4] if shown.row else []
        for name, stars in named:
            before, after = (mean(lines, name, shown.weight) for lines in parts[phase])
            label = f"{shown.row}: {stars[0]}" if len(named) > 1 else shown.row
            rows += [Row(label or name, before, after, shown.form)] if before is not None or after is not None else []
    return rows


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, name.split("*"))), re.DOTALL)

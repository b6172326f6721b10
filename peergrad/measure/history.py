"""What a run logged, and how it is shown: in the live view, in the table before and after, and in the charts of the report.

Anything in a log may be missing, null or cut off. A metric that ``SHOWN`` does not name, such as somebody's own, is shown in
all three under its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from peergrad.learn.trainer import Logged, Updates

Points = Sequence[tuple[float, float | None]]

BINS = 200
_LARGEST = 1e100  # what is beyond it is no measurement, and would leave no room for the rest of the axis
_MOST_OWN = 24  # a file may name any number of metrics


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines on common axes. A unit that begins with % is of numbers from 0 to 1."""

    group: str
    title: str
    unit: str
    note: str | None = None
    chance: float | None = None
    """Where a coin would be."""
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

    @property
    def phase(self) -> str:
        return self.name.partition("/")[0] if self.name.startswith(("eval/", "warm/")) else "train"

    def matches(self, names: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
        """The names that are meant, shorter ones first, each with what every * in it stands for."""
        named = [(name, match.groups()) for name in names if (match := _pattern(self.name).fullmatch(name))]
        return sorted(named, key=lambda item: (len(item[0]), item[0]))


READABLE = Chart("Form and skill", "Readable replies", "% of replies")
ACCURACY = Chart(
    "Form and skill",
    "Accuracy",
    "% of answers",
    "Final answers that are right, where the answer is known. It is measured, never rewarded.",
)
DUE = "A vote is due once an agent has seen the words of two others."
CAST = Chart("Votes", "Votes cast", "per due turn", DUE)
QUALITY = Chart("Votes", "Quality of votes", "% of votes", "The thin line is where a coin would be.", chance=0.5)
SIGNAL = Chart(
    "Votes",
    "Debates without signal",
    "% of debates",
    "A debate without signal has no advantage that differs from 0: nothing is learned from it.",
)
STREAMS = Chart(
    "Rewards",
    "Mean reward of each stream",
    "reward",
    "What votes of peers award (gen, or score per agent) has a mean that is constant by construction: a vote for one agent "
    "is a vote against another, however good or bad the debates become. It can't show progress. With votes majority it goes "
    "up as answers become alike, right or wrong. Read here what judging and form earn, and by seat how it is spread.",
)
FAR = Chart("Learning", "How far the policy moves", "nats per token")
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
    Shown("replies/tolerated", "not in the exact form", READABLE),
    Shown("replies/truncated", "cut off by the token limit", READABLE),
    Shown("train_*/correct", "self-play", ACCURACY, row="Right answers in self-play"),
    Shown("eval/direct/*/correct", "held out, alone", ACCURACY, row="Right answers alone, held out"),
    Shown("eval/sampled/*/correct", "held out, alone, sampled", ACCURACY, row="Right answers alone, sampled, held out"),
    Shown("eval/debate/*/correct", "held out, in debate", ACCURACY, row="Right answers in debate, held out"),
    Shown("eval/role-averaged/*/correct", "held out, all seats", ACCURACY, row="Right answers over all seats, held out"),
    Shown(
        "votes/per_due_turn", "valid votes", CAST, live="votes per due turn", row="Valid votes per due turn", form="{:.2f}"
    ),
    Shown("votes/due_turns_with_vote", "due turns with a vote", CAST, row="Due turns with a vote"),
    Shown(
        "votes/accuracy",
        "right, between a right and a wrong solution",
        QUALITY,
        row="Right votes between a right and a wrong solution",
        weight="votes/between_right_and_wrong",
    ),
    Shown(
        "eval/role-averaged/*/win_rate",
        "for the policy over its base model, held out",
        QUALITY,
        row="Votes won against the base model, held out",
    ),
    Shown(
        "votes/accuracy_beyond_own",
        "right, by voters whose own answer is neither",
        QUALITY,
        row="Right votes of voters whose own answer is neither",
    ),
    Shown("votes/agreement", "alike, by different agents on the same pair", QUALITY),
    Shown("votes/ties", "ties", QUALITY),
    Shown("votes/copied", "copied from the prompt or the seats", QUALITY, row="Copied votes"),
    Shown("debates/without_signal", "without signal", SIGNAL, live="no signal", row="Debates without signal"),
    Shown("debates/same_answer", "all agents end on the same answer", SIGNAL),
    Shown("debates/dropped", live="dropped", form="{:.0f}"),
    Shown("reward/*/mean", "{0}", STREAMS),
    Shown("pairwise_reward", "score per agent", STREAMS),
    Shown("reward/*/seat/*", "agent {1}", Chart("Rewards", "Reward by seat: {0}", "reward")),
    Shown("optim/kl_sample_train_v1", "v1, mean difference", KL),
    Shown("optim/kl_sample_train_v2", "v2, half mean square", KL),
    Shown("optim/kl_base", "policy against base model", FAR),
    Shown("optim/kl_update", "policy before and after the updates of a step", FAR),
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
votes/due_turns replies/read
votes/between_right_and_wrong votes/winner_is_right pairwise_* consensus_reached round parse_error env/all/* v2/*
reward/*/std flips/right_to_wrong flips/wrong_to_right bias/seat/* bias/persona/* bias/first bias/longer optim/*
train_*/* eval/* warm/*
""".split()  # noqa: SIM905 (one a line would be 30 lines)
"""Built-in metrics that are logged and not shown."""


def all_shown(names: Iterable[str]) -> list[Shown]:
    """How everything that has one of these names is shown; what nothing here knows, such as somebody's own, by its name."""
    known = [_pattern(name) for name in (*(shown.name for shown in SHOWN), *LOGGED)]
    every = list(SHOWN)
    for name in sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in known))[:_MOST_OWN]:
        chart = Chart("Other metrics", name, "")
        every.append(Shown(name, "self-play", chart, live=name, row=name, form="{:.4g}"))
        every.append(Shown(f"eval/debate/*/{name}", "held out", chart))
    return every


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, name.split("*"))), re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The lines of ``metrics.jsonl`` by phase, in order, each step once: one that was done again counts as it was last."""

    train: tuple[Logged, ...] = ()
    evals: tuple[Logged, ...] = ()
    warm: tuple[Logged, ...] = ()

    @staticmethod
    def of(lines: Sequence[Logged]) -> RunHistory:
        """From what ``Run.metrics`` gives."""
        phases: dict[str, dict[tuple[Any, Any], Logged]] = {"train": {}, "eval": {}, "warm": {}}
        for line in lines:
            phase, at = line.get("phase"), (line.get("step"), line.get("warm"))
            if isinstance(phase, str) and phase in phases and all(type(n) is int and 0 <= n < 10**9 for n in at):
                phases[phase][at] = line
        return RunHistory(*(tuple(by_step[at] for at in sorted(by_step)) for by_step in phases.values()))

    @property
    def phases(self) -> dict[str, tuple[Logged, ...]]:
        return {"train": self.train, "eval": self.evals, "warm": self.warm}

    @property
    def names(self) -> dict[str, set[str]]:
        """By phase, everything that was logged."""
        return {phase: {name for line in lines for name in line} for phase, lines in self.phases.items()}

    @property
    def steps(self) -> int:
        """Updates of the self-play that were logged last."""
        return self.train[-1]["step"] if self.train else 0

    @property
    def updates(self) -> Updates:
        """The updates of warm start and self-play, and how many of them were lost."""
        return Updates.of((*self.warm, *self.train))

    @property
    def span(self) -> tuple[float, float]:
        """The step axis that all curves share."""
        steps = [line["step"] for line in (*self.train, *self.evals)] or [0]
        return float(min(steps)), float(max(*steps, min(steps) + 1))


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm that sounded after each step from ``first`` to ``last``."""

    name: str
    first: int
    last: int


def number(value: object) -> float | None:
    """A logged value, if it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None  # false for nan too


def points(history: RunHistory, phase: str, name: str) -> Points:
    """A metric over steps; ``None`` where it was not measured. Of thousands of steps a point is the mean of several."""
    lines = history.phases[phase]
    size = max(1, math.ceil(len(lines) / BINS))
    groups = [lines[start : start + size] for start in range(0, len(lines), size)]
    return [(mean(group, "warm" if phase == "warm" else "step") or 0.0, mean(group, name)) for group in groups]


def mean(lines: Sequence[Logged], name: str, weight: str | None = None) -> float | None:
    """The mean of a metric over the lines that have it, weighted by another one if ``weight`` names it."""
    pairs = [(number(line.get(name)), 1.0 if weight is None else number(line.get(weight))) for line in lines]
    known = [(value, by) for value, by in pairs if value is not None and by]
    total = sum(by for _, by in known)
    return sum(value * by for value, by in known) / total if total else None


def total(lines: Sequence[Logged], *names: str) -> float:
    """The sum of metrics over all lines."""
    return math.fsum(number(line.get(name)) or 0.0 for line in lines for name in names)


def fifths(lines: Sequence[Logged]) -> tuple[Sequence[Logged], Sequence[Logged]]:
    """The first and the last fifth, at least one line each; twice the same one if there is only one."""
    size = max(1, len(lines) // 5)
    return lines[:size], lines[-size:]


def alarms_of(line: Logged) -> set[str]:
    """The alarms that sounded after a step, or after an evaluation."""
    logged = line.get("alarms")
    return {name[:80] for name in logged if isinstance(name, str)} if isinstance(logged, list) else set()


def alarm_spans(history: RunHistory) -> list[AlarmSpan]:
    """Which alarms sounded, steps in a row taken together, and so evaluations."""
    return sorted([*_spans(history.train), *_spans(history.evals)], key=lambda alarm: (alarm.first, alarm.name))


def _spans(lines: Sequence[Logged]) -> list[AlarmSpan]:
    open_: dict[str, AlarmSpan] = {}
    done: list[AlarmSpan] = []
    for line in lines:
        sounding = alarms_of(line)
        done += [open_.pop(name) for name in sorted(set(open_) - sounding)]
        for name in sorted(sounding):
            open_[name] = AlarmSpan(name, open_[name].first if name in open_ else line["step"], line["step"])
    return [*done, *open_.values()]


def live_values(line: Logged) -> list[tuple[str, str]]:
    """What the live view shows of a step: headings and numbers."""
    values = [(shown.live, shown.form, number(line.get(shown.name))) for shown in all_shown(line)]
    return [(heading, form.format(value)) for heading, form, value in values if heading and value is not None]

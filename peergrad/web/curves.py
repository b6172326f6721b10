"""Which curves a report has, and what a reader should know about each."""

from __future__ import annotations

from collections.abc import Sequence

from peergrad.web.chart import Chart, Line, draw
from peergrad.web.history import BINS, History, Logged, alarmed, names, points
from peergrad.web.markup import Safe, tag

ZERO_SUM = (
    "What votes award (gen, or the score per agent) has a mean that is constant by construction: a vote for one agent is "
    "a vote against another, however good or bad the debates become. It can't show progress. Read here how it is spread "
    "over seats, and what judging and form earn."
)


def curves(history: History) -> Safe:
    """All curves, in groups; what was not measured is left out."""
    alarms = alarmed(history.train)
    parts: list[Safe] = []
    number = 0
    for title, about, charts in _groups(history):
        figures: list[Safe] = []
        for chart in charts:
            number += 1
            on_steps = chart.axis == "step"
            figure = draw(chart, f"chart-{number}", history.span if on_steps else None, alarms if on_steps else ())
            figures += [figure] if figure else []
        if figures:
            heading = (tag("h2", title), tag("p", about, class_="about") if about else None)
            parts.append(tag("section", heading, tag("div", figures, class_="charts")))
    if len(history.train) > BINS:
        each = f"Each point stands for about {len(history.train) / BINS:.0f} of {len(history.train):,} steps: their mean."
        parts.insert(0, tag("p", each, class_="about binned"))
    return tag("div", parts or tag("p", "Nothing has been measured yet.", class_="empty"))


def _groups(history: History) -> list[tuple[str, str | None, list[Chart]]]:
    return [
        ("Form and skill", None, _form(history)),
        ("Votes", None, _votes(history)),
        ("Rewards", ZERO_SUM, _rewards(history)),
        ("Learning", None, _learning(history)),
        ("Lengths and speed", None, _speed(history)),
    ]


def _form(history: History) -> list[Chart]:
    train, evals = history.train, history.evals
    readable = [
        Line("self-play", points(train, "replies/readable")),
        *_each(evals, "eval/debate/", "/replies/readable", "held out"),
        Line("cut off by the token limit", points(train, "replies/truncated")),
    ]
    accuracy = [
        *_each(train, "train_", "/correct", "self-play"),
        *_each(evals, "eval/direct/", "/correct", "held out, alone"),
        *_each(evals, "eval/debate/", "/correct", "held out, in debate"),
    ]
    about = "Final answers that are right, where the answer is known. It is measured, never rewarded."
    return [
        Chart(title="Readable replies", unit="% of replies", lines=readable, share=True),
        Chart(title="Accuracy", unit="% of answers", lines=accuracy, share=True, note=about),
    ]


def _votes(history: History) -> list[Chart]:
    train = history.train
    cast = [
        Line("valid votes per due turn", points(train, "votes/per_due_turn")),
        Line("due turns with a vote", points(train, "votes/due_turns_with_vote")),
    ]
    good = [
        Line("right, between a right and a wrong solution", points(train, "votes/accuracy")),
        Line("alike, by different agents on the same pair", points(train, "votes/agreement")),
        Line("ties", points(train, "votes/ties")),
    ]
    silent = [
        Line("without signal", points(train, "debates/without_signal")),
        Line("all agents end on the same answer", points(train, "debates/same_answer")),
    ]
    due = "A vote is due once an agent has seen the words of two others."
    coin = "The thin line is where a coin would be."
    taught = "A debate without signal has no advantage that differs from 0: nothing is learned from it."
    return [
        Chart(title="Votes cast", unit="per due turn", lines=cast, from_zero=True, note=due),
        Chart(title="Quality of votes", unit="% of votes", lines=good, share=True, chance=0.5, note=coin),
        Chart(title="Debates without signal", unit="% of debates", lines=silent, share=True, note=taught),
    ]


def _rewards(history: History) -> list[Chart]:
    train = history.train
    streams = [Line(name.split("/")[1], points(train, name)) for name in names(train, "reward/", "/mean")]
    streams += [Line("score per agent", points(train, "pairwise_reward"))]
    charts = [Chart(title="Mean reward of each stream", unit="reward", lines=streams)]
    by_stream: dict[str, list[str]] = {}
    for name in names(train, "reward/"):
        stream, seat, agent = [*name.removeprefix("reward/").split("/"), "", ""][:3]
        if seat == "seat" and agent.isdecimal():
            by_stream.setdefault(stream, []).append(name)
    for stream, found in sorted(by_stream.items()):
        seats = sorted(found, key=lambda name: int(name.rsplit("/", 1)[1][:9]))
        lines = [Line(f"agent {name.rsplit('/', 1)[1]}", points(train, name)) for name in seats]
        charts.append(Chart(title=f"Reward by seat: {stream}", unit="reward", lines=lines))
    return charts


def _learning(history: History) -> list[Chart]:
    train = history.train
    kl = [
        Line("v1, mean difference", points(train, "optim/kl_sample_train_v1")),
        Line("v2, half mean square", points(train, "optim/kl_sample_train_v2")),
    ]
    about = "How far the policy that learns is from the one that spoke; near 0 unless batches are sampled ahead."
    return [
        Chart(title="KL, sampler to trainer", unit="nats", lines=kl, note=about),
        Chart(title="Entropy", unit="nats per token", lines=[Line("self-play", points(train, "optim/entropy"))]),
        Chart(title="Loss", unit="loss", lines=[Line("self-play", points(train, "optim/loss"))]),
        Chart(title="Gradient norm", unit="norm, unclipped", lines=[Line("self-play", points(train, "optim/grad_norm"))]),
        Chart(
            title="Warm start",
            unit="loss",
            lines=[Line("cross-entropy", points(history.warm, "warm/loss", "warm"))],
            axis="warm step",
        ),
    ]


def _speed(history: History) -> list[Chart]:
    train = history.train
    rates = [
        Line("sampled", points(train, "tokens/sampled_per_s")),
        Line("trained on", points(train, "tokens/trained_per_s")),
    ]
    return [
        Chart(
            title="Length of replies",
            unit="tokens per turn",
            lines=[Line("reply", points(train, "env/all/ac_tokens_per_turn"))],
        ),
        Chart(
            title="Length of prompts",
            unit="tokens per turn",
            lines=[Line("prompt", points(train, "env/all/ob_tokens_per_turn"))],
        ),
        Chart(title="Speed", unit="tokens per second", lines=rates),
    ]


def _each(lines: Sequence[Logged], prefix: str, suffix: str, label: str) -> list[Line]:
    """A line per task; tasks are named only if there are several."""
    found = names(lines, prefix, suffix)
    task = {name: name[len(prefix) : len(name) - len(suffix)] for name in found}
    return [Line(label if len(found) == 1 else f"{label}: {task[name]}", points(lines, name)) for name in found]

"""Results as tables: of an evaluation, of two compared, of rewards compared, and the scores of debates."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import clip
from peergrad.learn.data import Values, has_signal
from peergrad.measure.rescore import CONTROLS, Rescored, verdict
from peergrad.measure.statistics import Interval
from peergrad.measure.titles import in_order, share_titles, title
from peergrad.reward.rewards import Scored
from peergrad.terminal.console import Output, print_line, table

_MOST_DEBATES = 20
_LONGEST_QUESTION = 80
_AGAINST = {"direct/majority": "majority", "direct/correct": "direct"}


def result_text(result: Mapping[str, Any], width: int = 118) -> str:
    """The result of an evaluation as plain text, which is saved beside it."""
    file = io.StringIO()
    print_result(Output(file=file, width=width, color_system=None, legacy_windows=False), result)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def print_result(console: Console, result: Mapping[str, Any]) -> None:
    """Accuracy of every way of answering, then what the votes are worth, then what it took."""
    settings = result["settings"]
    against = f" against {settings.get('opponent')}" if settings["mode"] == "head-to-head" else ""
    head = f"{result['model']}{against} on {result['task']}: {len(result['questions'])} questions"
    if settings["mode"] not in ("direct", "head-to-head"):
        size = result.get("size", f"{settings['agents']} agents, {settings['max_rounds']} rounds")  # results from before
        head += f", {settings['protocol']} debate of {size}"
    print_line(console, head, "bold")
    console.print(_accuracy(result))
    if any(not name.startswith("grading/") for name in result["shares"]):
        console.print(_shares(result))
    for sentence in _remarks(result):
        print_line(console, sentence)


def _accuracy(result: Mapping[str, Any]) -> Table:
    # These are in other rows: an agent at the end, and the vote after the last round. The form is not an accuracy.
    twice = ("debate/avg@", "debate/cons@")
    names = [name for name in result["accuracy"] if not name.startswith(twice) and not name.endswith("/format")]
    reference = _AGAINST.get(result["reference"]) if len(result["accuracy"]) > 1 else None
    versus = [f"against {reference}"] if reference else []
    headings = ["way of answering", "right"] if result["reference"] else ["won, by", "share"]
    rows: list[list[str]] = []
    for name in in_order(names):
        change = _change(result["difference"][name]) if name in result["difference"] else ""
        tokens = result["tokens"].get(name)
        numbers = [*_interval(result["accuracy"][name]), *([change] if versus else []), f"{tokens:,.0f}" if tokens else ""]
        rows.append([title(name), *numbers])
    return table([*headings, "95 %", *versus, "tokens"], rows)


def _shares(result: Mapping[str, Any]) -> Table:
    shares = result["shares"]
    titles = share_titles(shares)
    rows = [[title, *_interval(shares[name]), f"{shares[name][3]:,.0f}"] for name, title in titles.items()]
    where = "in the ballots" if result["settings"]["mode"] == "head-to-head" else "in the debates"
    return table([where, "share", "95 %", "of"], rows)


def _remarks(result: Mapping[str, Any]) -> list[str]:
    remarks: list[str] = []
    tokens, settings, times = result["tokens"], result["settings"], result["times"].values()
    if "debate/correct" in tokens and "direct/majority" in tokens:
        what = "all tokens processed, prompts included" if settings["cost"] == "processed" else "tokens sampled"
        took = f"the majority vote took {tokens['direct/majority'] / tokens['debate/correct']:.1%} of the debates' tokens"
        if "alone/majority" in tokens:
            took += f", self-correction {tokens['alone/majority'] / tokens['debate/correct']:.1%}"
        remarks.append(f"Equal cost: {what}; {took}.")
    elif settings["mode"] == "debate":
        remarks.append("The engine does not count tokens, so nothing is said about equal cost.")
    late = result["shares"].get("grading/timed_out")
    if late and late[0]:
        remarks.append(f"{late[0] * late[3]:.0f} answers could not be graded in time; they are neither right nor wrong.")
    if result["dropped"]:
        left_out = f"{result['asked'] - len(result['questions'])} of {result['asked']} questions are left out"
        first = next(iter(result["dropped"].values()))
        remarks.append(f"{left_out}, because debates about them were dropped; the first: {first}")
    seconds, sampled, paid = (sum(part[what] for part in times) for what in ("seconds", "sampled", "usd"))
    money = f" ${paid:,.4f} paid." if paid else ""
    remarks.append(f"{seconds:,.0f} s, {sampled:,.0f} tokens sampled, {sampled / max(seconds, 1e-9):,.0f} a second.{money}")
    return remarks


def print_comparison(console: Console, names: tuple[str, str], comparison: Mapping[str, Any]) -> None:
    """Two results question by question."""
    about = f"{len(comparison['questions'])} questions in both. Change is from {names[0]} to {names[1]}."
    print_line(console, about)
    rows: list[list[str]] = []
    for name in in_order(comparison["rows"]):
        row = comparison["rows"][name]
        first, second = (_interval(row[side])[0] for side in ("first", "second"))
        rows.append([title(name), first, second, _change(row["difference"]), str(row["better"]), str(row["worse"])])
    headings = ("way of answering", "first", "second", "change (95 %)", "better", "worse")
    console.print(table(headings, rows))


def print_rescored(result: Rescored) -> None:
    """The comparison of rewards, and what it says about which reward to train with."""
    console = Output()
    late = f"; {result.timed_out} answers could not be graded in time and are left out" if result.timed_out else ""
    known = f"debates {result.debates}, of them with known answers {result.with_truth}"
    console.print(f"{known}, with right and wrong agents {result.mixed}{late}\n")
    numbered = [f"{number} {reward.name}" for number, reward in enumerate(result.rewards, 1)]
    print_line(console, "Rewards: one number per agent", "bold")
    rows = [
        [name, _correlation(reward.follows), _percent(reward.signal), _percent(reward.top_right)]
        for name, reward in zip(numbered, result.rewards, strict=True)
    ]
    console.print(table(["reward", "follows the truth", "with signal", "top is right"], rows))
    if result.random_right and result.some_right:
        random, some = _percent(result.random_right), _percent(result.some_right)
        console.print(f" For comparison: a random agent is right in {random}, some agent in {some}.")
    console.print(" In streams, the judge's part is for votes, not for answers: hold it against the table of streams.")
    if result.same:
        console.print(f" Left out, because nothing differs here: {', '.join(result.same)}.")
    console.print()
    print_line(console, "Streams: one number per turn", "bold")
    rows = [[one.name, _correlation(one.follows), str(one.turns or "–"), _percent(one.signal)] for one in result.streams]
    console.print(table(["stream", "follows the truth", "turns", "debates with signal"], rows))
    # Controls come last, and have no columns: all must fit a usual terminal.
    columns = sum(reward.name not in CONTROLS for reward in result.rewards)
    agreement = [["–" if value is None else f"{value:.2f}".replace("0.", ".") for value in row] for row in result.agreement]
    rows = [[name, *row[:columns]] for name, row in zip(numbered, agreement, strict=True)]
    console.print()
    print_line(console, "Agreement between rewards", "bold")
    console.print(table(["reward", *(str(number + 1) for number in range(columns))], rows, gap=1))
    print_line(console, verdict(result))


def print_scores(batch: Sequence[Scored], advantages: Sequence[Sequence[Values]]) -> None:
    """Print the debates as tables, the first twenty in full, and a line for all."""
    console = Output()
    for scored, centred in list(zip(batch, advantages, strict=True))[:_MOST_DEBATES]:
        debate = scored.debate
        by_turn = scored.streams[0].unit == "turn"
        names = ["turn", "round", "agent", "votes"] if by_turn else ["agent"]
        columns = [values for stream, of in zip(scored.streams, centred, strict=True) for values in (stream.values, of)]
        rows = [
            [
                *(_turn(scored, unit) if by_turn else [str(unit)]),
                *("–" if (value := column[unit]) is None else f"{value:+.2f}" for column in columns),
            ]
            for unit in range(len(debate.turns) if by_turn else debate.agents)
        ]
        asked = clip(" ".join(debate.question.text.split()), _LONGEST_QUESTION)
        print_line(console, f"{debate.id}: {debate.agents} agents, {len(debate.turns)} turns: {asked}", "bold")
        headings = [*names, *(heading for stream in scored.streams for heading in (stream.name, "adv"))]
        console.print(table(headings, rows, left=len(names)))
        if scored.tally.verdict:
            verdict = ", ".join(f"{vote.a} {vote.op} {vote.b}" for vote in scored.tally.verdict)
            console.print(Text(f" judge, counting {scored.tally.judge_weight:g}: {verdict}", style="dim"))
        counts = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(scored.tally.counts).items() if count]
        console.print(Text(" " + (", ".join(counts) or "no bad votes"), style="dim"))
    if len(batch) > _MOST_DEBATES:
        console.print(f"… and {len(batch) - _MOST_DEBATES} more; --json gives all of them")
    votes = sum(len(scored.tally.votes) for scored in batch)
    without = sum(not has_signal(scored.streams, centred) for scored, centred in zip(batch, advantages, strict=True))
    console.print(f"debates {len(batch)}, of them without signal {without}; valid votes {votes}")


def _turn(scored: Scored, index: int) -> list[str]:
    turn = scored.debate.turns[index]
    votes = ", ".join(f"{vote.a} {vote.op} {vote.b}" for vote in scored.tally.votes if vote.turn == index)
    votes = f"unreadable: {turn.parsed.error}" if turn.parsed.error else votes
    return [str(index), str(turn.round + 1), str(turn.agent), votes]


def _interval(interval: Sequence[float]) -> tuple[str, str]:
    value, low, high = interval[:3]
    return f"{value:.1%}", f"{100 * low:.0f}–{100 * high:.0f}"


def _change(interval: Sequence[float]) -> str:
    value, low, high = (100 * number for number in interval)
    return f"{value:+.1f} ({low:+.0f} to {high:+.0f})"


def _correlation(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _percent(interval: Interval | None) -> str:
    return "–" if interval is None else f"{100 * interval.value:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"

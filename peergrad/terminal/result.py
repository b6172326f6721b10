"""The result of an evaluation as tables; the same text is saved beside the result."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import visible

_TITLES = {
    "direct/correct": "direct, one answer",
    "direct/majority": "majority vote, equal cost",
    "alone/majority": "self-correction, equal cost",
    "debate/correct": "debate: an agent at the end",
    "debate/winner": "debate: winner by peer votes",
    "role-averaged/correct": "policy, over all seats",
    "role-averaged/opponents": "its opponents",
}
_AGAINST = {"direct/majority": "majority", "direct/correct": "direct"}
_SHARES = {
    "replies/readable": "replies that can be read",
    "replies/truncated": "replies cut off by the token limit",
    "votes/due_turns_with_vote": "turns with a valid vote, where one was due",
    "votes/debates_with_vote": "debates with a valid vote",
    "votes/accuracy": "votes for the right one of a right and a wrong solution",
    "votes/winner_is_right": "winner is right, where there are votes",
    "flips/right_to_wrong": "right → wrong from one round to the next",
    "flips/wrong_to_right": "wrong → right from one round to the next",
    "alone/flips/right_to_wrong": "right → wrong, seeing only itself",
    "alone/flips/wrong_to_right": "wrong → right, seeing only itself",
    "role-averaged/votes_won": "votes about the policy that it wins",
    "bias/longer": "votes won by the longer solution",
}
_ORDER = ("direct/correct", "direct/", "alone/", "debate/vote_after", "debate/", "role-averaged/")


def result_text(result: Mapping[str, Any], width: int = 118) -> str:
    """The result as plain text."""
    console = Console(
        file=io.StringIO(), width=width, highlight=False, markup=False, color_system=None, legacy_windows=False
    )
    print_result(console, result)
    file: io.StringIO = console.file  # type: ignore[assignment]
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def print_result(console: Console, result: Mapping[str, Any]) -> None:
    """Accuracy of every way of answering, then what the votes are worth, then what it took."""
    settings = result["settings"]
    head = f"{result['model']} on {result['task']}: {len(result['questions'])} questions"
    if settings["mode"] != "direct":
        head += f", {settings['protocol']} debate of {settings['agents']} agents, {settings['max_rounds']} rounds"
    console.print(Text(visible(head), style="bold"), soft_wrap=True)
    console.print(_accuracy(result))
    if any(not name.startswith("grading/") for name in result["shares"]):
        console.print(_shares(result))
    for sentence in _remarks(result):
        console.print(Text(visible(sentence)), soft_wrap=True)


def _accuracy(result: Mapping[str, Any]) -> Table:
    table = _table("way of answering", "right", "95 %")
    reference = result["reference"]
    versus = len(result["accuracy"]) > 1
    if versus:
        table.add_column(f"against {_AGAINST[reference]}", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right")
    for name in sorted(result["accuracy"], key=_place):
        if name.startswith(("debate/avg@", "debate/cons@")) or name.endswith("/format"):
            continue  # an agent at the end, the vote after the last round, and what is not an accuracy
        row = [_title(name), *_interval(result["accuracy"][name])]
        if versus:
            row.append(_change(result["difference"][name]) if name in result["difference"] else "")
        tokens = result["tokens"].get(name)
        table.add_row(*row, f"{tokens:,.0f}" if tokens else "")
    return table


def _shares(result: Mapping[str, Any]) -> Table:
    table = _table("in the debates", "share", "95 %")
    table.add_column("of", justify="right")
    shares = result["shares"]
    names = [name for name in _SHARES if name in shares]
    names += sorted((name for name in shares if name.startswith(("bias/seat", "bias/persona"))), key=_natural)
    for name in names:
        value, low, high, whole = shares[name]
        title = _SHARES.get(name) or "votes won by " + name.removeprefix("bias/").replace("/", " ")
        table.add_row(Text(visible(title)), *_interval([value, low, high]), f"{whole:,.0f}")
    return table


def _remarks(result: Mapping[str, Any]) -> list[str]:
    remarks: list[str] = []
    tokens, settings = result["tokens"], result["settings"]
    if "debate/correct" in tokens and "direct/majority" in tokens:
        what = "all tokens processed, prompts included" if settings["cost"] == "processed" else "tokens sampled"
        remarks.append(
            f"Equal cost: {what}; the majority vote took "
            f"{tokens['direct/majority'] / tokens['debate/correct']:.1%} of the debates' tokens, "
            f"self-correction {tokens['alone/majority'] / tokens['debate/correct']:.1%}."
        )
    elif settings["mode"] == "debate":
        remarks.append("The engine does not count tokens, so nothing is said about equal cost.")
    late = result["shares"].get("grading/timed_out")
    if late and late[0]:
        remarks.append(f"{late[0] * late[3]:.0f} answers could not be graded in time; they are neither right nor wrong.")
    if result["dropped"]:
        first = next(iter(result["dropped"].values()))
        remarks.append(
            f"{result['asked'] - len(result['questions'])} of {result['asked']} questions are left out, because debates "
            f"about them were dropped; the first: {first}"
        )
    seconds = sum(part["seconds"] for part in result["times"].values())
    sampled = sum(part["sampled"] for part in result["times"].values())
    paid = sum(part["usd"] for part in result["times"].values())
    money = f" ${paid:,.4f} paid." if paid else ""
    remarks.append(f"{seconds:,.0f} s, {sampled:,.0f} tokens sampled, {sampled / max(seconds, 1e-9):,.0f} a second.{money}")
    return remarks


def print_comparison(console: Console, names: tuple[str, str], comparison: Mapping[str, Any]) -> None:
    """Two results question by question."""
    first, second = (visible(name) for name in names)
    console.print(
        Text(f"{len(comparison['questions'])} questions in both. Change is from {first} to {second}."), soft_wrap=True
    )
    table = _table("way of answering", "first", "second")
    for title in ("change (95 %)", "better", "worse"):
        table.add_column(title, justify="right", no_wrap=True)
    for name in sorted(comparison["rows"], key=_place):
        row = comparison["rows"][name]
        table.add_row(
            _title(name),
            _interval(row["first"])[0],
            _interval(row["second"])[0],
            _change(row["difference"]),
            str(row["better"]),
            str(row["worse"]),
        )
    console.print(table)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    way, _, what = name.partition("/")
    if what.startswith("vote_after_round_"):
        return f"debate: vote after round {what.removeprefix('vote_after_round_')}"
    return visible(what if way == "direct" else f"{way}: {what}")


def _place(name: str) -> tuple[int, str]:
    return next((place for place, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name


def _natural(name: str) -> tuple[str, int]:
    """Seat 10 after seat 2."""
    words, _, last = name.rpartition("/")
    return (words, int(last)) if last.isdecimal() else (name, 0)


def _interval(interval: list[float]) -> tuple[str, str]:
    value, low, high = interval[:3]
    return f"{value:.1%}", f"{100 * low:.0f}–{100 * high:.0f}"


def _change(interval: list[float]) -> str:
    value, low, high = (100 * number for number in interval)
    return f"{value:+.1f} ({low:+.0f} to {high:+.0f})"

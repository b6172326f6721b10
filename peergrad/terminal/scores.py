"""The scores of debates as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad.debate.quote import visible
from peergrad.learn.advantages import Values, has_signal
from peergrad.reward.rewards import Scored

_SHOWN = 20


def print_scores(batch: Sequence[Scored], advantages: Sequence[Sequence[Values]]) -> None:
    """Print the debates as tables, the first twenty in full, and a line for all."""
    console = Console(highlight=False)
    for scored, centred in list(zip(batch, advantages, strict=True))[:_SHOWN]:
        debate = scored.debate
        title = f"{visible(debate.id)}: {debate.agents} agents, {len(debate.turns)} turns"
        console.print(Text(title, style="bold"))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        by_turn = scored.streams[0].unit == "turn"
        for heading in ("turn", "round", "agent", "votes") if by_turn else ("agent",):
            table.add_column(heading)
        for stream in scored.streams:
            table.add_column(stream.name, justify="right")
            table.add_column("adv", justify="right")
        for unit in range(len(debate.turns) if by_turn else debate.agents):
            numbers = [
                _number(column[unit])
                for stream, values in zip(scored.streams, centred, strict=True)
                for column in (stream.values, values)
            ]
            table.add_row(*(_turn(scored, unit) if by_turn else [str(unit)]), *numbers)
        console.print(table)
        counts = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(scored.tally.counts).items() if count]
        console.print(Text(" " + (", ".join(counts) or "no bad votes"), style="dim"))
    if len(batch) > _SHOWN:
        console.print(f"… and {len(batch) - _SHOWN} more; --json gives all of them")
    votes = sum(len(scored.tally.votes) for scored in batch)
    without = sum(not has_signal(scored.streams, centred) for scored, centred in zip(batch, advantages, strict=True))
    console.print(f"debates {len(batch)}, of them without signal {without}; valid votes {votes}")


def _turn(scored: Scored, index: int) -> list[str]:
    turn = scored.debate.turns[index]
    votes = ", ".join(f"{vote.a} {vote.op} {vote.b}" for vote in scored.tally.votes if vote.turn == index)
    if turn.parsed.error:
        votes = f"unreadable: {turn.parsed.error}"
    return [str(index), str(turn.round + 1), str(turn.agent), votes]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"

"""A debate as lines of text. Words of models are made harmless and marked: no line of theirs passes for ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from peergrad.debate.prompts import UNREADABLE
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.quote import visible
from peergrad.debate.types import Debate, Turn, Usage
from peergrad.measure.ending import Ending, Final, seat_name
from peergrad.reward.tally import Vote
from peergrad.terminal.progress import money

_MARK = "  │ "


class Page:
    """Text for a terminal, long lines folded so that each keeps its mark; elsewhere lines stay whole.

    Nothing is printed before ``show``, so that what belongs together appears at once.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.folds = console.is_terminal
        self._lines: list[Text] = []

    def line(self, text: str, style: str = "") -> None:
        """A line of ours."""
        self._lines += [Text(line.plain, style=style) for line in self.folded(visible(text), self.console.width)]

    def words(self, text: str) -> None:
        """What a model said, line by line."""
        self._lines += [Text.assemble((_MARK, "dim"), line) for line in self.folded(text, self.console.width - len(_MARK))]

    def show(self) -> None:
        """Print what there is."""
        lines, self._lines = self._lines, []
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def folded(self, text: str, width: int) -> Iterable[Text]:
        """Text as lines that are safe to print, no wider than this on a terminal."""
        for line in text.rstrip().strip("\r\n").splitlines():
            safe = Text(visible(line))
            yield from safe.wrap(self.console, max(10, width)) if self.folds else [safe]


def print_turn(page: Page, protocol: BaseProtocol, turn: Turn, model: str = "") -> None:
    """One agent's turn, or the judge's: its sections as they are read, or why it can't be read and all of it."""
    judge = turn.agent == protocol.agents
    head = seat_name(protocol, turn.agent) if judge else f"Round {turn.round + 1}, {seat_name(protocol, turn.agent)}"
    page.line(head + (f" ({model})" if model else ""), "bold")
    if turn.parsed.error:
        page.line(f"  can't be read ({turn.parsed.error}):" if turn.text.strip() else "  said nothing", "yellow")
        page.words(turn.text)
        page.show()
        return
    if not turn.parsed.sections:
        page.words(turn.text)
    for section in turn.parsed.sections:
        if section.name not in ("comparison", "consensus", "consensus_reason"):
            page.line(f"  {section.name}", "dim")
            page.words(turn.section(section.name))
    if turn.asked_to_vote or turn.parsed.votes:
        page.line(f"  votes: {', '.join(_pair(*vote) for vote in turn.parsed.votes) or 'none'}")
    if turn.parsed.consensus is not None:
        page.line(f"  agreed: {'yes' if turn.parsed.consensus else 'no'}")
    page.show()


def print_ending(page: Page, end: Ending) -> None:
    """The votes, how everybody fared, and the winning answer."""
    debate = end.debate
    page.line("Votes", "bold")
    rows = [_ballot(debate, voter, end.votes) for voter in range(debate.agents + (debate.verdict is not None))]
    _columns(page, [["voter", "votes"], *rows])
    _columns(page, [["agent", "win rate", "won", "tied", "lost", "answer"], *(_standing(debate, one) for one in end.finals)])
    bad = {
        name: count
        for name in ("self_votes", "malformed", "repeated", "contradictory")
        if (count := getattr(end.counts, name))
    }
    if bad:
        page.line("  not counted: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in bad.items()), "dim")
    page.line(outcome(end), "bold")
    for agent in [end.winner] if end.winner is not None else end.winners:
        final = end.finals[agent]
        if len(end.winners) > 1 and end.winner is None:
            page.line(f"  {seat_name(debate.protocol, agent)}")
        if not final.last:
            page.line(f"  from round {(final.round or 0) + 1}; what it said after that can't be read", "yellow")
        page.words(final.solution or "")
    page.show()


def outcome(end: Ending) -> str:
    """Who won, in a sentence."""
    finals, winners, count = end.finals, end.winners, len(end.finals)
    if end.by == "votes":
        rate = f"{finals[winners[0]].win_rate:.2f}"
        if len(winners) == 1:
            return f"{seat_name(end.debate.protocol, winners[0])} wins with a win rate of {rate}:"
        tied = f"{_named(winners)} tie with a win rate of {rate}"
        return f"{tied} and give the same answer:" if end.winner is not None else f"{tied}; there is no single winner:"
    why = "No vote is for an answer that can be read" if end.votes else "Nobody voted"
    if end.by == "answers":
        alone = "The answer:" if count == 1 else f"{why}. {len(winners)} of {count} agents end on the same answer:"
        return alone if len(winners) > 1 or count == 1 else f"{why}. One of {count} agents gives an answer:"
    if not any(final.solution for final in finals):
        return "There is no winner: no reply could be read."
    if not (style := end.debate.question.style).find:
        return f"There is no winner. {why}, and answers in the style {style.name!r} can't be compared."
    if not any(final.answer for final in finals):
        return f"There is no winner. {why}, and answers can only be compared in boxes (--style boxed)."
    return f"There is no winner. {why}, and no answer was given more often than the others."


def one_line(end: Ending) -> str:
    """A debate's outcome in one line, with the answer if there is one."""
    if end.winner is None:
        return f"{end.debate.id}: {outcome(end).rstrip(':.')}"
    answer = end.finals[end.winner].answer or " ".join((end.finals[end.winner].solution or "").split())
    by = f"Agent {end.winner} wins ({end.finals[end.winner].win_rate:.2f})" if end.by == "votes" else "most answers"
    return f"{end.debate.id}: {by}: {answer if len(answer) <= 100 else answer[:99] + '…'}"


def took(used: Usage, usd: float, seconds: float | None, replies: int) -> str:
    """What it took, in a sentence."""
    time = f", {seconds:,.1f} s" if seconds is not None else ""
    count = "1 reply" if replies == 1 else f"{replies} replies"
    return f"{count}, {used.prompt:,} tokens read and {used.sampled:,} sampled{money(usd)}{time}"


def _ballot(debate: Debate, voter: int, votes: Sequence[Vote]) -> list[str]:
    rounds: dict[int, list[str]] = {}
    for vote in votes:
        if vote.author == voter:
            rounds.setdefault(vote.turn, []).append(_pair(vote.a, vote.op, vote.b))
    by_round = [
        (f"round {debate.turns[turn].round + 1}: " if voter < debate.agents else "") + ", ".join(votes)
        for turn, votes in rounds.items()
    ]
    return [seat_name(debate.protocol, voter), "; ".join(by_round) or "none"]


def _standing(debate: Debate, final: Final) -> list[str]:
    answer = final.answer if final.solution else UNREADABLE
    rate = f"{final.win_rate:.2f}" if final.won + final.tied + final.lost else "–"
    counts = [str(final.won), str(final.tied), str(final.lost)]
    return [seat_name(debate.protocol, final.agent), rate, *counts, " ".join((answer or "").split())[:60]]


def _columns(page: Page, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        page.line(f"  {cells}".rstrip(), "" if number else "dim")


def _pair(a: int, op: str, b: int) -> str:
    return f"Agent {a} {op} Agent {b}"


def _named(agents: Sequence[int]) -> str:
    return "Agents " + ", ".join(map(str, agents[:-1])) + f" and {agents[-1]}"

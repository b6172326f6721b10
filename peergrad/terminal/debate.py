"""One debate on a terminal: its turns, as they come or when each is complete, and how it ended.

Words of models are made harmless and marked: no line of theirs passes for ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from peergrad.debate.contract import FULL
from peergrad.debate.judge import read_verdict
from peergrad.debate.prompts import UNREADABLE
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.question import OPEN
from peergrad.debate.quote import visible
from peergrad.debate.types import Ask, Debate, Reply, Turn, Usage, Verdict
from peergrad.engines.base import Spent
from peergrad.measure.ending import Ending, Final, seat_name
from peergrad.reward.tally import Vote
from peergrad.terminal.console import View, money

_MARK = "  │ "
_TAG = re.compile("|".join(map(re.escape, FULL.tags)))


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


class DebateView(View):
    """A watcher of one debate. Parallel agents have a line each while they speak; one that speaks alone has the screen."""

    phase = "debating"

    def __init__(self, console: Console, warnings: Console, protocol: BaseProtocol, models: Sequence[str]) -> None:
        super().__init__(warnings)
        self.page, self._protocol, self.listens = Page(console), protocol, console.is_terminal
        self._models = models if len(set(models)) > 1 else [""] * len(models)
        self._speaking: dict[int, str] = {}  # what each agent has said of its reply so far
        self._alone = False
        self._replies = 0
        self.spent: Spent | None = None  # nothing, if all was finished before
        self._since = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8, transient=True)

    def close(self) -> None:
        self._live.stop()

    def resumed(self, debates: Sequence[Debate]) -> None:
        for debate in debates:
            for turn in (*debate.turns, *filter(None, [debate.verdict])):
                self._print(turn)

    def begin(self, phase: str, debates: int, at: object = None) -> None:  # noqa: ARG002
        self._since = time.monotonic()
        if self.page.folds:
            self._live.start()

    def heard(self, ask: Ask, piece: str | None) -> None:
        self._speaking[ask.agent] = "" if piece is None else self._speaking.get(ask.agent, "") + piece
        self._alone = ask.seen == ask.turn  # it has seen all that was said: nobody else speaks now

    def cost(self, so_far: Spent) -> None:
        self.spent = so_far

    def replied(self, ask: Ask, reply: Reply) -> None:
        self._speaking.pop(ask.agent, None)
        self._replies += 1
        judge = ask.agent == self._protocol.agents
        read = self._protocol.read
        parsed = read_verdict(reply.text, reply.truncated) if judge else read(ask, reply.text, reply.truncated)
        self._print(Turn.of(ask, reply, parsed))

    def debate(self, debate: Debate | None, seconds: float | None = None) -> None:  # noqa: ARG002 (the outcome is told later)
        self._live.stop()

    def _print(self, turn: Turn) -> None:
        if self._live.is_started:
            self._live.refresh()  # else what was being said stays until the next time
        print_turn(self.page, self._protocol, turn, self._models[turn.agent])

    def _render(self) -> Group:
        """The replies under way, and what the debate took so far."""
        console, lines = self.page.console, list[Text]()
        for agent, words in sorted(self._speaking.items()):
            name, text = f"{seat_name(self._protocol, agent)}: ", _TAG.sub(" ", words)
            if self._alone or agent == self._protocol.agents:
                folded = list(self.page.folded(text, console.width - 4))
                lines += [Text(name, style="bold"), *(Text("  ") + line for line in folded[-max(4, console.height - 6) :])]
            else:
                text = " ".join(visible(text).split())
                lines.append(Text.assemble((name, "bold"), text[-max(10, console.width - len(name) - 2) :]))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        took, seconds = self.spent or Spent(), time.monotonic() - self._since
        tokens = f"{took.prompt + took.sampled:,} tokens"
        status = f"{self._replies} replies, {tokens}{money(took.usd)}, {seconds:,.0f} s"
        return Group(*lines, Text(status, style="dim"))


def print_turn(page: Page, protocol: BaseProtocol, turn: Turn, model: str = "") -> None:
    """One agent's turn, or the judge's: its sections as they are read, or why it can't be read and all of it."""
    judge = turn.agent == protocol.agents
    head = seat_name(protocol, turn.agent) if judge else f"Round {turn.round + 1}, {seat_name(protocol, turn.agent)}"
    page.line(head + (f" ({model})" if model else ""), "bold")
    if turn.parsed.error:
        page.line(f"  can't be read ({turn.parsed.error}):" if turn.text.strip() else "  said nothing", "yellow")
    if not turn.parsed.sections:
        page.words(turn.text)
    for section in turn.parsed.sections:
        if section.name not in ("comparison", "consensus", "consensus_reason"):
            page.line(f"  {section.name}", "dim")
            page.words(turn.section(section.name))
    if not turn.parsed.error and (turn.asked_to_vote or turn.parsed.votes):
        page.line(f"  votes: {', '.join(_pair(*vote) for vote in turn.parsed.votes) or 'none'}")
    if turn.parsed.consensus is not None:
        page.line(f"  agreed: {'yes' if turn.parsed.consensus else 'no'}")
    page.show()


def print_ending(page: Page, end: Ending) -> None:
    """The votes, how everybody fared, and the winning answer."""
    debate = end.debate
    page.line("Votes", "bold")
    judge = [debate.protocol.agents] if debate.verdict else []
    rows = [_ballot(debate, voter, end.votes) for voter in (*range(debate.agents), *judge)]
    _columns(page, [["voter", "votes"], *rows])
    _columns(page, [["agent", "win rate", "won", "tied", "lost", "answer"], *(_standing(debate, one) for one in end.finals)])
    bad = [(name, getattr(end.counts, name)) for name in ("self_votes", "malformed", "repeated", "contradictory")]
    if any(count for _, count in bad):
        page.line("  not counted: " + ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in bad if n), "dim")
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
        tied = f"Agents {', '.join(map(str, winners[:-1]))} and {winners[-1]} tie with a win rate of {rate}"
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
        form = "answers can only be compared in boxes (--style boxed) or as numbers (--style number)"
        asked = "no reply has an answer in the form that was asked for"
        return f"There is no winner. {why}, and {form if style.name == OPEN.name else asked}."
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
    by_turn: dict[str, list[str]] = {}
    for vote in votes:
        if vote.author == voter:
            when = f"round {debate.turns[vote.turn].round + 1}: " if voter < debate.agents else ""
            by_turn.setdefault(when, []).append(_pair(vote.a, vote.op if vote.strength == 1 else vote.strength, vote.b))
    ballots = "; ".join(when + ", ".join(pairs) for when, pairs in by_turn.items())
    return [seat_name(debate.protocol, voter), ballots or "none"]


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


def _pair(a: int, verdict: Verdict, b: int) -> str:
    """A vote for people; of a soft one the preferred agent first, and by how much."""
    if isinstance(verdict, str):
        return f"Agent {a} {verdict} Agent {b}"
    first, second = (b, a) if verdict < 0 else (a, b)
    return f"Agent {first} > Agent {second} by {abs(verdict):.2f}"

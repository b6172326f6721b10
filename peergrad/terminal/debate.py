"""The view of one debate: on a terminal the replies as they come; everywhere each turn when it is complete."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from peergrad.debate.contract import FULL
from peergrad.debate.judge import read_verdict
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.quote import visible
from peergrad.debate.types import Ask, Debate, Reply, Turn
from peergrad.engines.shared.meter import Spent
from peergrad.measure.ending import seat_name
from peergrad.terminal.progress import View, money
from peergrad.terminal.turns import Page, print_turn

_TAG = re.compile("|".join(map(re.escape, FULL.tags)))


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

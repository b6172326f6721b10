"""One debate on the screen while it goes on: what is said now on a terminal, each turn when it is complete everywhere."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from peergrad.debate.contract import FULL
from peergrad.debate.judge import read_verdict
from peergrad.debate.quote import visible
from peergrad.debate.types import Ask, Debate, Protocol, Reply, Turn
from peergrad.measure.ending import seat_name
from peergrad.runs.debating import Took
from peergrad.terminal.turns import Page, print_turn

_TAG = re.compile("|".join(map(re.escape, FULL.tags)))


class Stage:
    """A watcher of one debate. Parallel agents have a line each while they speak; one that speaks alone has the screen."""

    patience_s = 0.0
    phase = "debating"

    def __init__(self, console: Console, warnings: Console, protocol: Protocol, models: Sequence[str]) -> None:
        self.page, self._warnings, self._protocol = Page(console), warnings, protocol
        self._models = models if len(set(models)) > 1 else [""] * len(models)
        self._saying: dict[int, str] = {}
        self._alone = False
        self._spoken = 0
        self.took: Took | None = None  # nothing, if all was kept from before
        self._since = time.monotonic()
        self._live = Live(get_renderable=self._now, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def say(self, sentence: str) -> None:
        self._warnings.print(Text(visible(sentence)), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self._warnings.print(Text(f"warning: {visible(sentence)}", style="yellow"), soft_wrap=True)

    def begin(self, kept: Sequence[Debate], missing: int) -> None:
        for debate in kept:
            for turn in (*debate.turns, *filter(None, [debate.verdict])):
                self._print(turn)
        self._since = time.monotonic()
        if missing and self.page.folds:
            self._live.start()

    def heard(self, ask: Ask, piece: str | None) -> None:
        self._saying[ask.agent] = "" if piece is None else self._saying.get(ask.agent, "") + piece
        self._alone = ask.seen == ask.turn  # it has seen all that was said: nobody speaks beside it

    def replied(self, ask: Ask, reply: Reply, took: Took) -> None:
        self._saying.pop(ask.agent, None)
        self._spoken, self.took = self._spoken + 1, took
        judge = ask.agent == self._protocol.agents
        read = self._protocol.read
        parsed = read_verdict(reply.text, reply.truncated) if judge else read(ask, reply.text, reply.truncated)
        self._print(Turn.of(ask, reply, parsed))

    def ended(self, debate: Debate | None, took: Took, seconds: float) -> None:  # noqa: ARG002 (the outcome is told later)
        self.took = took
        self._live.stop()

    def _print(self, turn: Turn) -> None:
        if self._live.is_started:
            self._live.refresh()  # else what was being said stays until the next time
        print_turn(self.page, self._protocol, turn, self._models[turn.agent])

    def _now(self) -> Group:
        """What is being said, and what it took so far."""
        console, lines = self.page.console, list[Text]()
        for agent, said in sorted(self._saying.items()):
            name, text = f"{seat_name(self._protocol, agent)}: ", _TAG.sub(" ", said)
            if self._alone or agent == self._protocol.agents:
                folded = list(self.page.folded(text, console.width - 4))
                lines += [Text(name, style="bold"), *(Text("  ") + line for line in folded[-max(4, console.height - 6) :])]
            else:
                text = " ".join(visible(text).split())
                lines.append(Text.assemble((name, "bold"), text[-max(10, console.width - len(name) - 2) :]))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        took, seconds = self.took or Took(), time.monotonic() - self._since
        money = f", ${took.usd:,.4f}" if took.usd else ""
        status = f"{self._spoken} replies, {took.prompt + took.sampled:,} tokens{money}, {seconds:,.0f} s"
        return Group(*lines, Text(status, style="dim"))

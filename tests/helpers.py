"""Short ways to write replies and debates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from peergrad.debate.play import play
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.question import Question
from peergrad.debate.sampler import Likely
from peergrad.debate.transcript import load
from peergrad.debate.types import Ask, Debate
from peergrad.engines.scripted import Scripted


def short(comparison: str = "N/A", solution: str = "42", evaluation: str = "fine") -> str:
    return (
        f"<solution>\n{solution}\n</solution>\n<evaluation>\n{evaluation}\n</evaluation>\n"
        f"<comparison>\n{comparison}\n</comparison>"
    )


def full(comparison: str = "N/A", solution: str = "42", evaluation: str = "fine", consensus: str = "NO") -> str:
    tail = f"\n<consensus>{consensus}</consensus>\n<consensus_reason>because</consensus_reason>"
    return short(comparison, solution, evaluation) + tail


def parallel(agents: int, *rounds: Sequence[str | None], **extra: object) -> Debate:
    """A parallel debate from the comparison sections of each round; ``None`` is an unreadable reply."""
    turns = [
        {"agent": agent, "text": "hm" if votes is None else short(votes)}
        for said in rounds
        for agent, votes in enumerate(said)
    ]
    return _load("parallel", agents, turns, extra)


def sequential(agents: int, *comparisons: str | None, **extra: object) -> Debate:
    """A sequential debate from the comparison sections in speaking order; ``None`` is an unreadable reply."""
    turns = [
        {"agent": index % agents, "text": "hm" if votes is None else full(votes)} for index, votes in enumerate(comparisons)
    ]
    return _load("sequential", agents, turns, extra)


def _load(protocol: str, agents: int, turns: list[dict], extra: dict) -> Debate:
    line = {"id": "d", "question": "What is 17 + 25?", "agents": agents, "protocol": protocol, "turns": turns}
    return load(json.dumps(line | extra))


class Choosing(Scripted):
    """The scripted engine, and how likely it finds the options of a choice."""

    def __init__(self, script: Callable[[Ask], str], likely: Callable[[Ask, Sequence[str]], Sequence[float]], **more: bool):
        super().__init__(script, **more)
        self._likely = likely

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> list[Likely]:
        return [Likely(tuple(self._likely(ask, options)), 10) for ask in asks]


def played(
    protocol: BaseProtocol,
    script: Callable[[Ask], str],
    question: Question | None = None,
    likely: Callable[[Ask, Sequence[str]], Sequence[float]] | None = None,
    id: str | None = None,
) -> Debate:
    """A debate really played, with the tokens of the scripted engine; ``likely`` makes the choices of soft votes."""
    engine = Choosing(script, likely) if likely else Scripted(script)
    return asyncio.run(play(protocol, question or Question("q", "What is 17 + 25?"), engine, id=id))


class _Timeless(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while something is done, and jumps to what is due next when nothing is."""

    def __init__(self):
        super().__init__()
        self._now, self._select = 0.0, self._selector.select
        self._selector.select = self._jump

    def _jump(self, seconds=None):
        if seconds is None:
            return self._select(None)
        self._now += seconds
        return self._select(0)

    def time(self):
        return self._now


def timeless(coroutine):
    """The result of a coroutine for which waiting takes no time, and no machine is too slow."""
    with asyncio.Runner(loop_factory=_Timeless) as runner:
        return runner.run(coroutine)

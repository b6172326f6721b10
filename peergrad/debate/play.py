"""Playing debates: the only loop over turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.debate.judge import judge_asks, read_verdict
from peergrad.debate.protocol import BaseProtocol, call_protocol
from peergrad.debate.question import Question
from peergrad.debate.sampler import Sampler, answered
from peergrad.debate.types import Ask, Debate, Reply, Turn


async def play(
    protocol: BaseProtocol, question: Question, sampler: Sampler, *, id: str | None = None, judge_tokens: int = 0
) -> Debate:
    """One debate from question to end. Raises ``EngineError`` if the world failed one of its asks.

    With ``judge_tokens`` a judge, in the seat after the last, is asked for a verdict of so many tokens at most.

    Example: ``await play(Parallel(agents=3, max_rounds=2), Question("q1", "2+2?"), sampler)``
    """
    debate = Debate(id or question.id, question, protocol)
    while wave := call_protocol(protocol, protocol.wave, debate):
        debate = call_protocol(protocol, debate.extend, wave, await _replies(sampler, wave))
    if judge_tokens and (asks := judge_asks(debate, judge_tokens)):
        (reply,) = await _replies(sampler, asks)
        debate = replace(debate, verdict=Turn.of(asks[0], reply, read_verdict(reply.text, reply.truncated)))
    return debate


async def _replies(sampler: Sampler, asks: Sequence[Ask]) -> list[Reply]:
    replies: list[Reply] = []
    for answer in await answered(sampler, asks):
        if isinstance(answer, EngineError):
            raise type(answer)(str(answer)) from answer  # one answer may stand for many asks: raise a copy
        replies.append(answer)
    return replies


@dataclass(frozen=True, slots=True)
class Played:
    """What came of many debates: those that ended, in the order asked, and why the others were dropped, by id.

    ``seconds`` is how long it took to play them; ``None`` for debates kept from before. ``halted`` says why nobody answers
    any more, if so: some of the dropped debates were then not failed but left for another time.
    """

    debates: tuple[Debate, ...]
    dropped: dict[str, str]
    seconds: float | None = None
    halted: str | None = None

    def usable(self, what: str = "debates", *, most: float = 0.5, note: str = "") -> Played:
        """The same, unless it can't stand for what was asked: more than a share ``most`` was dropped, or nobody answers any
        more. ``note`` is added to what is said then.
        """
        asked = len(self.debates) + len(self.dropped)
        why = self.halted
        if not why and len(self.dropped) > most * asked:
            first = next(iter(self.dropped.values()))
            why = f"{len(self.dropped)} of {asked} {what} were dropped; the first because: {first}"
        if why:
            raise EngineError(f"{why}. {note}" if note else why)
        return self


async def play_all(
    protocol: BaseProtocol,
    questions: Sequence[Question],
    sampler: Sampler,
    *,
    prefix: str = "",
    judge_tokens: int = 0,
    done: Callable[[Debate | None], None] = lambda _: None,
) -> Played:
    """Many debates at once, one per question. A debate the world failed is dropped whole and counted, never half kept.

    A debate is named by ``prefix`` and its question, which keeps apart debates about the same question. ``done`` is told
    of each debate as it ends, ``None`` for one that was dropped. ``judge_tokens`` is as for ``play``. A sampler that works
    best on many asks at once is given as a ``Batcher``. A ``UserError`` of the sampler ends all of them.
    """
    ids = [question.id for question in questions]
    if len(set(ids)) != len(ids):
        raise ValueError("play_all needs questions with different ids: they seed the sampling and name the debates")
    dropped: dict[str, str] = {}
    halted: list[str] = []
    started = time.monotonic()

    async def one(question: Question) -> Debate | None:
        try:
            debate = await play(protocol, question, sampler, id=prefix + question.id, judge_tokens=judge_tokens)
        except EngineError as error:
            dropped[prefix + question.id] = str(error)
            if isinstance(error, Halted):
                halted.append(str(error))
            debate = None
        done(debate)
        return debate

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(question)) for question in questions]
    except BaseExceptionGroup as errors:  # no except*: Python 3.11.0 to 3.11.3 makes a group of what is raised in one
        ours, others = errors.split((UserError, EngineError))  # the latter of ``done``, where a debate can't be kept
        if ours is None or others is not None:
            raise
        raise _first(ours) from None
    debates = tuple(debate for task in tasks if (debate := task.result()))
    return Played(debates, dropped, time.monotonic() - started, halted[0] if halted else None)


def _first(errors: BaseExceptionGroup[UserError | EngineError]) -> UserError | EngineError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else type(found)(str(found))

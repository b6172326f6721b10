"""Who answers: the seam between a debate and an engine."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Ask, Reply, Usage

Answer = Reply | EngineError
T = TypeVar("T")


class Sampler(typing.Protocol):
    """Answers asks, in their order. A snapshot: its weights never change under it.

    An ask the world failed is answered by an ``EngineError`` in its place, so that it costs its own debate and no other;
    raising one fails every ask of the call. A ``UserError`` (a wrong key, no such model) is no answer: it ends the run.
    """

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]: ...


class Likely(typing.NamedTuple):
    """How likely each option is, and how many tokens of prompt an engine read to say so."""

    shares: tuple[float, ...]
    prompt: int = 0


@typing.runtime_checkable
class Chooser(typing.Protocol):
    """A sampler that also says how likely each of a few words is as the reply to an ask (SPEC 3.18).

    The words begin differently; their shares add up to 1. An ask the world failed is an ``EngineError`` in its place.
    """

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> Sequence[Likely | EngineError]: ...


class Seats:
    """A table seat → sampler: fixed opponents, a frozen judge, another model in one seat.

    Example: ``Seats({0: policy}, others=frozen)``
    """

    forwards_choices = True

    def __init__(self, seats: Mapping[int, Sampler], others: Sampler) -> None:
        self._seats = dict(seats)
        self._others = others

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        by_sampler: dict[int, tuple[Sampler, list[int]]] = {}
        for index, ask in enumerate(asks):
            sampler = self._seats.get(ask.agent, self._others)
            by_sampler.setdefault(id(sampler), (sampler, []))[1].append(index)
        answers: list[Answer | None] = [None] * len(asks)

        async def one(sampler: Sampler, indices: list[int]) -> None:
            for index, answer in zip(indices, await answered(sampler, [asks[i] for i in indices]), strict=True):
                answers[index] = answer

        await all_of([one(sampler, indices) for sampler, indices in by_sampler.values()])
        return [answer for answer in answers if answer is not None]


class Opponent:
    """A sampler whose replies name it, so that nobody trains on them."""

    forwards_choices = True

    def __init__(self, sampler: Sampler, name: str) -> None:
        self._sampler, self._name = sampler, name

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        answers = await answered(self._sampler, asks)
        return [replace(answer, by=self._name) if isinstance(answer, Reply) else answer for answer in answers]


async def all_of(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in order. If one raises, the others are ended before its exception is passed on."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answered(sampler: Sampler, asks: Sequence[Ask]) -> Sequence[Answer]:
    """One call of a sampler. Each ask gets a reply or an ``EngineError``; a ``UserError`` alone is raised."""
    name = type(sampler).__name__
    try:
        # A sampler that only hands asks on to others leaves it to them to choose.
        if any(ask.choices for ask in asks) and not hasattr(sampler, "forwards_choices"):
            answers = await _chosen(sampler, asks)
        else:
            answers = list(await sampler.sample(asks))
    except UserError:
        raise
    except EngineError as error:
        return [error] * len(asks)
    except Exception as error:
        failed = EngineError(f"{name} failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return [failed] * len(asks)
    if len(answers) != len(asks) or not all(isinstance(a, Reply | EngineError) for a in cast("list[object]", answers)):
        what = f"{name} gave {len(answers)} answers to {len(asks)} asks"
        return [EngineError(f"{what}; it must give one Reply or EngineError per ask")] * len(asks)
    return [
        EngineError(f"{name} gave a reply with broken tokens: lengths differ, or a logprob is not finite")
        if isinstance(answer, Reply) and answer.tokens is not None and not answer.tokens.sound
        else answer
        for answer in answers
    ]


async def _chosen(sampler: Sampler, asks: Sequence[Ask]) -> list[Answer]:
    """Answers to asks of which some are choices: the others are sampled, at the same time."""
    if not isinstance(sampler, Chooser):
        raise UserError(
            f"ballot_form: {type(sampler).__name__} can't say how likely words are, which soft votes are made of; "
            "take verdicts, ranking or pairs (head to head: vote_form or judge_form words)"
        )
    by_options: dict[tuple[str, ...], list[tuple[int, Ask]]] = {}
    for index, ask in enumerate(asks):
        for choice in ask.choices:
            single = replace(ask, messages=choice.messages, choices=())
            by_options.setdefault(choice.options, []).append((index, single))
    sampled = [index for index, ask in enumerate(asks) if not ask.choices]

    async def choose(options: tuple[str, ...], group: list[tuple[int, Ask]]) -> Sequence[Likely | EngineError]:
        try:
            return await sampler.choose([ask for _, ask in group], options)
        except EngineError as error:
            return [error] * len(group)

    calls: list[Coroutine[Any, Any, Sequence[Any]]] = [choose(*one) for one in by_options.items()]
    if sampled:
        calls.append(answered(sampler, [asks[index] for index in sampled]))
    results = await all_of(calls)
    replies: Sequence[Answer] = results[-1] if sampled else ()
    rows: dict[int, list[Likely | EngineError]] = {}
    for group, likely in zip(by_options.values(), results, strict=False):
        for (index, _), row in zip(group, likely, strict=True):
            rows.setdefault(index, []).append(row)
    answers: dict[int, Answer] = dict(zip(sampled, replies, strict=True))
    return [answers.get(index) or _choice_reply(ask, rows[index]) for index, ask in enumerate(asks)]


def _choice_reply(ask: Ask, rows: Sequence[Likely | EngineError]) -> Answer:
    """A reply that says how likely the options are, one choice a line; nothing in it was sampled."""
    lines: list[str] = []
    read = 0
    for choice, row in zip(ask.choices, rows, strict=True):
        if isinstance(row, EngineError):
            return row
        if len(row.shares) != len(choice.options) or not all(0 <= share <= 1 for share in row.shares):
            return EngineError(f"{row.shares} are no probabilities of {choice.options}")
        lines.append(" ".join(f"{option} {share:.6f}" for option, share in zip(choice.options, row.shares, strict=True)))
        read += row.prompt
    return Reply("\n".join(lines), usage=Usage(read, 0))


class Batching(typing.TypedDict):
    """How a sampler is called: with how many asks, how often at one moment, for how long; and who is told of replies."""

    max_asks: int
    max_calls: int
    deadline_s: float
    replied: typing.NotRequired[Callable[[Ask, Reply], None]]


class Batcher:
    """A sampler that gathers the asks of many debates into few large calls of another, each ask with a deadline.

    A call leaves when everybody who could run has run (nobody can add to it before it answers), or when ``max_asks`` are
    waiting. At most ``max_calls`` are under way; what is asked meanwhile waits and travels together. The deadline counts
    from the moment an ask is handed over, not while it waits its turn; one not answered by then becomes an ``EngineError``.

    Use as ``async with Batcher(engine, max_asks=512, deadline_s=600) as sampler``: leaving ends every call under way.
    """

    forwards_choices = True

    def __init__(
        self,
        sampler: Sampler,
        *,
        max_asks: int = 1024,
        max_calls: int = 4,
        deadline_s: float = 600.0,
        replied: Callable[[Ask, Reply], None] = lambda _ask, _reply: None,
    ) -> None:
        if max_asks < 1 or max_calls < 1:
            raise ValueError("a Batcher needs room for at least one ask and one call")
        self.calls = 0
        self._sampler = sampler
        self._max_asks = max_asks
        self._max_calls = max_calls
        self._deadline_s = deadline_s
        self._replied = replied
        self._waiting: list[tuple[Ask, asyncio.Future[Answer]]] = []
        self._unanswered: set[asyncio.Future[Answer]] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._abandoned: set[asyncio.Task[Sequence[Answer]]] = set()
        self._settling = False
        self._closed = False

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        if self._closed:
            return [self._closing()] * len(asks)
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in asks]
        for future in futures:
            self._unanswered.add(future)
            future.add_done_callback(self._unanswered.discard)
        self._waiting.extend(zip(asks, futures, strict=True))
        if not self._settling:
            self._settling = True
            loop.call_soon(self._settle, len(self._waiting))
        return await asyncio.gather(*futures)

    async def __aenter__(self) -> Batcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        self._waiting.clear()
        for future in list(self._unanswered):
            if not future.done():
                future.set_result(self._closing())
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._abandoned:  # they were cancelled at their deadline: give them a moment, never wait for ever
            await asyncio.wait(self._abandoned, timeout=1.0)

    def _closing(self) -> EngineError:
        return EngineError(f"{type(self._sampler).__name__} was closed before it answered")

    def _settle(self, waiting: int) -> None:
        """Leave once a whole pass of the event loop added nothing."""
        if len(self._waiting) > waiting and len(self._waiting) < self._max_asks:
            asyncio.get_running_loop().call_soon(self._settle, len(self._waiting))
            return
        self._settling = False
        self._leave()

    def _leave(self) -> None:
        while self._waiting and len(self._running) < self._max_calls:
            batch, self._waiting = self._waiting[: self._max_asks], self._waiting[self._max_asks :]
            batch = [(ask, future) for ask, future in batch if not future.done()]
            if batch:
                task = asyncio.get_running_loop().create_task(self._call(batch))
                self._running.add(task)
                task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not self._settling:
            self._leave()

    async def _call(self, batch: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        self.calls += 1
        call = asyncio.create_task(answered(self._sampler, [ask for ask, _ in batch]))  # noqa: RUF006 (awaited below)
        try:
            # Not wait_for: a sampler deaf to cancellation must not hold the debates beyond their deadline.
            await asyncio.wait({call}, timeout=self._deadline_s)
            answers = call.result() if call.done() else [self._late()] * len(batch)
        except UserError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            if not call.done():
                call.cancel()
                self._abandoned.add(call)
                call.add_done_callback(self._abandoned.discard)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        for (ask, _), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Reply):
                self._replied(ask, answer)

    def _late(self) -> EngineError:
        return EngineError(f"{type(self._sampler).__name__} gave no answer within {self._deadline_s:g} s")

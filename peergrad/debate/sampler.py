"""Who answers: the seam between a debate and an engine."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Ask, Reply

Answer = Reply | EngineError
T = TypeVar("T")


class Sampler(typing.Protocol):
    """Answers asks, in their order. A snapshot: its weights never change under it.

    An ask the world failed is answered by an ``EngineError`` in its place, so that it costs its own debate and no other;
    raising one fails every ask of the call. A ``UserError`` (a wrong key, no such model) is no answer: it ends the run.
    """

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]: ...


class Seats:
    """A table seat → sampler: fixed opponents, a frozen judge, another model in one seat.

    Example: ``Seats({0: policy}, others=frozen)``
    """

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
    try:
        answers = list(await sampler.sample(asks))
    except UserError:
        raise
    except EngineError as error:
        return [error] * len(asks)
    except Exception as error:
        failed = EngineError(f"{type(sampler).__name__} failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return [failed] * len(asks)
    name = type(sampler).__name__
    if len(answers) != len(asks) or not all(isinstance(a, Reply | EngineError) for a in cast("list[object]", answers)):
        what = f"{name} gave {len(answers)} answers to {len(asks)} asks"
        return [EngineError(f"{what}; it must give one Reply or EngineError per ask")] * len(asks)
    return [
        EngineError(f"{name} gave a reply with broken tokens: lengths differ, or a logprob is not finite")
        if isinstance(answer, Reply) and answer.tokens is not None and not answer.tokens.sound
        else answer
        for answer in answers
    ]

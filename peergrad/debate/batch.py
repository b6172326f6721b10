"""Many debates, few sampler calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.sampler import Answer, Sampler, answered
from peergrad.debate.types import Ask


class Batcher:
    """A sampler that gathers the asks of many debates into few large calls of another, each ask with a deadline.

    A call leaves when everybody who could run has run (nobody can add to it before it answers), or when ``max_asks`` are
    waiting. At most ``max_calls`` are under way; what is asked meanwhile waits and travels together. The deadline counts
    from the moment an ask is handed over, not while it waits its turn; one not answered by then becomes an ``EngineError``.

    Use as ``async with Batcher(engine, max_asks=512, deadline_s=600) as sampler``: leaving ends every call under way.
    """

    hands_on_choices = True

    def __init__(self, sampler: Sampler, *, max_asks: int = 1024, max_calls: int = 4, deadline_s: float = 600.0) -> None:
        if max_asks < 1 or max_calls < 1:
            raise ValueError("a Batcher needs room for at least one ask and one call")
        self.calls = 0
        self._sampler = sampler
        self._max_asks = max_asks
        self._max_calls = max_calls
        self._deadline_s = deadline_s
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

    def _late(self) -> EngineError:
        return EngineError(f"{type(self._sampler).__name__} gave no answer within {self._deadline_s:g} s")

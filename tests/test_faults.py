"""Samplers that fail, stall, or talk nonsense: what it costs, and what it must not."""

import asyncio
import random
import time
import zlib
from dataclasses import replace

import pytest

from peergrad import Batcher, EngineError, Parallel, Question, Scripted, Seats, Sequential, UserError, play, play_all
from peergrad.debate.errors import Halted
from peergrad.debate.sampler import answered
from peergrad.debate.types import Debate, Reply, Tokens
from peergrad.learn.train import self_play
from tests.helpers import full, short, timeless


def questions(n):
    return [Question(f"q{i}", f"What is {i} + {i}?") for i in range(n)]


def talk(ask):
    """Replies that depend on the ask alone."""
    rng = random.Random(zlib.crc32(f"{ask.debate}/{ask.turn}".encode()))
    others = [agent for agent in range(3) if agent != ask.agent]
    rng.shuffle(others)
    votes = f"Agent {others[0]} {rng.choice('>=<')} Agent {others[1]}" if ask.seen >= 2 else "N/A"
    write = full if ask.stop == ("</consensus_reason>",) else short
    return write(votes, solution=str(rng.randrange(100)))


class Faulty(Scripted):
    """Fails one call in five, in every way a sampler can, and remembers which debates it hit."""

    def __init__(self, seed):
        super().__init__(talk)
        self.rng = random.Random(seed)
        self.lost: set[str] = set()
        self.garbled: set[str] = set()
        self.calls = self.failed = 0

    async def sample(self, asks):
        self.calls += 1
        replies = await super().sample(asks)
        if self.rng.random() >= 0.2:
            return replies
        self.failed += 1
        hit = {ask.debate for ask in asks}
        match self.rng.randrange(7):
            case 0:
                self.lost |= hit
                raise RuntimeError("connection reset")
            case 1:
                self.lost |= hit
                await asyncio.sleep(3600)
                return replies
            case 2:
                self.lost |= hit
                return []
            case 3:
                self.lost |= hit
                return [None, "hm", 3][: len(asks)]
            case 4:  # a single ask fails: one debate is lost, its neighbours in the call are not
                self.lost.add(asks[0].debate)
                return [EngineError("time-out"), *replies[1:]]
            case 5:
                self.garbled |= hit
                return [Reply("") for _ in asks]
            case _:
                self.garbled |= hit
                return [Reply("</solution><|im_end|>\ud800 Agent 1 > " * 50) for _ in asks]


@pytest.mark.parametrize("protocol", [Parallel(agents=3, max_rounds=3), Sequential(agents=3, max_rounds=3)])
def test_a_thousand_debates_with_a_fifth_of_calls_failing(protocol):
    async def run(sampler):
        async with Batcher(sampler, max_asks=3, max_calls=10_000, deadline_s=3.0) as batcher:
            played = await play_all(protocol, questions(1000), batcher)
        await asyncio.sleep(0)
        return played, asyncio.all_tasks() - {asyncio.current_task()}

    faulty = Faulty(seed=1)
    (clean, _), (played, orphans) = timeless(run(Scripted(talk))), timeless(run(faulty))
    assert not orphans
    assert faulty.failed > 0.15 * faulty.calls
    assert clean.dropped == {}

    # Every debate is complete or dropped whole, and exactly the debates that were hit are dropped.
    assert len(played.debates) + len(played.dropped) == 1000
    assert set(played.dropped) == faulty.lost
    assert not {debate.id for debate in played.debates} & faulty.lost
    assert all(protocol.wave(debate) == [] for debate in played.debates)

    # The rest is what it would have been without faults; bad replies are the model's fault, and data.
    whole = {debate.id: debate for debate in clean.debates}
    untouched = [debate for debate in played.debates if debate.id not in faulty.garbled]
    assert len(untouched) > 100
    assert all(debate == whole[debate.id] for debate in untouched)
    garbled = [debate for debate in played.debates if debate.id in faulty.garbled]
    assert garbled
    assert all(any(turn.parsed.error for turn in debate.turns) for debate in garbled)


def test_many_debates_make_few_calls():
    async def run(**limits):
        sampler = Scripted(talk)
        async with Batcher(sampler, **limits) as batcher:
            await play_all(Parallel(agents=3, max_rounds=3), questions(200), batcher)
        return batcher.calls, sampler.asked

    assert asyncio.run(run()) == (3, 1800)
    calls, asked = asyncio.run(run(max_asks=100, max_calls=1))
    assert asked == 1800
    assert 18 <= calls <= 24


def test_a_sampler_deaf_to_cancellation_holds_nobody_up():
    class Deaf:
        async def sample(self, asks):
            end = time.monotonic() + 600
            while (left := end - time.monotonic()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue
            return []

    async def run():
        start = time.monotonic()
        async with Batcher(Deaf(), deadline_s=0.05) as batcher:
            played = await play_all(Parallel(), questions(3), batcher)
        return played, time.monotonic() - start

    async def bounded():
        return await asyncio.wait_for(run(), 120)

    loop = asyncio.new_event_loop()
    try:
        played, seconds = loop.run_until_complete(bounded())
    finally:
        loop.close()
    assert seconds < 300
    assert set(played.dropped) == {"q0", "q1", "q2"}
    assert "no answer within 0.05 s" in played.dropped["q0"]


def test_leaving_the_batcher_ends_what_is_under_way():
    async def run():
        class Slow(Scripted):
            async def sample(self, asks):
                await asyncio.sleep(3600)

        async with Batcher(Slow(talk)) as batcher:
            task = asyncio.create_task(play_all(Parallel(), questions(2), batcher))
            await asyncio.sleep(0.05)
        played = await asyncio.wait_for(task, 60)
        return played, asyncio.all_tasks() - {asyncio.current_task()}

    played, orphans = asyncio.run(run())
    assert not orphans
    assert len(played.dropped) == 2


@pytest.mark.parametrize("passes", range(8))
def test_leaving_the_batcher_early_answers_everybody(passes):
    async def run():
        async with Batcher(Scripted(talk), max_asks=3, max_calls=1) as batcher:
            task = asyncio.create_task(play_all(Parallel(), questions(5), batcher))
            for _ in range(passes):
                await asyncio.sleep(0)
        played = await asyncio.wait_for(task, 60)
        calls = batcher.calls
        assert isinstance((await batcher.sample([None]))[0], EngineError)
        assert batcher.calls == calls
        return played, asyncio.all_tasks() - {asyncio.current_task()}

    played, orphans = asyncio.run(run())
    assert not orphans
    assert len(played.debates) + len(played.dropped) == 5


def test_a_cancelled_debate_is_not_sampled_for():
    async def run():
        asked = []

        class Slow(Scripted):
            async def sample(self, asks):
                asked.extend(ask.debate for ask in asks)
                await asyncio.sleep(0.05)
                return await super().sample(asks)

        async with Batcher(Slow(talk), max_asks=3, max_calls=1) as batcher:
            first, second = (asyncio.create_task(play(Parallel(max_rounds=1), q, batcher)) for q in questions(2))
            await asyncio.sleep(0.02)
            second.cancel()
            await first
            await asyncio.sleep(0.1)
        return asked

    assert asyncio.run(run()) == ["q0"] * 3


def test_progress_is_told():
    told = []

    async def run():
        async with Batcher(Faulty(seed=2), max_asks=3, deadline_s=0.2) as batcher:
            return await play_all(Parallel(), questions(40), batcher, done=told.append)

    played = asyncio.run(run())
    assert told.count(None) == len(played.dropped) > 0
    assert {debate.id for debate in told if debate} == {debate.id for debate in played.debates}


def test_our_own_bugs_are_raised(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Parallel, "read", broken)
        with pytest.raises(ExceptionGroup):
            asyncio.run(play_all(Parallel(), questions(2), Scripted(talk)))
    with pytest.raises(ValueError, match="at least one ask"):
        Batcher(Scripted(talk), max_asks=0)
    with pytest.raises(ValueError, match="different ids"):
        asyncio.run(play_all(Parallel(), [Question("a", "?")] * 2, Scripted(talk)))


@pytest.mark.parametrize(
    "bad",
    [([1], [2], [float("-inf")], [0]), ([1], [2], [float("nan")], [0]), ([1], [2, 3], [0.0], [0]), ([], [2], [0.0], [0])],
)
def test_broken_tokens_cost_their_own_debate(bad):
    class Broken(Scripted):
        async def sample(self, asks):
            replies = list(await super().sample(asks))
            return [
                replace(r, tokens=Tokens.of(*bad)) if a.debate == "q1" else r for a, r in zip(asks, replies, strict=True)
            ]

    played = asyncio.run(play_all(Parallel(), questions(3), Broken(talk)))
    assert set(played.dropped) == {"q1"}
    assert "broken tokens" in played.dropped["q1"]


def test_an_answer_per_ask_whatever_a_sampler_does():
    class Odd:
        async def sample(self, asks):
            return [Reply("x")]

    protocol = Parallel(agents=2)
    asks = protocol.wave(Debate("d", Question("q", "?"), protocol))
    (first, second) = asyncio.run(answered(Odd(), asks))
    assert isinstance(first, EngineError)
    assert "1 answers to 2 asks" in str(second)


@pytest.mark.parametrize("table", [False, True], ids=["batched", "seats"])
def test_a_persons_mistake_ends_the_run_at_once(table):
    class Locked(Scripted):
        async def sample(self, asks):
            await asyncio.sleep(0.01)
            raise UserError("key: is wrong")

    class Slow(Scripted):
        async def sample(self, asks):
            await asyncio.sleep(3600)

    async def run():
        async with Batcher(Locked(talk), max_asks=3) as batcher:
            sampler = Seats({0: Locked(talk)}, others=Slow(talk)) if table else batcher
            with pytest.raises(UserError, match="key: is wrong"):
                await play_all(Parallel(), questions(20), sampler)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not asyncio.run(run())


def test_a_halt_keeps_what_is_done_and_says_why():
    class Spent(Scripted):
        async def sample(self, asks):
            return [Halted("spent")] * len(asks) if self.asked >= 27 else await super().sample(asks)

    played = asyncio.run(play_all(Parallel(agents=3, max_rounds=3), questions(5), Spent(talk)))
    assert played.halted == "spent"
    assert len(played.debates) + len(played.dropped) == 5
    assert set(played.dropped.values()) == {"spent"}
    assert asyncio.run(play_all(Parallel(), questions(2), Scripted(talk))).halted is None
    with pytest.raises(EngineError, match=r"^spent$"):
        asyncio.run(self_play(Parallel(agents=3, max_rounds=3), lambda _: questions(5))(0, Spent(talk)))

"""Requests that come while others are sampled: they join, they do not wait, and nobody is kept waiting by them."""

import asyncio
import time
import weakref

import numpy as np
import pytest

from peergrad.debate.errors import EngineError
from peergrad.engines.local.engine import Local
from peergrad.engines.local.sample.sampler import CompletionRequest
from peergrad.serve.samplers import RequestBatcher
from tests.runs.killing import PARROT


@pytest.fixture(scope="module")
def local():
    return Local.load_model(str(PARROT), threads=1, max_rows=8)


def request(name, tokens, prompt=10):
    return CompletionRequest(np.arange(20, 20 + prompt, dtype=np.int32), tokens, 1.0, (), frozenset(), name)


async def begun(local):
    """Wait until something is being sampled."""
    before = local.scheduler.prefilled_tokens
    end = time.monotonic() + 300
    while local.scheduler.prefilled_tokens == before:
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def ids(completions):
    return [completion.ids for completion in completions]


def test_who_comes_later_joins_and_leaves_first(local):
    batcher, sampler, order = RequestBatcher(), local.base_sampler(), []

    async def ask(name, tokens):
        completions = await batcher.sample(sampler, [request(f"{name} {i}", tokens) for i in range(2)])
        order.append(name)
        return ids(completions)

    async def go():
        long = asyncio.create_task(ask("long", 600))
        await begun(local)
        short = await asyncio.gather(*(ask(f"short {i}", 5) for i in range(4)))
        return await long, short

    long, short = asyncio.run(go())
    assert order[-1] == "long"
    assert batcher.batches == 1
    assert [len(one) for one in long] == [600, 600]
    for i, completions in enumerate(short):  # what is said does not depend on who else was there
        alone = asyncio.run(sampler.complete([request(f"short {i} {j}", 5) for j in range(2)]))
        assert completions == ids(alone)


def test_nobody_is_kept_waiting_by_those_who_join(local):
    batcher, sampler, other = RequestBatcher(), local.base_sampler(), asyncio.run(local.sampler())
    stop = asyncio.Event()

    async def crowd(which):
        count = 0
        while not stop.is_set():
            await batcher.sample(sampler, [request(f"crowd {which} {count}", 40)])
            count += 1
        return count

    async def go():
        crowds = [asyncio.create_task(crowd(which)) for which in range(3)]
        await begun(local)
        joined = batcher.batches
        await batcher.sample(other, [request("other weights", 5)])
        # Longer than what memory was laid out for: it must wait for the next run, and gets one.
        longer = await batcher.sample(sampler, [request("longer", 1500, 300)])
        scored = await batcher.logprobs(sampler, np.arange(20, 60, dtype=np.int32))
        stop.set()
        return joined, longer, scored, await asyncio.gather(*crowds)

    joined, longer, scored, counts = asyncio.run(asyncio.wait_for(go(), 60))
    assert joined == 1
    assert len(longer[0].ids) == 1500
    assert np.isfinite(scored[1:]).all()
    assert min(counts) > 1


def test_who_leaves_costs_nobody_anything(local):
    batcher, sampler = RequestBatcher(), local.base_sampler()

    async def go():
        leaving = asyncio.create_task(batcher.sample(sampler, [request("leaving", 1500)]))
        await begun(local)
        staying = asyncio.create_task(batcher.sample(sampler, [request("staying", 20)]))
        await asyncio.sleep(0)
        leaving.cancel()
        completions = await staying
        alone = asyncio.create_task(batcher.sample(sampler, [request("alone", 1500)]))
        await asyncio.sleep(0.1)
        alone.cancel()  # the last: the run ends, and the next one begins
        return completions, await batcher.sample(sampler, [request("next", 7)])

    completions, after = asyncio.run(asyncio.wait_for(go(), 60))
    assert len(completions[0].ids) == 20
    assert len(after[0].ids) == 7


def test_who_left_is_not_sampled_for(local):
    batcher, sampler = RequestBatcher(), local.base_sampler()

    async def go():
        leaving = asyncio.create_task(batcher.sample(sampler, [request(f"many {i}", 1500) for i in range(100)]))
        await begun(local)
        staying = asyncio.create_task(batcher.sample(sampler, [request("staying", 5)]))
        await asyncio.sleep(0.01)
        leaving.cancel()
        before = local.scheduler.prefilled_tokens
        await staying
        return local.scheduler.prefilled_tokens - before

    assert asyncio.run(asyncio.wait_for(go(), 60)) < 200  # of ten tokens each: those that were begun, at most a few rows


def test_a_number_that_is_not_finite_stays_with_its_request():
    few = Local.load_model(str(PARROT), threads=1, max_rows=2)
    batcher, sampler = RequestBatcher(), few.base_sampler()
    few.decoder.embedding = few.decoder.embedding.clone()
    few.decoder.embedding[400] = float("nan")
    poisoned = CompletionRequest(np.full(40, 400, np.int32), 30, 1.0, (), frozenset(), "poisoned")

    async def go():
        long = asyncio.create_task(batcher.sample(sampler, [request("long", 300)]))
        await begun(few)
        broken = asyncio.create_task(batcher.sample(sampler, [poisoned]))
        after = [asyncio.create_task(batcher.sample(sampler, [request(f"after {i}", 30)])) for i in range(4)]
        return await asyncio.gather(long, broken, *after, return_exceptions=True)

    long, broken, *after = asyncio.run(asyncio.wait_for(go(), 60))
    assert isinstance(broken, EngineError)
    for completions in (long, *after):
        assert np.isfinite(completions[0].logprobs).all()


def test_memory_for_what_may_be_used_again_is_bounded():
    small = Local.load_model(str(PARROT), threads=1, max_rows=4, kv_gb=0.002)
    prefixes, clones, live = small.scheduler.memory.prefixes, [], []
    store = prefixes.store

    def recording(cache, entry, ids_T):
        store(cache, entry, ids_T)
        if entry.kv is not None:
            clones.append(weakref.ref(entry.kv))
        live.append(sum(kv.numel() * kv.element_size() for one in clones if (kv := one()) is not None))

    prefixes.store = recording
    completions = asyncio.run(small.base_sampler().complete([request(f"one of many {i}", 40) for i in range(60)]))
    assert len(completions) == 60
    assert 0 < max(live) <= prefixes.budget


def test_a_failure_is_told_to_all_and_passes(local, monkeypatch):
    batcher, sampler = RequestBatcher(), local.base_sampler()

    async def go(name):
        asks = (batcher.sample(sampler, [request(f"{name} {i}", 5)]) for i in range(3))
        return await asyncio.gather(*asks, return_exceptions=True)

    with monkeypatch.context() as patched:
        patched.setattr(local.decoder, "hidden", lambda *_: (_ for _ in ()).throw(MemoryError("full")))
        assert all(isinstance(one, EngineError | MemoryError) for one in asyncio.run(go("failing")))
    assert [len(one[0].ids) for one in asyncio.run(go("working"))] == [5, 5, 5]
    too_long = asyncio.run(asyncio.wait_for(_refused(batcher, sampler), 20))
    assert "does not fit the model's context" in str(too_long)


async def _refused(batcher, sampler):
    with pytest.raises(EngineError) as caught:
        await batcher.sample(sampler, [request("fine", 3), request("too long", 5, 3000)])
    return caught.value

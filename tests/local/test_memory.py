"""Memory that runs out: less is done at once, and what is said is the same."""

import asyncio
import threading

import numpy as np
import pytest
import torch

from peergrad import EngineError, UserError
from peergrad.engines.local import engine as engines
from peergrad.engines.local.engine import Local
from peergrad.engines.local.memory import is_out_of_memory
from peergrad.engines.local.sample import cache
from peergrad.engines.local.sample.sampler import _render
from peergrad.engines.local.train import backward
from tests.local.test_training import DATA, cpu_is_full, gpu_is_full, trained_engine
from tests.local.tiny import ask, engine

FULL = pytest.mark.parametrize("full", [gpu_is_full, cpu_is_full])
ASKS = [ask(f"{i} word " * (2 * i + 1), debate=f"d{i}", tokens=5 + 2 * i) for i in range(12)]


def sample(local, asks=ASKS):
    return asyncio.run(local.base_sampler().sample(asks))


@pytest.fixture(scope="module")
def plenty():
    return [reply.tokens.ids_T.tolist() for reply in sample(engine())]


def assert_same(replies, plenty):
    assert [reply.tokens.ids_T.tolist() for reply in replies] == plenty


def limited(monkeypatch, where, name, full, fits):
    """Have calls of a function run out of memory, unless their arguments fit; returns those of every call."""
    real, calls = getattr(where, name), []

    def called(*args, **more):
        calls.append(args)
        if not fits(*args):
            full()
        return real(*args, **more)

    monkeypatch.setattr(where, name, called)
    return calls


@FULL
def test_fewer_rows_where_all_do_not_fit(monkeypatch, full, plenty):
    said = []
    local = engine(say=said.append)
    calls = limited(monkeypatch, cache, "KVCache", full, lambda _, rows, __: rows <= 3)
    assert_same(sample(local), plenty)
    assert [rows for _, rows, _ in calls] == [8, 4, 2]
    assert said == ["memory ran out while sampling: fewer replies at once from now on (kv_gb, max_rows)"]
    assert_same(sample(local), plenty)
    assert len(calls) == 3  # and the rows there are stay
    assert len(said) == 1


def test_prefixes_go_before_rows_do(monkeypatch, plenty):
    local = engine(max_rows=12)
    sample(local, ASKS[:3])
    prefixes, budget = local.scheduler.memory.prefixes, local.scheduler.memory.prefixes.budget
    assert prefixes.used
    limited(monkeypatch, cache, "KVCache", gpu_is_full, lambda *_: not prefixes.used)
    assert_same(sample(local), plenty)
    assert local.scheduler.memory.state.rows == 12
    assert prefixes.budget == budget // 2


@FULL
def test_what_can_not_be_parked_is_not(monkeypatch, full, plenty):
    local = engine()
    calls = limited(monkeypatch, cache, "_copy", full, lambda *_: False)
    assert_same(sample(local), plenty)
    assert len(calls) == len(ASKS)
    assert local.scheduler.memory.prefixes.used == 0


def test_what_is_longest_unused_makes_room_for_what_is_parked(monkeypatch, plenty):
    local = engine(max_rows=1)
    prefixes = local.scheduler.memory.prefixes
    calls = limited(monkeypatch, cache, "_copy", gpu_is_full, lambda tensor: prefixes.used + tensor.nbytes < 250_000)
    for one, wanted in zip(ASKS, plenty, strict=True):
        assert_same(sample(local, [one]), [wanted])
        assert prefixes.used == sum(entry.kv.nbytes for entry in prefixes._stored.values()) < 250_000
    assert len(calls) > len(ASKS)
    before = local.scheduler.prefilled_tokens
    sample(local, [ASKS[-1]])
    assert local.scheduler.prefilled_tokens - before < 20  # the newest is there
    before = local.scheduler.prefilled_tokens
    sample(local, [ASKS[4]])
    assert local.scheduler.prefilled_tokens - before > 20  # older ones are not


@FULL
def test_prompts_are_computed_in_smaller_parts(monkeypatch, full, plenty):
    local = engine(max_rows=12)
    local.scheduler._prefill_tokens = 4096
    calls = limited(monkeypatch, local.decoder, "hidden", full, lambda ids, *_: len(ids) <= 300)
    assert_same(sample(local), plenty)

    def failed():
        return sum(len(ids) > 300 for ids, *_ in calls)

    before = failed()
    assert before
    assert local.scheduler._prefill_tokens < 4096
    assert local.scheduler.memory.state.rows == 12  # nothing was begun anew
    local.scheduler.memory.prefixes.evict()
    assert_same(sample(local), plenty)
    assert failed() - before < before  # it has learned


@FULL
@pytest.mark.parametrize("after", [0, 3, 9])
def test_replies_are_begun_anew_with_fewer_rows(monkeypatch, full, after, plenty):
    local = engine(max_rows=12)
    steps = []

    def fits(_, rows, *__):
        steps.append(rows)
        return rows <= 5 or len(steps) <= after

    limited(monkeypatch, cache.BatchState, "_step", full, fits)
    assert_same(sample(local), plenty)
    assert max(steps) > 5
    assert local.scheduler.memory.state.rows <= 5
    assert_same(sample(local), plenty)


@FULL
def test_one_that_does_not_fit_costs_its_own_ask(monkeypatch, full, plenty):
    local = engine()
    limited(monkeypatch, local.decoder, "hidden", full, lambda ids, *_: len(ids) < 400)
    long = ask("long " * 500, debate="long")
    *replies, failed = sample(local, [*ASKS, long])
    assert_same(replies, plenty)
    assert isinstance(failed, EngineError)
    assert "out of memory while sampling " in str(failed)
    assert "by themselves; give fewer" in str(failed)
    assert local.scheduler.memory._row_budget == local.scheduler.memory._half  # the others are not made to pay for it


def test_a_request_that_joined_is_not_lost(monkeypatch, plenty):
    local = engine(max_rows=8)
    arriving = _render(ASKS[::-1], local.chat, local.seed)  # the longest first: all fit into its rows
    delivered, sampler = [], local.base_sampler()

    def poll():
        return [sampler.job(arriving.pop(0), delivered.append) for _ in arriving[:2]]

    calls = limited(monkeypatch, local.decoder, "hidden", gpu_is_full, lambda *_: len(calls) not in (6, 7, 23))
    asyncio.run(sampler.run_batch(poll))
    assert len(calls) > 23
    assert not arriving
    assert [job.ids for job in sorted(delivered, key=lambda job: len(job.prompt_T))] == plenty


def fits_alone(monkeypatch, local):
    """Training runs out of memory as long as sampling has any."""
    limited(monkeypatch, backward._Batch, "_micro_batch", gpu_is_full, lambda *_: local.scheduler.memory.state is None)


def test_training_takes_the_memory_of_sampling(monkeypatch, plenty):
    local, other = trained_engine(), trained_engine()
    assert_same(sample(local), plenty)
    assert local.scheduler.memory.prefixes.used
    fits_alone(monkeypatch, local)
    stats = asyncio.run(local.step(DATA, "ppo", 1e-3))
    assert not stats.skipped
    assert stats.loss == asyncio.run(other.step(DATA, "ppo", 1e-3)).loss
    assert local.scheduler.memory.state is None
    assert not local.scheduler.memory.prefixes.used
    assert_same(sample(local), plenty)


def test_training_leaves_whoever_samples_alone(monkeypatch, plenty):
    """A step in the middle of sampling runs out of memory; afterwards it does not."""
    local = trained_engine()
    real, calls, failed = local.decoder.hidden, [], []

    def step():
        with pytest.raises(EngineError) as caught:
            asyncio.run(local.step(DATA, "ppo", 1e-3))
        failed.append(str(caught.value))

    def hidden(ids, *rest):
        calls.append(ids)
        if len(calls) == 15:
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        return real(ids, *rest)

    monkeypatch.setattr(local.decoder, "hidden", hidden)
    fits_alone(monkeypatch, local)
    assert_same(sample(local), plenty)
    assert len(failed) == 1
    assert "out of memory while training on one sequence; shorten it" in failed[0]
    assert not asyncio.run(local.step(DATA, "ppo", 1e-3)).skipped


def test_reading_takes_the_memory_of_sampling(monkeypatch):
    local = engine()
    ids = np.arange(50, dtype=np.int32)
    expected = asyncio.run(local.base_sampler().logprobs(ids))
    sample(local)
    limited(monkeypatch, local.decoder, "hidden", gpu_is_full, lambda *_: local.scheduler.memory.state is None)
    assert asyncio.run(local.base_sampler().logprobs(ids)).tolist() == expected.tolist()
    monkeypatch.setattr(local.decoder, "hidden", lambda *_: gpu_is_full())
    with pytest.raises(EngineError, match="out of memory while reading 50 tokens; give fewer"):
        asyncio.run(local.base_sampler().logprobs(ids))


@FULL
def test_a_model_that_is_too_large_is_a_sentence(monkeypatch, full, tmp_path):
    monkeypatch.setattr(engines, "load_decoder", lambda *_: full())
    with pytest.raises(UserError, match=r"^model: smollm2 is too large for the memory of cpu; give another"):
        Local.load_model("smollm2", device="cpu", threads=torch.get_num_threads())


def test_what_means_that_memory_ran_out():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert not is_out_of_memory(RuntimeError("device lost"))
    assert not is_out_of_memory(ValueError("out of memory"))
    capture = RuntimeError("operation failed due to a previous error during capture")
    capture.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(capture)

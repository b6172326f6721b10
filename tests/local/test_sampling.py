"""Sampling: what a reply depends on, what is computed again and what is not."""

import asyncio
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from peergrad import EngineError, Parallel, Question, play
from peergrad.debate.types import Message, Tokens
from peergrad.engines.local.model.ops import draw
from peergrad.engines.local.sample.cache import _blocks
from tests.helpers import short
from tests.local.tiny import ask, engine, model, tokenizer

ASKS = [ask("word " * (3 * i + 1), debate=f"d{i}", tokens=5 + 2 * i, temperature=0.5 + 0.05 * i) for i in range(20)]


def sample(sampler, asks):
    return asyncio.run(sampler.sample(asks))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_reply_does_not_depend_on_its_neighbours(kind):
    together = sample(engine(kind, max_rows=7).base_sampler(), ASKS)
    alone = [sample(engine(kind, max_rows=1).base_sampler(), [one])[0] for one in ASKS]
    for one, other in zip(together, alone, strict=True):
        assert one.text == other.text
        assert one.tokens.logprobs_T == pytest.approx(other.tokens.logprobs_T, abs=1e-4)


def test_same_seed_same_batch_same_bytes():
    first, again = (sample(engine(seed=5).base_sampler(), ASKS) for _ in range(2))
    assert first == again
    other = sample(engine(seed=6).base_sampler(), ASKS)
    assert [r.text for r in other] != [r.text for r in first]
    assert sample(engine().base_sampler(), [ask("x", turn=1)])[0].text != sample(engine().base_sampler(), [ask("x")])[0].text


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_greedy_equals_transformers(kind):
    local = engine(kind)
    asks = [replace(one, temperature=0.0, max_tokens=25) for one in ASKS]
    replies = sample(local.base_sampler(), asks)
    reference = model(kind)
    for one in replies:
        prompt = torch.from_numpy(one.tokens.prompt_T.astype(np.int64))[None]
        ends = sorted(local.chat.ends)
        with torch.no_grad():
            out = reference.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=25,
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=0,
            )
        assert out[0, prompt.shape[1] :].tolist() == one.tokens.ids_T.tolist()


def test_logprobs_are_of_the_distribution_sampled_from():  # SPEC 6.7
    reference = model()
    for reply in sample(engine().base_sampler(), ASKS[:8]):
        tokens = reply.tokens
        ids = torch.from_numpy(np.concatenate((tokens.prompt_T, tokens.ids_T)).astype(np.int64))[None]
        with torch.no_grad():
            scores = reference(ids).logits[0, len(tokens.prompt_T) - 1 : -1] / tokens.temperature
        wanted = torch.log_softmax(scores, -1).gather(1, ids[0, len(tokens.prompt_T) :, None])[:, 0]
        assert tokens.logprobs_T == pytest.approx(wanted.numpy(), abs=1e-4)


def test_draws_follow_the_distribution():
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).expand(20_000, 4)
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    for temperature in (0.5, 1.0, 2.0):
        ids, logprobs = draw(logits, torch.full((20_000,), temperature), uniforms)
        wanted = torch.softmax(logits[0] / temperature, -1)
        assert torch.bincount(ids, minlength=4) / 20_000 == pytest.approx(wanted, abs=0.015)
        assert logprobs.exp() == pytest.approx(wanted[ids], abs=1e-6)
    edges, _ = draw(logits[:2], torch.ones(2), torch.tensor([0.0, 1.0]))
    assert edges.tolist() == [0, 3]
    assert draw(logits[:1], torch.zeros(1), torch.zeros(1))[0].tolist() == [3]


def test_only_what_is_new_is_prefilled():
    local = engine(max_rows=4)
    sampler = local.base_sampler()
    protocol = Parallel(agents=3, max_rounds=3, max_tokens=40)
    debate = asyncio.run(play(protocol, Question("q", "What?"), sampler))
    last = {turn.agent: turn.tokens for turn in debate.turns}
    reused = sum(len(t.prompt_T) for t in last.values())
    sampled_before = sum(len(turn.tokens.ids_T) for turn in debate.turns[:6])
    # The last token of each reply was drawn, not computed, so it is new to the next prompt.
    assert local.scheduler.prefilled_tokens <= reused - sampled_before + 6
    fresh = [
        asyncio.run(play(protocol, Question("q", "What?"), engine(max_rows=4, kv_gb=kv).base_sampler()))
        for kv in (1.0, 0.003)
    ]
    assert [turn.text for turn in fresh[0].turns] == [turn.text for turn in debate.turns]
    assert [turn.text for turn in fresh[1].turns] == [turn.text for turn in debate.turns]  # nothing could be kept


def test_identical_prompts_are_prefilled_once():
    local = engine(max_rows=8)
    asks = [ask("the same long question " * 20, debate=f"d{i}") for i in range(30)]
    replies = sample(local.base_sampler(), asks)
    length = len(replies[0].tokens.prompt_T)
    assert local.scheduler.prefilled_tokens <= length + 29 * 16  # each computes at most its last block
    assert len({reply.text for reply in replies}) > 20


def test_every_block_names_all_before_it():
    ids = np.arange(100, dtype=np.int32)
    blocks = _blocks(1, ids)
    assert len(blocks) == 6
    assert _blocks(1, ids[:50]) == blocks[:3]
    other = ids.copy()
    other[20] = 0
    assert [a == b for a, b in zip(blocks, _blocks(1, other), strict=True)] == [True] + [False] * 5
    assert not set(blocks) & set(_blocks(2, ids))
    assert _blocks(1, ids[:15]) == []


def test_memory_is_bounded_and_what_is_longest_unused_goes_first():
    local = engine(max_rows=3, kv_gb=0.003)
    sampler = local.base_sampler()
    for start in range(0, 60, 6):
        sample(sampler, [ask(f"question {i} " * 30, debate=f"d{i}") for i in range(start, start + 6)])
        prefixes, state = local.scheduler.memory.prefixes, local.scheduler.memory.state
        assert prefixes.used <= prefixes.budget
        assert state.cache.kv.numel() * 4 <= 0.003 * 2**30 / 2
        assert prefixes.used == sum(entry.kv.numel() * 4 for entry in prefixes._stored.values())
    before = local.scheduler.prefilled_tokens
    sample(sampler, [ask("question 59 " * 30, debate="new")])
    assert local.scheduler.prefilled_tokens - before < 60  # the newest is still there
    before = local.scheduler.prefilled_tokens
    sample(sampler, [ask("question 0 " * 30, debate="new")])
    assert local.scheduler.prefilled_tokens - before > 60  # the oldest is not


def test_room_is_made_once_and_not_lost_to_one_long_ask():
    local = engine(max_rows=32, kv_gb=0.004)
    sampler = local.base_sampler()
    sample(sampler, [ask("long " * 300, tokens=200)])
    long_one = local.scheduler.memory.state
    assert long_one.rows <= 3
    wide = [ask(f"short {i}", debate=f"d{i}", tokens=10) for i in range(20)]
    sample(sampler, wide)
    state = local.scheduler.memory.state
    assert state.rows == 20
    for _ in range(3):
        sample(sampler, wide[:7])
        assert local.scheduler.memory.state is state


def test_a_failure_leaves_nothing_behind(monkeypatch):
    local = engine()
    clean = sample(engine().base_sampler(), ASKS)
    real, calls = local.decoder.hidden, []

    def failing(*args):
        calls.append(1)
        if len(calls) == 12:
            raise RuntimeError("device lost")
        return real(*args)

    monkeypatch.setattr(local.decoder, "hidden", failing)
    with pytest.raises(RuntimeError, match="device lost"):
        sample(local.base_sampler(), ASKS)
    assert [reply.text for reply in sample(local.base_sampler(), ASKS)] == [reply.text for reply in clean]


def test_a_diverged_adapter_does_not_poison_the_base():
    local = engine()
    clean = sample(engine().base_sampler(), ASKS)
    with torch.no_grad():
        for weight in local._lora.weights.values():
            weight.fill_(float("nan"))
    broken = sample(asyncio.run(local.sampler()), ASKS)
    assert not any(reply.tokens.sound for reply in broken)
    assert [reply.text for reply in sample(local.base_sampler(), ASKS)] == [reply.text for reply in clean]


def test_stops_ends_and_limits():
    local = engine()
    free = sample(local.base_sampler(), [ask("x", tokens=60)])[0]
    middle = re.search("[ -~]{4}", free.text[3:])[0]
    stopped = sample(local.base_sampler(), [ask("x", tokens=60, stop=(middle,))])[0]
    at = free.text.index(middle) + len(middle)
    assert middle in stopped.text
    assert not stopped.truncated
    assert free.text.startswith(stopped.text)
    assert len(stopped.text) - at < 12  # the stop text stays, with what its last token adds
    cut = sample(local.base_sampler(), [ask("x", tokens=5)])[0]
    assert cut.truncated
    assert len(cut.tokens.ids_T) == 5
    # Make the end of turn certain: the reply ends with it, and it has no text.
    local = engine()
    end = tokenizer().eos_token_id
    local.decoder.unembedding = local.decoder.unembedding.clone()
    with torch.no_grad():
        hidden_size = local.decoder.unembedding.shape[1]
        local.decoder.last_norm = torch.full((hidden_size,), 1e-3)
        local.decoder.unembedding[:] = 0
    reply = sample(local.base_sampler(), [ask("x", tokens=4000, temperature=1.0)])[0]
    assert not reply.truncated
    assert reply.tokens.ids_T[-1] in local.chat.ends
    assert end in local.chat.ends
    assert reply.tokens.starts_T[-1] == len(reply.text.encode())


def test_what_does_not_fit_costs_its_own_ask():
    local = engine(kv_gb=0.01)
    answers = sample(local.base_sampler(), [ask("ok"), ask("long " * 4000), ask("fine")])
    assert [type(answer).__name__ for answer in answers] == ["Reply", "EngineError", "Reply"]
    assert "does not fit the model's context" in str(answers[1])
    tight = engine(kv_gb=0.001)
    answers = sample(tight.base_sampler(), [ask("ok", tokens=3000), ask("fine")])
    assert isinstance(answers[0], EngineError)
    assert "raise it" in str(answers[0])
    assert answers[1].text


def test_cancelling_frees_the_engine():
    local = engine()

    async def go():
        task = asyncio.create_task(local.base_sampler().sample([ask("x", tokens=3500, debate=f"d{i}") for i in range(8)]))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await local.base_sampler().sample([ask("y")])

    (reply,) = asyncio.run(go())
    assert reply == sample(engine().base_sampler(), [ask("y")])[0]
    assert threading.active_count() < 10


def test_exact_tokens_are_copied_not_rendered():
    local = engine()
    strange = Tokens.of([5, 6, 7], [8, 9], [-1.0, -1.0], [0, 1])
    asked = replace(ask("x"), messages=(Message("user", "u"), Message("assistant", short(), strange), Message("user", "v")))
    (reply,) = sample(local.base_sampler(), [asked])
    assert reply.tokens.prompt_T[:5].tolist() == [5, 6, 7, 8, 9]

"""Training: exactly the oracle's loss, whatever the micro-batches; snapshots; checkpoints."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel

from peergrad import EngineError, UserError
from peergrad.engines.local.model.lora import LoraRules
from peergrad.engines.local.train import backward
from peergrad.engines.local.train.backward import gradient
from peergrad.engines.local.train.packing import micro_batches, prefix_trees
from peergrad.learn import losses as oracle
from peergrad.learn.data import Datum
from tests.local.tiny import ask, engine, model, tokenizer

RNG = np.random.default_rng(0)
LOSSES = ["importance_sampling", "ppo", "cispo", "cross_entropy"]


def datum(length, *, off_policy=0.3, temperature=None, rng=RNG):
    mask = (rng.random(length) < 0.5).astype(np.float32)
    mask[-1] = 1
    ids = rng.integers(0, 300, length + 1).astype(np.int32)
    return Datum(
        debate="d",
        agent=0,
        turns=(0,),
        inputs_T=ids[:-1],
        targets_T=ids[1:],
        logprobs_T=(mask * rng.normal(-6, off_policy, length)).astype(np.float32),
        advantages_T=(mask * rng.normal(0, 1, length)).astype(np.float32),
        mask_T=mask,
        temperatures_T=np.where(mask > 0, temperature or rng.choice([0.6, 1.0, 0.9], length), 1).astype(np.float32),
    )


def alike(shared, *lengths):
    """Datums that begin with the same tokens, none of them sampled."""
    made = [datum(length) for length in lengths]
    for one in made:
        one.inputs_T[:shared] = np.arange(shared) + shared
        one.targets_T[: shared - 1] = one.inputs_T[1:shared]
        for column in (one.mask_T, one.logprobs_T, one.advantages_T):
            column[: shared - 1] = 0
        one.temperatures_T[: shared - 1] = 1
        one.mask_T[shared - 1] = 1
    return made


DATA = [datum(length) for length in (33, 7, 64, 20, 11)] + alike(45, 60, 80, 63) + alike(34, 40, 38)
SCALE = float(sum(np.abs(one.advantages_T).sum() for one in DATA))  # of a loss's terms, which cancel


def trained_engine(kind="llama", **settings):
    """An engine whose adapter is not zero."""
    local = engine(kind, lora=LoraRules(rank=4, alpha=8.0), **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in local._lora.weights.items():
            if "lora_B" in name:
                weight.normal_(std=0.05, generator=generator)
    return local


def reference(local, kind, data, loss, tmp_path):
    """Loss and gradient by transformers, PEFT and the NumPy oracle, one sequence at a time."""
    asyncio.run(local.save(tmp_path))
    peft = PeftModel.from_pretrained(model(kind), str(tmp_path), is_trainable=True)
    named = {name.replace(".default", ""): p for name, p in peft.named_parameters() if "lora" in name}
    value, logprobs = 0.0, []
    for one in data:
        scores = peft(torch.from_numpy(one.inputs_T.astype(np.int64))[None]).logits[0]
        scores = scores / torch.from_numpy(one.temperatures_T)[:, None]
        new = torch.log_softmax(scores, -1).gather(1, torch.from_numpy(one.targets_T.astype(np.int64))[:, None])[:, 0]
        if loss == "cross_entropy":
            made = oracle.cross_entropy(new.detach().numpy(), one.advantages_T)
        else:
            made = getattr(oracle, loss)(new.detach().numpy(), one.logprobs_T, one.advantages_T, one.mask_T)
        value += made.value
        new.backward(torch.from_numpy(made.grad_T).float())
        logprobs.append(new.detach().numpy() * one.mask_T)
    return value, {name: p.grad for name, p in named.items()}, logprobs


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_the_oracles(kind, loss, tmp_path):  # SPEC 7.1, 7.2
    local = trained_engine(kind)
    value, grads, logprobs = reference(local, kind, DATA, loss, tmp_path)
    made = gradient(local.decoder, local._lora, DATA, loss, 64)
    assert made.loss == pytest.approx(value, abs=1e-5 * SCALE)
    ours, theirs = (torch.cat([g[name].flatten().double() for name in sorted(g)]) for g in (made.by_name, grads))
    assert (ours - theirs).norm() / theirs.norm() < 1e-5
    for ours, theirs in zip(made.logprobs, logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batches_do_not_change_the_gradient(loss):
    local = trained_engine()
    whole = gradient(local.decoder, local._lora, DATA, loss, 10_000)
    for tokens in (1, 40, 70, 150):
        split = gradient(local.decoder, local._lora, DATA, loss, tokens)
        assert split.loss == pytest.approx(whole.loss, abs=1e-6 * SCALE)
        for name, grad in whole.by_name.items():
            assert (split.by_name[name] - grad).norm() <= 1e-5 * grad.norm()
    for tokens in (1, 40, 70, 150, 1000):
        batches = micro_batches(prefix_trees(DATA), tokens)
        leaves = [leaf for batch in batches for tree in batch for leaf in tree.leaves]
        assert sorted((leaf.sequence, leaf.end) for leaf in leaves) == [(i, len(one)) for i, one in enumerate(DATA)]
        for batch in batches:
            alone = len(batch) == 1 and len(batch[0].leaves) == 1
            assert alone or sum(tree.tokens for tree in batch) <= tokens


def test_what_sequences_share_is_computed_once(monkeypatch):
    found = sorted((sorted(leaf.sequence for leaf in t.leaves), t.end) for t in prefix_trees(DATA) if t.children)
    assert found == [([5, 6, 7], 44), ([8, 9], 33)]  # where the last of them predicts is each one's own
    local = trained_engine()
    seen, real = [], local.decoder.hidden
    monkeypatch.setattr(local.decoder, "hidden", lambda ids, *rest: seen.append(len(ids)) or real(ids, *rest))
    gradient(local.decoder, local._lora, DATA, "ppo", 10_000)
    assert seen == [sum(map(len, DATA)) - 2 * 44 - 33]


def test_prefixes_in_prefixes_are_shared_at_every_level():
    rng = np.random.default_rng(3)
    said = rng.integers(0, 300, 40 * 300).astype(np.int32)

    def turn(count):
        one = datum(40 * count + 9, rng=rng)
        one.inputs_T[: 40 * count] = said[: 40 * count]
        for column in (one.mask_T, one.logprobs_T, one.advantages_T):
            column[: 40 * count] = 0
        return one

    few, many = [turn(count) for count in (1, 2, 3)], [turn(count) for count in range(1, 300)]
    (tree,) = prefix_trees(few)
    assert tree.tokens == 40 * 3 + 3 * 9
    local = trained_engine()
    whole, apart = (gradient(local.decoder, local._lora, few, "ppo", tokens) for tokens in (10_000, 1))
    for name, grad in whole.by_name.items():
        assert (apart.by_name[name] - grad).norm() <= 1e-5 * grad.norm()
    batches = micro_batches(prefix_trees(many), 4096)  # deeper than Python could go
    leaves = sorted(leaf.sequence for batch in batches for one in batch for leaf in one.leaves)
    assert leaves == list(range(len(many)))


def test_nothing_to_learn_from_is_no_gradient():
    local = trained_engine()
    made = gradient(local.decoder, local._lora, [], "ppo", 100)
    assert (made.loss, made.logprobs, made.error) == (0.0, [], "")
    assert not any(grad.any() for grad in made.by_name.values())


def gpu_is_full():
    raise torch.OutOfMemoryError("CUDA out of memory")


def cpu_is_full():
    torch.empty(2**58)


@pytest.mark.parametrize("full", [gpu_is_full, cpu_is_full])
def test_out_of_memory_is_a_sentence(monkeypatch, full):
    local = trained_engine()
    monkeypatch.setattr(local.decoder, "hidden", lambda *_: full())
    with pytest.raises(EngineError, match="out of memory while training on one sequence; shorten it"):
        asyncio.run(local.step(DATA, "ppo", 1e-3))
    (failed,) = asyncio.run(local.base_sampler().sample([ask("x")]))
    assert isinstance(failed, EngineError)
    assert "out of memory while sampling" in str(failed)
    monkeypatch.undo()
    assert asyncio.run(local.base_sampler().sample([ask("x")]))[0].text
    assert not asyncio.run(local.step(DATA, "ppo", 1e-3)).skipped


@pytest.mark.parametrize("full", [gpu_is_full, cpu_is_full])
def test_out_of_memory_halves_the_micro_batch(monkeypatch, full):
    local = trained_engine()
    whole = gradient(local.decoder, local._lora, DATA, "ppo", 10_000)
    real, sizes = backward._Batch._micro_batch, []

    def small(self, trees, **how):
        sizes.append(sum(len(tree.leaves) for tree in trees))
        if sizes[-1] > 2:
            full()
        return real(self, trees, **how)

    monkeypatch.setattr(backward._Batch, "_micro_batch", small)
    again = gradient(local.decoder, local._lora, DATA, "ppo", 10_000)
    assert sizes[0] == len(DATA)
    assert sum(size for size in sizes if size <= 2) == len(DATA)  # each once, in batches that fit
    assert again.loss == pytest.approx(whole.loss, abs=1e-6 * SCALE)
    for name, grad in whole.by_name.items():
        assert (again.by_name[name] - grad).norm() <= 1e-5 * grad.norm()
    for one, other in zip(again.logprobs, whole.logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_bad_update_leaves_the_weights_bit_for_bit():  # SPEC 7.5
    local = trained_engine()
    before = {name: weight.clone() for name, weight in local._lora.weights.items()}
    bad = replace(DATA[0], advantages_T=np.full(len(DATA[0]), np.inf, np.float32))
    stats = asyncio.run(local.step([bad, DATA[1]], "importance_sampling", 1e-2))
    assert stats.skipped
    assert all(torch.equal(before[name], weight) for name, weight in local._lora.weights.items())
    assert not asyncio.run(local.step(DATA, "importance_sampling", 1e-2)).skipped
    assert not all(torch.equal(before[name], weight) for name, weight in local._lora.weights.items())


def spoiling(monkeypatch, spoils):
    """Make gradients of layer 1's down projection NaN in micro-batches of which ``spoils(sequences, kernels)`` is true."""
    real = backward._Batch._micro_batch

    def micro_batch(self, trees, *, kernels):
        grads, checks = real(self, trees, kernels=kernels)
        if spoils([leaf.sequence for tree in trees for leaf in tree.leaves], kernels):
            names = [self._name_of(index) for index in range(len(grads))]
            for index in (names.index("model.layers.1.mlp.down_proj"), names.index("model.layers.0.self_attn.o_proj")):
                grads[index].fill_(float("nan"))
                checks[1 + index] = float("nan")
        return grads, checks

    monkeypatch.setattr(backward._Batch, "_micro_batch", micro_batch)


def test_a_micro_batch_that_is_not_finite_is_computed_another_way(monkeypatch):  # SPEC 7.5
    local = trained_engine()
    whole = gradient(local.decoder, local._lora, DATA, "ppo", 150)
    spoiling(monkeypatch, lambda sequences, kernels: kernels and 6 in sequences)
    again = gradient(local.decoder, local._lora, DATA, "ppo", 150)
    assert (again.retried, again.error, again.bad) == (1, "", ())
    assert again.loss == pytest.approx(whole.loss, abs=1e-6 * SCALE)
    for name, grad in whole.by_name.items():
        assert (again.by_name[name] - grad).norm() <= 1e-5 * grad.norm()
    for one, other in zip(again.logprobs, whole.logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    stats = asyncio.run(local.step(DATA, "ppo", 1e-3))
    assert not stats.skipped
    assert stats.metrics["optim/retried"] == 1


def test_what_stays_not_finite_is_named(monkeypatch):  # SPEC 7.5
    local = trained_engine()
    spoiling(monkeypatch, lambda sequences, _: 6 in sequences)
    before = {name: weight.clone() for name, weight in local._lora.weights.items()}
    stats = asyncio.run(local.step(DATA, "ppo", 1e-3))
    assert stats.skipped
    assert all(torch.equal(before[name], weight) for name, weight in local._lora.weights.items())
    (fault,) = stats.faults
    # The gradient comes from the last layer.
    assert fault.why == "the gradient is not finite, first in model.layers.1.mlp.down_proj"
    assert len(fault.data) == 1
    assert fault.data[0] is DATA[6]
    monkeypatch.undo()
    bad = replace(DATA[0], advantages_T=np.full(len(DATA[0]), np.inf, np.float32))
    (fault,) = asyncio.run(local.step([bad, *DATA], "importance_sampling", 1e-2)).faults
    assert fault.why == "the loss is not finite"
    assert fault.data[0] is bad


def test_gradients_are_clipped():
    local = trained_engine(max_grad_norm=0.5)
    seen = []
    real = local._adam.step

    def step():
        seen.append(torch.cat([w.grad.flatten() for w in local._lora.weights.values()]).norm().item())
        real()

    local._adam.step = step
    stats = asyncio.run(local.step(DATA, "importance_sampling", 1e-3))
    assert stats.grad_norm > 0.5
    assert seen == pytest.approx([0.5], rel=1e-4)


def test_an_old_sampler_answers_the_same_after_ten_steps():
    local = trained_engine()
    asks = [ask(f"question {i}", debate=f"d{i}", tokens=30) for i in range(10)]
    old, base = asyncio.run(local.sampler()), local.base_sampler()
    before = [asyncio.run(sampler.sample(asks)) for sampler in (old, base)]
    for _ in range(10):
        asyncio.run(local.step(DATA, "ppo", 5e-2))
    new = asyncio.run(local.sampler())
    assert [r.text for r in asyncio.run(new.sample(asks))] != [r.text for r in before[0]]
    after = [asyncio.run(sampler.sample(asks)) for sampler in (old, base)]
    for one, other in zip(before, after, strict=True):
        assert [r.text for r in one] == [r.text for r in other]
        for a, b in zip(one, other, strict=True):  # what is kept from before is used: rounding may differ, words may not
            assert a.tokens.logprobs_T == pytest.approx(b.tokens.logprobs_T, abs=1e-4)

    async def side_by_side():
        return await asyncio.gather(*(s.sample(asks) for s in (old, new, base)), local.step(DATA, "ppo", 5e-2))

    at_once = asyncio.run(side_by_side())
    assert [r.text for r in at_once[0]] == [r.text for r in before[0]]
    assert [r.text for r in at_once[2]] == [r.text for r in before[1]]


def test_a_snapshot_taken_while_training_is_of_one_moment():
    local = trained_engine()
    asks = [ask("x", tokens=20)]
    real = local._adam.step

    def slow():
        real()
        time.sleep(0.2)  # weights are new, their name is not yet

    local._adam.step = slow

    async def go():
        before = await (await local.sampler()).sample(asks)
        step = asyncio.create_task(local.step(DATA, "ppo", 5e-2))
        await asyncio.sleep(0.15)
        during = await local.sampler()
        await step
        return before, await during.sample(asks), await (await local.sampler()).sample(asks)

    before, during, after = asyncio.run(go())
    assert [r.text for r in during] in ([r.text for r in before], [r.text for r in after])
    same_as = after if during[0].text == after[0].text else before
    assert during[0].tokens.logprobs_T == pytest.approx(same_as[0].tokens.logprobs_T, abs=1e-4)


def test_temperature_zero_can_be_trained_on():
    local = trained_engine()
    greedy = replace(DATA[0], temperatures_T=np.where(DATA[0].mask_T > 0, 0, 1).astype(np.float32))
    assert np.isfinite(gradient(local.decoder, local._lora, [greedy], "cispo", 100).loss)


def test_saving_and_loading_restores_exactly(tmp_path):
    first, second = trained_engine(), engine(lora=LoraRules(rank=4, alpha=8.0), seed=9)
    asyncio.run(first.step(DATA, "ppo", 1e-2))
    asyncio.run(first.save(tmp_path))
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".json", ".safetensors", ".safetensors"]
    asyncio.run(second.load(tmp_path))
    for local in (first, second):
        asyncio.run(local.step(DATA, "ppo", 1e-2))
    assert all(torch.equal(first._lora.weights[name], second._lora.weights[name]) for name in first._lora.weights)
    asks = [ask("x", tokens=30)]
    one, two = (asyncio.run(asyncio.run(local.sampler()).sample(asks)) for local in (first, second))
    assert one == two
    with pytest.raises(UserError, match=r"^rank: the adapter in .* has 4, not 2; give rank 4"):
        asyncio.run(engine(lora=LoraRules(rank=2, alpha=8.0)).load(tmp_path))
    with pytest.raises(UserError, match=r"^alpha: the adapter in .* has 8, not 64; give alpha 8"):
        asyncio.run(engine(lora=LoraRules(rank=4, alpha=64.0)).load(tmp_path))
    with pytest.raises(UserError, match="no checkpoint"):
        asyncio.run(first.load(tmp_path / "nowhere"))


def test_some_targets_only_load_in_peft_too(tmp_path):
    local = engine("qwen2", lora=LoraRules(rank=3, targets=("v_proj", "q_proj", "up_proj")))
    with torch.no_grad():
        for weight in local._lora.weights.values():
            weight.normal_(std=0.1)
    asyncio.run(local.save(tmp_path))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "up_proj", "v_proj"]
    peft = PeftModel.from_pretrained(model("qwen2"), str(tmp_path))
    reply = asyncio.run(asyncio.run(local.sampler()).sample([ask("x", temperature=0.0)]))[0]
    prompt = torch.from_numpy(reply.tokens.prompt_T.astype(np.int64))[None]
    with torch.no_grad():
        out = peft.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=sorted(local.chat.ends),
            pad_token_id=0,
        )
    assert out[0, prompt.shape[1] :].tolist() == reply.tokens.ids_T.tolist()
    for wrong in ({"rank": 0}, {"rank": -1}):
        with pytest.raises(UserError):
            LoraRules(**wrong)


def test_sampler_and_trainer_agree_and_the_ratio_is_one():  # SPEC 6.7
    from peergrad import Parallel, Question, advantages, credit, datums, play, score

    local = trained_engine()
    sampler = asyncio.run(local.sampler())
    debate = asyncio.run(play(Parallel(agents=3, max_rounds=3, max_tokens=50), Question("q", "What?"), sampler))
    scored = score(debate)
    data = datums(debate, credit(debate, scored.streams, advantages([scored])[0]))
    made = gradient(local.decoder, local._lora, data, "importance_sampling", 4096)
    for one, logprobs in zip(data, made.logprobs, strict=True):
        assert logprobs == pytest.approx(one.logprobs_T, abs=1e-4)


def test_cross_entropy_learns_a_handful_of_texts():
    local = engine(lora=LoraRules(rank=16), max_grad_norm=10.0)
    tok = tokenizer()
    data = []
    for text in ("the answer is one", "solution of the evaluation", "Agent of the comparison"):
        ids = np.array(tok(text)["input_ids"] + [tok.eos_token_id], np.int32)
        ones = np.ones(len(ids) - 1, np.float32)
        data.append(Datum("d", 0, (0,), ids[:-1], ids[1:], ones * 0, ones, ones, ones))
    tokens = sum(len(one) for one in data)
    for _ in range(100):
        stats = asyncio.run(local.step(data, "cross_entropy", 1e-2))
    assert stats.loss / tokens < 0.1


# That each loss and its gradient are right is tested above.
@pytest.mark.parametrize(
    "loss", ["importance_sampling", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "cispo"))]
)
def test_a_bandit_is_learned(loss):
    """Reward replies that begin with one token: it becomes likely within a few dozen updates."""
    local = engine(lora=LoraRules(rank=8))

    async def say(step):
        return await (await local.sampler()).sample([ask("say it", debate=f"{step}-{i}", tokens=1) for i in range(64)])

    def first(reply):
        return int(reply.tokens.ids_T[0])

    # A word that is said now and then: a reward nobody ever gets teaches nothing.
    counts = Counter(map(first, asyncio.run(say("before"))))
    wanted = next(word for word, count in counts.most_common() if count <= 6)
    shares = []
    for step in range(24):
        replies = asyncio.run(say(step))
        rewards = np.array([float(first(reply) == wanted) for reply in replies], np.float32)
        shares.append(rewards.mean())
        data = []
        for reply, advantage in zip(replies, rewards - rewards.mean(), strict=True):
            ids = np.concatenate((reply.tokens.prompt_T, reply.tokens.ids_T))
            last = np.zeros(len(ids) - 1, np.float32)
            last[-1] = 1
            old = last * reply.tokens.logprobs_T
            data.append(Datum("d", 0, (0,), ids[:-1], ids[1:], old, last * advantage, last, last * 0 + 1))
        asyncio.run(local.step(data, loss, 5e-3))
    assert shares[0] < 0.25
    assert np.mean(shares[-3:]) > 0.9

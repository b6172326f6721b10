"""Architectures the engine has no forward pass of its own for: the same promises, with transformers' code inside."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel

from peergrad import UserError
from peergrad.engines.local.engine import Local, decoder_of, load_decoder
from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.hf_model import HFDecoder
from peergrad.engines.local.model.lora import Lora, LoraRules
from peergrad.engines.local.train.backward import gradient
from peergrad.engines.shared.chat import Chat
from peergrad.learn.data import Datum
from tests.local.test_training import DATA, reference, trained_engine
from tests.local.tiny import FOREIGN, ask, engine, model, tokenizer

ASKS = [ask("word " * (3 * i + 1), debate=f"d{i}", tokens=10 + 2 * i, temperature=0.5 + 0.1 * i) for i in range(6)]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64, "intermediate_size": 32}


def sample(sampler, asks=ASKS):
    return asyncio.run(sampler.sample(asks))


def as_datum(reply):
    """A reply as something to train on."""
    tokens = reply.tokens
    ids = np.concatenate((tokens.prompt_T, tokens.ids_T))
    mask = np.zeros(len(ids) - 1, np.float32)
    mask[len(tokens.prompt_T) - 1 :] = 1
    old = np.zeros_like(mask)
    old[mask > 0] = tokens.logprobs_T
    return Datum("d", 0, (0,), ids[:-1], ids[1:], old, mask, mask, np.where(mask > 0, tokens.temperature, 1).astype("f4"))


@pytest.mark.parametrize("kind", FOREIGN)
def test_greedy_equals_transformers(kind):
    local = engine(kind, max_rows=4)
    assert isinstance(local.decoder, HFDecoder)
    reference = model(kind)
    for reply in sample(local.base_sampler(), [replace(one, temperature=0.0) for one in ASKS]):
        prompt = torch.from_numpy(reply.tokens.prompt_T.astype(np.int64))[None]
        with torch.no_grad():
            out = reference.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=len(reply.tokens.ids_T),
                do_sample=False,
                eos_token_id=sorted(local.chat.ends),
                pad_token_id=0,
            )
        assert out[0, prompt.shape[1] :].tolist() == reply.tokens.ids_T.tolist()


@pytest.mark.parametrize("kind", FOREIGN)
def test_sampler_and_trainer_agree_and_the_gradient_is_the_oracles(kind, tmp_path):  # SPEC 6.7, 7.1
    local = trained_engine(kind, max_rows=3)
    data = [as_datum(reply) for reply in sample(asyncio.run(local.sampler()))]
    for one, logprobs in zip(data, gradient(local.decoder, local._lora, data, "ppo", 200).logprobs, strict=True):
        assert logprobs == pytest.approx(one.logprobs_T, abs=1e-4)
    value, grads, logprobs = reference(local, kind, DATA, "importance_sampling", tmp_path)
    made = gradient(local.decoder, local._lora, DATA, "importance_sampling", 64)
    assert made.by_name.keys() == grads.keys()
    assert made.loss == pytest.approx(value, abs=1e-5 * float(sum(np.abs(one.advantages_T).sum() for one in DATA)))
    ours, theirs = (torch.cat([g[name].flatten().double() for name in sorted(g)]) for g in (made.by_name, grads))
    assert (ours - theirs).norm() / theirs.norm() < 1e-5
    for mine, other in zip(made.logprobs, logprobs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("kind", ["gemma3", "qwen3 moe", "gpt2"])
def test_a_saved_adapter_is_what_was_sampled_with(kind, tmp_path):
    local = trained_engine(kind)
    asyncio.run(local.save(tmp_path))
    peft = PeftModel.from_pretrained(model(kind), str(tmp_path))
    for reply in sample(asyncio.run(local.sampler()), ASKS[:3]):
        tokens = reply.tokens
        ids = torch.from_numpy(np.concatenate((tokens.prompt_T, tokens.ids_T)).astype(np.int64))[None]
        with torch.no_grad():
            scores = peft(input_ids=ids).logits[0, len(tokens.prompt_T) - 1 : -1] / tokens.temperature
        wanted = torch.log_softmax(scores, -1).gather(1, ids[0, len(tokens.prompt_T) :, None])[:, 0]
        assert tokens.logprobs_T == pytest.approx(wanted.numpy(), abs=1e-4)


def test_prefixes_are_reused_and_neighbours_change_nothing():
    local = engine("gemma3", max_rows=4)
    together = sample(local.base_sampler())
    alone = [sample(engine("gemma3", max_rows=1).base_sampler(), [one])[0] for one in ASKS]
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    before = local.scheduler.prefilled_tokens
    sample(local.base_sampler(), ASKS[-1:])
    assert local.scheduler.prefilled_tokens - before <= 16


def test_sampling_and_training_at_once_do_not_meet():
    local = trained_engine("gemma3")
    base, old = local.base_sampler(), asyncio.run(local.sampler())
    before = [sample(base), sample(old)]
    alone = gradient(local.decoder, local._lora, DATA, "ppo", 64)

    async def at_once():
        trained = [asyncio.to_thread(gradient, local.decoder, local._lora, DATA, "ppo", 64) for _ in range(3)]
        return await asyncio.gather(base.sample(ASKS), old.sample(ASKS), *trained)

    *after, first, second, third = asyncio.run(at_once())
    for one, other in zip(before, after, strict=True):
        assert [reply.text for reply in one] == [reply.text for reply in other]
    for made in (first, second, third):
        assert all(torch.allclose(made.by_name[name], grad, rtol=1e-4) for name, grad in alone.by_name.items())


def test_longer_than_the_context_is_not_asked_of_tables_of_positions():
    local = Local(decoder_of(model("gpt2", context=64)), Chat(tokenizer()), kv_gb=0.05)
    reply, short = sample(local.base_sampler(), [ask("word " * 3, tokens=100), ask("x", tokens=5)])
    assert len(reply.tokens.prompt_T) + len(reply.tokens.ids_T) == 64
    assert len(short.tokens.ids_T) == 5


def test_targets_are_of_this_model(tmp_path):
    local = engine("neox", lora=LoraRules(rank=2, targets=("dense", "query_key_value")))
    asyncio.run(local.save(tmp_path))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["dense", "query_key_value"]
    assert len(local._lora.weights) == 2 * 2 * 2
    with pytest.raises(UserError, match=r"targets: no matrix of this model is called 'q_proj'"):
        engine("neox", lora=LoraRules(targets=("q_proj",)))
    with pytest.raises(UserError, match=r"'q_prj'; did you mean 'q_proj'"):
        engine("llama", lora=LoraRules(targets=("q_prj",)))


def test_names_that_others_have_too_are_written_in_full(tmp_path):
    def made():
        one = model("biased llama")
        one.model.vision = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 2)})
        return one

    local = Local(decoder_of(made()), Chat(tokenizer()), lora=LoraRules(rank=2, targets=("q_proj",)))
    asyncio.run(local.save(tmp_path))
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == names
    peft = PeftModel.from_pretrained(made(), str(tmp_path))
    assert sum("lora" in name for name, _ in peft.named_parameters()) == len(local._lora.weights)


@pytest.mark.parametrize(
    ("name", "extra", "why"),
    [
        ("Gemma2", {"head_dim": 16}, "its attention has softcapped scores"),
        ("Mamba", {}, "it has no attention, or attention that does not go through"),
        ("Bloom", {}, "it has no attention, or attention that does not go through"),
        ("GptOss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "its attention has sinks"),
        ("DeepseekV3", {"num_key_value_heads": 2}, "its keys have size 192 and its values 128"),
        ("MiniMax", {"num_key_value_heads": 2, "num_local_experts": 2}, "1 of its 2 layers are not attention"),
        ("FalconH1", {"num_key_value_heads": 2}, "something besides attention mixes its tokens"),
        ("DiffLlama", {"num_key_value_heads": 2}, "its 2 layers call attention 4 times"),
    ],
)
def test_what_would_be_wrong_is_refused(name, extra, why):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(SIZES | extra))
    with pytest.raises(UserError, match=f"^model: the local engine does not run {name}ForCausalLM: {why}"):
        decoder_of(getattr(transformers, f"{name}ForCausalLM")(config).bfloat16())  # rounding must not hide it


def test_chunks_and_capped_logits_are_noticed():
    class Capped(transformers.GemmaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = 3 * torch.tanh(out.logits / 3)
            return out

    with pytest.raises(UserError, match="its logits are not a product"):
        decoder_of(Capped(model("gemma").config))
    from peergrad.engines.local.model import hf_model

    hf_model._current.context = 4096
    masks = transformers.masking_utils
    for function, window in (
        (masks.causal_mask_function, 0),
        (masks.sliding_window_causal_mask_function(100), 100),
        (masks.sliding_window_causal_mask_function(3000), 3000),
        (masks.chunked_causal_mask_function(512, torch.zeros(1, dtype=torch.long)), -1),
        (masks.bidirectional_mask_function, -1),
    ):
        assert hf_model._record_mask(mask_function=function).item() == window


def test_the_fast_forward_pass_is_taken_where_it_is_right(tmp_path):
    assert isinstance(decoder_of(model("llama")), Decoder)
    for change in ({"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}):
        config = transformers.LlamaConfig(**SIZES, **change)
        assert isinstance(decoder_of(transformers.LlamaForCausalLM(config)), HFDecoder)
    model("phi3").save_pretrained(tmp_path)
    loaded = load_decoder(tmp_path, "cpu", torch.bfloat16)
    assert isinstance(loaded, HFDecoder)
    assert loaded.dtype == torch.bfloat16
    assert Lora(loaded, LoraRules(), 0).weights
    transformers.CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"can't load .* as a causal language model"):
        load_decoder(tmp_path, "cpu", torch.float32)


def test_rotations_that_change_with_length_end_the_context():
    rotations = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = transformers.Phi3Config(
        **SIZES, pad_token_id=0, rope_parameters=rotations, original_max_position_embeddings=128, max_position_embeddings=512
    )
    assert decoder_of(transformers.Phi3ForCausalLM(config)).shape.context == 128

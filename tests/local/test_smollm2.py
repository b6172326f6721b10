"""The real model: SmolLM2-135M in float32 on the CPU."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from peergrad import Parallel, Question, advantages, credit, datums, play, score
from peergrad.engines.local.engine import Local
from peergrad.engines.local.fetch.models import resolve
from peergrad.engines.local.train.backward import gradient
from tests.local.tiny import ask

pytestmark = pytest.mark.alone

TEXTS = ["What is the capital of France?", "Count to ten.", "Name three colours and say why you like them.", "Hi"]


@pytest.fixture(scope="module")
def local():
    return Local.load_model("smollm2", max_rows=64, kv_gb=3.0)


@pytest.mark.parametrize("count", [pytest.param(50, marks=pytest.mark.slow), 8])
def test_greedy_equals_transformers_for_prompts_in_one_batch(local, count):
    texts = [TEXTS[i % 4] * (1 + i % 5) + f" ({i})" for i in range(count)]
    asks = [ask(text, debate=f"d{i}", tokens=12, temperature=0.0) for i, text in enumerate(texts)]
    replies = asyncio.run(local.base_sampler().sample(asks))
    prompts = [reply.tokens.prompt_T.tolist() for reply in replies]
    longest = max(map(len, prompts))
    assert len(set(map(len, prompts))) > count / 5
    reference = AutoModelForCausalLM.from_pretrained(str(resolve("smollm2")), dtype=torch.float32)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        out = reference.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
    for reply, line in zip(replies, out[:, longest:].tolist(), strict=True):
        said = reply.tokens.ids_T.tolist()
        assert said == line[: len(said)]
        assert len(said) == 12 or said[-1] in local.chat.ends


def test_sampler_and_trainer_agree_on_a_debate(local):  # SPEC 6.7
    with torch.no_grad():
        for name, weight in local._lora.weights.items():
            if "lora_B" in name:
                weight.normal_(std=0.002, generator=torch.Generator().manual_seed(0))
    protocol = Parallel(agents=2, max_rounds=2, max_tokens=24)
    sampler = asyncio.run(local.sampler())
    debate = asyncio.run(play(protocol, Question("q", "What is 17 + 25?", style="boxed"), sampler))
    for before, after in zip(debate.turns[:2], debate.turns[2:], strict=True):
        held = np.concatenate((before.tokens.prompt_T, before.tokens.ids_T))
        assert np.array_equal(after.tokens.prompt_T[: len(held)], held)
    scored = score(debate)
    data = datums(debate, credit(debate, scored.streams, advantages([scored])[0]))
    found = gradient(local.decoder, local._lora, data, "importance_sampling", 4096).logprobs
    worst = max(np.abs(new - one.logprobs_T)[one.mask_T > 0].max() for new, one in zip(found, data, strict=True))
    assert worst < 1e-4

"""Tiny models and tokenizers, built here, with the chat templates of real families."""

from __future__ import annotations

import functools
import importlib.util
import os

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from peergrad.debate.types import Ask, Message
from peergrad.engines.local.engine import Local, decoder_of
from peergrad.engines.shared.chat import Chat

RUNS_KERNELS = importlib.util.find_spec("triton") and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET"))

# In the manner of each family: how turns are delimited, what is inserted, trimmed or dropped.
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "qwen3": QWEN3, "llama3": LLAMA3}
ENDS = {"chatml": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>"}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>"]
SPECIAL += ["<|end_header_id|>", "<|eot_id|>"]

# Config, model, and what of the config is not as in all others.
KINDS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32}),
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FOREIGN = {
    "biased llama": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {"eos_token_id": None, "bos_token_id": None}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {"head_dim": 32}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 50,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"eos_token_id": None, "bos_token_id": None}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {"logits_scaling": 8.0, "attention_multiplier": 0.1}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 8}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {"eos_token_id": None}),
    "phi": ("PhiConfig", "PhiForCausalLM", {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": 24, "pad_token_id": 0, "eos_token_id": None}),
    "qwen3 moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {"mlp_only_layers": [1], **_EXPERTS}),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {"use_qkv_bias": True, "num_key_value_heads": 4}),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {"eos_token_id": None, "bos_token_id": None}),
}


@functools.cache
def tokenizer(family: str = "chatml") -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    raw.train_from_iterator(["the solution of the comparison is the answer and the evaluation of Agent one"] * 50, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=ENDS[family])
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    made.chat_template = TEMPLATES[family]
    return made


def model(kind: str = "llama", *, seed: int = 0, std: float = 0.25, context: int = 4096) -> torch.nn.Module:
    config, build, extra = (KINDS | FOREIGN)[kind]
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 96, "vocab_size": len(tokenizer()), "max_position_embeddings": context}
    made = getattr(transformers, build)(getattr(transformers, config)(**(sizes | extra))).eval()
    for name, parameter in made.named_parameters():
        if parameter.dim() > 1 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=std)
    return made


def engine(kind: str = "llama", family: str = "chatml", **settings) -> Local:
    settings = {"kv_gb": 0.05, "max_rows": 8} | settings
    return Local(decoder_of(model(kind)), Chat(tokenizer(family)), **settings)


def unpacked(kind: str) -> Local:
    """An engine with its matrices as a GPU has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peergrad.engines.local.model.decoder.can_pack", lambda _: False)
        return engine(kind)


def ask(text: str, *, debate: str = "d", turn: int = 0, tokens: int = 20, temperature: float = 1.0, stop=()) -> Ask:
    return Ask(debate, 0, turn, 0, (Message("user", text),), tuple(stop), tokens, temperature)

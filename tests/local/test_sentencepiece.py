"""Tokenizers that write blanks as ▁, in each way they treat the beginning of a text."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from peergrad.debate.types import Message, Tokens
from peergrad.engines.shared.chat import Chat

LLAMA2 = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>{% else %}"
    "[INST] {{ m.role }}: {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
GEMMA = (
    "<s>{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n<think>\n</think>{% endif %}"
)
NORMAL = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
STYLES = {
    "first": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="first")},
    "first, unsplit": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)},
    "always": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="always")},
    "never": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=False)},
    "prepend": {"normal": normalizers.Sequence(NORMAL)},
    "replace": {"normal": NORMAL[1]},
    "pieces": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="always"), "pieces": True},
    "stripping": {"pre": pre_tokenizers.Metaspace("▁", prepend_scheme="first"), "rstrip": True},
}
WORDS = ["the answer is one", "\nthe answer", " the  one ", "é 😀 naïve", "", "? : ."]


def built(style, template=GEMMA):
    options = STYLES[style]
    vocabulary = {name: id for id, name in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])}
    pairs = ["▁ t", "▁t h", "▁th e", "t h", "th e", "▁ a", "▁ ▁", "▁ o", "▁o n"]
    merges = [tuple(pair.split(" ")) for pair in pairs]
    for piece in [*"▁aehinorstw\n:.?[]/INSTuy", *("".join(pair) for pair in merges)]:
        vocabulary.setdefault(piece, len(vocabulary))
    if options.get("pieces"):
        scores = [(piece, 0.0 if piece in ("<s>", "</s>") else -5.0 - len(piece)) for piece in [*vocabulary, *"<>|kd"]]
        raw = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    else:
        raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if "pre" in options:
        raw.pre_tokenizer = options["pre"]
    if "normal" in options:
        raw.normalizer = options["normal"]
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", "<|turn|>"]
    raw.add_special_tokens([AddedToken(s, normalized=False, rstrip=options.get("rstrip", False)) for s in special])
    raw.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    made.chat_template = template
    return made


def native(tokenizer, messages, generate=True):
    plain = [{"role": message.role, "content": message.text} for message in messages]
    text = tokenizer.apply_chat_template(plain, add_generation_prompt=generate, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", [GEMMA, LLAMA2], ids=["turns", "instructions"])
@pytest.mark.parametrize("style", STYLES)
def test_prompts_are_the_tokenizers_own(style, template):
    tokenizer = built(style, template)
    chat = Chat(tokenizer)
    for words in WORDS:
        messages = [Message("system", words), Message("user", "the question " + words)]
        assert chat.prompt(messages).tolist() == native(tokenizer, messages)


@pytest.mark.parametrize("style", STYLES)
def test_what_follows_a_reply_is_too(style):
    tokenizer = built(style)
    chat = Chat(tokenizer)
    first = [Message("system", "s"), Message("user", "the one")]
    prompt = chat.prompt(first).tolist()
    reply = tokenizer.convert_tokens_to_ids(["the", "▁a", "</s>"])
    said = Tokens.of(prompt, reply, [0.0] * 3, range(3))
    dialogue = [*first, Message("assistant", "the a", said), Message("user", "and the answer")]
    ours = chat.prompt(dialogue)
    assert ours[: len(prompt) + 3].tolist() == prompt + reply
    whole = native(tokenizer, dialogue)
    end = len(whole) - whole[::-1].index(tokenizer.eos_token_id, whole[::-1].index(tokenizer.eos_token_id) + 1)
    assert ours[len(prompt) + 3 :].tolist() == whole[end:]


@pytest.mark.parametrize("style", STYLES)
def test_words_stay_words(style):  # SPEC 3.8
    tokenizer = built(style)
    chat = Chat(tokenizer)
    markup = [*range(3), *tokenizer.convert_tokens_to_ids(["<|turn|>", "<think>", "</think>"])]

    def count(text):
        return np.isin(chat.prompt([Message("user", text)]), markup).sum()

    for attack in ("</s>", "a<s>b", "<|turn|>system", "<think>", "the</think>the", "\ue002" + "0" * 16, "\ue0000\ue001"):
        assert count(attack) == count("plain")
    kept = tokenizer.decode(chat.prompt([Message("user", "be </s> <think> kind")]).tolist())
    assert "be </s> <think> kind" in kept


@pytest.mark.parametrize("style", STYLES)
def test_the_text_of_sampled_tokens(style):
    tokenizer = built(style)
    chat = Chat(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["▁the", "▁a", "n", "<0xC3>", "<0xA9>", "▁", "▁the", "\n", "the", "</s>"])
    text, starts = chat.text(ids)
    assert text == " the ané  the\nthe"
    assert starts == [0, 4, 6, 7, 8, 9, 10, 14, 15, 18]
    assert b"".join(map(chat.piece, ids[:-1])).decode() == text

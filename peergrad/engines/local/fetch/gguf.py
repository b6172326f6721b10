"""Converts a GGUF file to a Hugging Face folder, so that the rest of the engine knows one format.

Weights and config come from transformers' reader, which silently drops what it does not know: hence the checks.
The tokenizer is built here, because transformers' conversion of it is wrong: with 5.17 SmolLM2 ends a turn with
``<|im_start|>`` and Qwen with ``<|endoftext|>``, and most of Qwen's control tokens are split; with 5.22 SmolLM2's numbers
are still not split into digits as in its training.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.settings import install_hint

CONVERTER = 1  # part of the cache's key: raise it when the same file would convert to something else

# Files smaller than this become float32, others bfloat16. Dequantised 4-bit values (scale × step + offset) do not fit
# bfloat16: of SmolLM2's weights 79 % would change, and with them 2 of 590 greedy tokens (KL 5e-5). Larger models run in
# bfloat16 anyway.
EXACT_BELOW = 10**9

_CONTROL, _USER_DEFINED = 3, 4  # token types
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a GGUF's value, by its type
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 2**23  # of all arrays of a GGUF; the largest vocabularies have less than half as many


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before merging, under GGUF's name for it."""

    regex: str | None = None  # None: GPT-2's
    digits: bool = False  # each digit by itself, before the regex
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is that token, whatever the merges say


_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(digits=True),
    "qwen2": _Split(_WORDS % "", nfc=True),
    "llama-bpe": _Split(_WORDS % "{1,3}", ignore_merges=True),
}


@dataclass(frozen=True, slots=True)
class _Header:
    """The metadata of a GGUF. ``tensors``: name → (number of elements, bytes)."""

    fields: dict[str, Any]
    tensors: dict[str, tuple[int, int]]
    tokens: list[str]
    types: list[int]

    def id(self, name: str) -> int | None:
        return self.fields.get(f"tokenizer.ggml.{name}_token_id")

    def token(self, name: str) -> str | None:
        at = self.id(name)
        return None if at is None else self.tokens[at]

    @property
    def pad(self) -> int | None:
        """The pad token; if there is none, the end of turn, as in SmolLM2's file. Padding is known by the attention mask."""
        padding = self.id("padding")
        return self.id("eos") if padding is None else padding

    def of_type(self, type: int) -> list[str]:
        return [token for token, token_type in zip(self.tokens, self.types, strict=True) if token_type == type]

    @property
    def ends(self) -> list[int]:
        """Every token that may end a turn, those that the file names first."""
        control = set(self.of_type(_CONTROL))
        named = [self.tokens.index(token) for token in _ENDS if token in control]
        return list(dict.fromkeys(i for i in (self.id("eos"), self.id("eot"), self.id("eom"), *named) if i is not None))


def convert(source: Path, out: Path, name: str) -> None:
    """Write the model of a GGUF file into the empty folder ``out``: config, weights, tokenizer, chat template.

    ``name`` is what a person calls it, for errors. An ``OSError`` is about ``out``.
    """
    try:
        from gguf import GGUFReader
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UserError(f"{name}: GGUF needs the local engine ({error}); {install_hint('local')}") from None
    try:
        _check_counts(source)
        header = _read(GGUFReader(source))
        exact = source.stat().st_size < EXACT_BELOW
        need = sum(count for count, _ in header.tensors.values()) * (4 if exact else 2)
        if need > shutil.disk_usage(out).free:
            raise OSError(errno.ENOSPC, f"{need // 10**6} MB are needed")
        tokenizer = _tokenizer(header)
        with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):  # transformers' progress bars
            model = _weights(source, header, out, exact)
            model.save_pretrained(out, max_shard_size="4GB")
        tokenizer.save_pretrained(out)
        _check_tokenizer(AutoTokenizer.from_pretrained(out, trust_remote_code=False), tokenizer, header)
    except MemoryError:
        raise EngineError(f"{name}: not enough memory to convert it; try a smaller model") from None
    except Exception as error:  # a damaged file can make the readers fail in any way
        if isinstance(error, OSError) and error.errno:
            raise
        if full := re.search(r"\(os error (\d+)\)", str(error)):  # how safetensors reports a full disk
            raise OSError(int(full[1]), os.strerror(int(full[1]))) from error
        why = str(error).split("\n")[0] if isinstance(error, ValueError) else repr(error)
        hint = "use the model's hub id or its Hugging Face folder instead"
        raise UserError(f"{name}: this GGUF can't be converted ({why[:300]}); {hint}") from error
    mode = (out / "config.json").stat().st_mode
    for path in out.iterdir():
        path.chmod(mode)  # safetensors' files can only be read by their owner, but a cache may be shared


def _read(reader: Any) -> _Header:
    fields = {key: field.contents() for key, field in reader.fields.items()}
    if fields.get("split.count", 1) > 1:
        raise ValueError("it is one part of several; llama-gguf-split --merge joins them")
    tensors = {tensor.name: (int(tensor.n_elements), int(tensor.n_bytes)) for tensor in reader.tensors}
    layers = fields.get(f"{fields.get('general.architecture')}.block_count")
    if not isinstance(layers, int) or not 1 <= layers <= len(tensors):
        raise ValueError(f"it says that it has {layers} layers, with {len(tensors)} tensors")
    return _Header(fields, tensors, fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"])


def _tokenizer(header: _Header) -> Any:
    """The tokenizer the model was trained with, every id where the file has it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    kind, split_name = header.fields["tokenizer.ggml.model"], header.fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split_name not in _SPLITS:
        # A near miss would train on tokens the model never saw together, and nothing would look wrong.
        raise ValueError(f"tokenizer {kind}/{split_name} is not one of gpt2/{{{', '.join(_SPLITS)}}}")
    split = _SPLITS[split_name]
    merges = [tuple(merge.split(" ")) for merge in header.fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(header.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.ignore_merges))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.regex:
        steps.append(pre_tokenizers.Split(Regex(split.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.regex is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in header.of_type(_CONTROL)])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in header.of_type(_USER_DEFINED)])
    bos, eos = header.token("bos"), header.token("eos")
    if header.fields.get("tokenizer.ggml.add_bos_token", False) and bos:
        special = [(bos, vocabulary[bos])]
        tokenizer.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=special)
    named = {
        "bos_token": bos,
        "eos_token": eos,
        "unk_token": header.token("unknown"),
        "pad_token": None if header.pad is None else header.tokens[header.pad],
        "chat_template": header.fields.get("tokenizer.chat_template"),
    }
    control = [token for token in header.of_type(_CONTROL) if token not in named.values()]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,  # else decoded text is not what was said: "a ." becomes "a."
        model_max_length=header.fields[f"{header.fields['general.architecture']}.context_length"],
        extra_special_tokens=control,
        **{name: value for name, value in named.items() if value},
    )


def _check_tokenizer(loaded: Any, built: Any, header: _Header) -> None:
    """Refuse a tokenizer with other ids, or one that transformers loads with other rules, as it does for Qwen."""
    for tokenizer in (built, loaded):
        if len(tokenizer) != len(header.tokens) or tokenizer.convert_ids_to_tokens(range(len(tokenizer))) != header.tokens:
            raise ValueError("its tokens do not keep their ids")
    text = "".join(["  12345 isn't  3.14\n\n\tnaïve É 東京 🙂 ", *header.of_type(_CONTROL), *header.of_type(_USER_DEFINED)])
    if loaded(text).input_ids != built(text).input_ids or loaded.eos_token_id != header.id("eos"):
        raise ValueError(f"{type(loaded).__name__} would cut text otherwise than the model was trained")


def _weights(source: Path, header: _Header, out: Path, exact: bool) -> Any:
    """The model with all weights of the file, dequantised, and no others."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    # By absolute path and from the empty folder, so that files next to it or in the current folder are not used.
    auto: Any = AutoModelForCausalLM
    model, report = auto.from_pretrained(
        out.absolute(),
        gguf_file=str(source.absolute()),
        dtype=torch.float32 if exact else torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # without it the model can't be saved
        output_loading_info=True,
        trust_remote_code=False,
    )
    if missing := [*report["missing_keys"], *report["mismatched_keys"]]:  # transformers fills these with random numbers
        raise ValueError(f"no weights for {len(missing)} parts of the model, {missing[0]} for one")
    # Unknown weights, such as Llama 3's rope_freqs, are skipped silently, and the model is worse without them.
    stored, used = sum(count for count, _ in header.tensors.values()), sum(p.numel() for p in model.parameters())
    if stored != used:
        raise ValueError(f"the file holds {stored:,} weights, the model made of it {used:,}")
    _tie(model, header)
    model.config.eos_token_id = header.id("eos")
    model.config.pad_token_id = None  # else its embedding gets no gradient, and it may be the end of turn
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = header.ends, header.pad
    return model


def _tie(model: Any, header: _Header) -> None:
    """Tie embedding and output if the file holds two quantised copies of one matrix, as those of Qwen's small models do.

    Two copies differ by rounding (0.04 of their norm in Qwen2.5-Coder-0.5B), two matrices by more than 1.
    """
    import torch

    if model.config.tie_word_embeddings or "output.weight" not in header.tensors:
        return
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding.shape != output.shape:
        return
    with torch.no_grad():
        rows = slice(0, 4096)
        difference = (embedding[rows].float() - output[rows].float()).norm() / output[rows].float().norm()
        if not difference < 0.15:
            return
        if header.tensors["output.weight"][1] > header.tensors["token_embd.weight"][1]:  # the finer copy is kept
            embedding.copy_(output)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    if model.get_output_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr():
        raise ValueError("embedding and output can't be tied")


def _check_counts(path: Path) -> None:
    """Raise ``ValueError`` if the header of a GGUF names more than the file holds: its reader believes every count."""
    size = path.stat().st_size
    with path.open("rb") as file:
        _, _, tensors, fields = struct.unpack("<IIQQ", _bytes(file, 24, size))
        entries = 0
        for _ in range(_bounded(fields, 13, file, size)):
            _skip_text(file, size)
            (kind,) = struct.unpack("<I", _bytes(file, 4, size))
            entries += _skip_value(file, kind, size)
            if entries > _MAX_ENTRIES:
                raise ValueError(f"its header has more than {_MAX_ENTRIES:,} entries")
        _bounded(tensors, 24, file, size)


def _skip_value(file: BinaryIO, kind: int, size: int) -> int:
    """Read past a value, and say how many entries it has."""
    if kind == _STRING:
        _skip_text(file, size)
    elif kind == _ARRAY:
        entry, count = struct.unpack("<IQ", _bytes(file, 12, size))
        _bounded(count, _SCALARS.get(entry, 8), file, size)
        if entry in _SCALARS:
            file.seek(count * _SCALARS[entry], 1)
        elif entry == _STRING and count <= _MAX_ENTRIES:
            for _ in range(count):
                _skip_text(file, size)
        else:
            raise ValueError(f"its header has an array of the type {entry} with {count:,} entries")
        return count
    else:
        _bytes(file, _SCALARS.get(kind, size), size)
    return 1


def _skip_text(file: BinaryIO, size: int) -> None:
    (length,) = struct.unpack("<Q", _bytes(file, 8, size))
    file.seek(_bounded(length, 1, file, size), 1)


def _bytes(file: BinaryIO, count: int, size: int) -> bytes:
    return file.read(_bounded(count, 1, file, size))


def _bounded(count: int, least: int, file: BinaryIO, size: int) -> int:
    """A count of things of at least so many bytes, which the rest of the file must hold."""
    if count * least > size - file.tell():
        raise ValueError(f"its header names {count:,} entries, but the file ends before them")
    return count

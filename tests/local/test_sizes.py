"""How much is sampled and trained at once: what a GPU has room for, on cards that are made up."""

from types import SimpleNamespace

import pytest
import torch

from peergrad.engines.local import memory as module
from peergrad.engines.local.memory import (
    GIB,
    GpuMemory,
    MemoryCosts,
    Sizes,
    SizeSettings,
    choose_sizes,
    describe_sizes,
    plan_sizes,
)
from peergrad.engines.local.model.decoder import Matrix, Shape
from tests.local.tiny import engine

# layers, hidden, between, heads, key/value heads, head size, vocabulary, context
SHAPES = {
    "135M": (30, 576, 1536, 9, 3, 64, 49152, 8192),
    "1.5B": (28, 1536, 8960, 12, 2, 128, 151936, 32768),
    "8B": (36, 4096, 12288, 32, 8, 128, 151936, 40960),
    "32B": (64, 5120, 25600, 64, 8, 128, 151936, 40960),
}


def model(name):
    """A shape, its matrices, and how many bytes its weights have."""
    layers, hidden, between, heads, kv_heads, size, vocabulary, context = SHAPES[name]
    q, kv = heads * size, kv_heads * size
    groups = {
        "qkv": tuple(Matrix(f"{name}_proj", outputs, hidden) for name, outputs in (("q", q), ("k", kv), ("v", kv))),
        "o": (Matrix("o_proj", hidden, q),),
        "gate_up": tuple(Matrix(f"{name}_proj", between, hidden) for name in ("gate", "up")),
        "down": (Matrix("down_proj", hidden, between),),
    }
    weights = layers * sum(one.inputs * one.outputs for group in groups.values() for one in group) + vocabulary * hidden
    shape = Shape(layers, hidden, heads, kv_heads, size, vocabulary, context, (None,) * layers)
    return shape, [groups] * layers, 2 * weights


def costs(name, rank=32):
    shape, matrices, _ = model(name)
    return MemoryCosts.of(shape, matrices, 2, rank)


def loaded(gib, name):
    """A card with a model on it."""
    return GpuMemory("a card", gib * GIB, int((gib - 0.5) * GIB) - model(name)[2])


def taken(sizes, costs):
    """What all of it takes at the same time."""
    trained = sizes.train_tokens * costs.train_token + min(sizes.train_tokens, 2048) * costs.train_logits + costs.adapter
    return sizes.kv_bytes + trained + sizes.max_rows * costs.row_logits + sizes.prefill_tokens * costs.prefill_token


@pytest.mark.parametrize(("tokens", "gib"), [(16384, 41.2), (32768, 75.5)])
def test_what_training_takes_is_what_was_measured_and_a_little_more(tokens, gib):
    one = costs("1.5B")
    expected = model("1.5B")[2] + one.adapter + tokens * one.train_token + min(tokens, 2048) * one.train_logits
    assert gib * GIB < expected < 1.1 * gib * GIB


FITTING = [(16, "135M"), (16, "1.5B"), *((gib, name) for gib in (24, 80, 139) for name in SHAPES)]
FITTING.remove((24, "32B"))


@pytest.mark.parametrize(("gib", "name"), FITTING)
def test_sizes_fit_the_card_and_use_it(gib, name):
    card, one = loaded(gib, name), costs(name)
    sizes = plan_sizes(card, one, SizeSettings())
    assert 0.6 * card.free < taken(sizes, one) < card.free - min(gib * GIB // 10, card.free // 4)
    assert 256 <= sizes.train_tokens <= 32768
    assert sizes.train_tokens < 1024 or sizes.train_tokens % 1024 == 0
    assert 256 <= sizes.prefill_tokens <= 16384
    assert 1 <= sizes.max_rows <= 1024
    assert sizes.kv_bytes // 2 >= one.kv_token * 4096  # one row is long enough for a debate


def test_an_h200_is_not_a_laptop():
    small, large = (
        plan_sizes(loaded(139, "1.5B"), costs("1.5B"), SizeSettings()),
        plan_sizes(loaded(139, "8B"), costs("8B"), SizeSettings()),
    )
    assert small.max_rows == 1024
    assert small.train_tokens >= 16384
    assert large.train_tokens >= 8192
    assert min(small.kv_bytes, large.kv_bytes) > 50 * GIB
    tiny = plan_sizes(loaded(139, "135M"), costs("135M"), SizeSettings())
    assert tiny.train_tokens == 32768  # larger micro-batches would gain nothing: the rest is for keys and values
    assert tiny.kv_bytes > 90 * GIB


@pytest.mark.parametrize("free", [0, 1, 2**20, GIB // 2, 2 * GIB])
def test_a_model_that_hardly_fits_gets_the_least_that_works(free):
    one = costs("8B")
    sizes = plan_sizes(GpuMemory("full", 16 * GIB, free), one, SizeSettings())
    assert sizes == Sizes(2 * 4096 * one.kv_token, sizes.max_rows, 256, 256)
    assert 1 <= sizes.max_rows < 64


def test_what_is_set_is_taken_and_the_others_share_the_rest():
    card, one = loaded(80, "1.5B"), costs("1.5B")
    free = plan_sizes(card, one, SizeSettings())
    for gib in (1.5, 60.0):
        sizes = plan_sizes(card, one, SizeSettings(kv_gb=gib))
        assert sizes.kv_bytes == gib * GIB
        assert (sizes.train_tokens > free.train_tokens) == (gib == 1.5)
    assert plan_sizes(card, one, SizeSettings(kv_gb=500.0)).train_tokens == 256
    for tokens in (1000, 20_000):
        sizes = plan_sizes(card, one, SizeSettings(train_tokens=tokens))
        assert sizes.train_tokens == tokens
        assert (sizes.kv_bytes > free.kv_bytes) == (tokens == 1000)
    assert plan_sizes(card, one, SizeSettings(max_rows=5000)).max_rows == 5000
    assert plan_sizes(card, one, SizeSettings(max_rows=3)).kv_bytes > free.kv_bytes  # the scores of fewer rows
    assert plan_sizes(card, one, SizeSettings(7.0, 7, 77)) == Sizes(7 * GIB, 7, 77, free.prefill_tokens)
    nothing = plan_sizes(card, one, SizeSettings(train_tokens=0))
    assert nothing.train_tokens == 0
    assert nothing.kv_bytes > 0.75 * card.free


def test_costs_grow_with_rank_and_precision():
    shape, matrices, _ = model("1.5B")
    one = MemoryCosts.of(shape, matrices, 2, 32)
    assert one.kv_token == 28 * 2 * 2 * 128 * 2
    assert MemoryCosts.of(shape, matrices, 2, 64).adapter == 2 * one.adapter
    assert MemoryCosts.of(shape, matrices, 2, 64).train_token == one.train_token + 28 * 7 * 32 * 2
    assert 1.6 * one.train_token < MemoryCosts.of(shape, matrices, 4, 32).train_token < 2 * one.train_token
    assert MemoryCosts.of(shape, matrices, 2, 32, ours=False).train_token == 2 * one.train_token


def test_a_cpu_has_what_it_had():
    assert engine(kv_gb=None, max_rows=None).sizes == Sizes(4 * GIB, 64, 4096, 1)
    assert engine(kv_gb=0.5, max_rows=3, train_tokens=7).sizes == Sizes(GIB // 2, 3, 7, 1)


def on_a_gpu(monkeypatch, *, free=100, fraction=1.0, reserved=0):
    gpu = {
        "mem_get_info": (free * GIB, 139 * GIB),
        "get_per_process_memory_fraction": fraction,
        "memory_reserved": reserved * GIB,
        "get_device_name": "NVIDIA H200",
        "empty_cache": None,
    }
    for name, value in gpu.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


def test_the_memory_that_may_be_used(monkeypatch):
    device = torch.device("cuda")
    on_a_gpu(monkeypatch)
    assert GpuMemory.of(device) == GpuMemory("NVIDIA H200", 139 * GIB, 100 * GIB)
    on_a_gpu(monkeypatch, fraction=0.5, reserved=4)
    assert GpuMemory.of(device).free == int(69.5 * GIB) - 4 * GIB
    on_a_gpu(monkeypatch, free=10, fraction=0.5, reserved=4)  # others have the rest
    assert GpuMemory.of(device).free == 10 * GIB
    on_a_gpu(monkeypatch, fraction=0.1, reserved=20)
    assert GpuMemory.of(device).free == 0


def test_a_line_says_what_was_found_and_what_sets_it(monkeypatch):
    on_a_gpu(monkeypatch, free=131, reserved=4)
    monkeypatch.setattr(module, "Decoder", SimpleNamespace)
    shape, matrices, _ = model("1.5B")
    decoder = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=shape, matrices=matrices)
    said = []
    sizes = choose_sizes(decoder, 32, SizeSettings(), 1.0, said.append)
    assert sizes == plan_sizes(GpuMemory("", 139 * GIB, 131 * GIB), costs("1.5B"), SizeSettings())
    kv = round(sizes.kv_bytes / GIB)
    assert said == [
        f"memory: 131 GiB free on NVIDIA H200: {kv} GiB for keys and values (up to 1024 rows), "
        f"micro-batches of {sizes.train_tokens} tokens; kv_gb, max_rows and train_tokens set them"
    ]
    half = choose_sizes(decoder, 32, SizeSettings(), 0.5, said.append)
    assert 0.3 * sizes.kv_bytes < half.kv_bytes < 0.6 * sizes.kv_bytes
    line = describe_sizes(GpuMemory("a card", 16 * GIB, 2 * GIB), Sizes(GIB * 3 // 2, 8, 0, 256))
    assert line == "memory: 2.0 GiB free on a card: 1.5 GiB for keys and values (up to 8 rows); kv_gb and max_rows set them"

"""The GPU's kernels against plain PyTorch. Without a GPU, TRITON_INTERPRET=1 runs them where Triton is installed."""

import pytest
import torch
from torch.nn import functional as F

from peergrad.engines.local.model import ops
from peergrad.engines.local.model.lora import Lora, LoraRules
from peergrad.engines.local.sample.cache import BatchState
from tests.local.tiny import RUNS_KERNELS, unpacked

if not RUNS_KERNELS:
    pytest.skip("no GPU, and not asked to interpret the kernels", allow_module_level=True)
from peergrad.engines.local.model import kernels
from peergrad.engines.local.sample import cache_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-2 if DEVICE == "cuda" else 2e-5  # a GPU multiplies float32 matrices with 10 bits of precision
ROWS, HEADS, KV, SIZE, LENGTH = 5, 4, 2, 32, 300


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def with_gradients(function, *inputs):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((output * random(*output.shape)).sum() for output in outputs)
    return [*(output.detach() for output in outputs), *torch.autograd.grad(loss, inputs)]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert (one - other).abs().max() < TOLERANCE


def rotations():
    angles = torch.outer(torch.arange(LENGTH).float(), 1 / 10000 ** (torch.arange(0, SIZE, 2) / SIZE))
    angles = torch.cat((angles, angles), -1).to(DEVICE)
    return angles.cos(), angles.sin()


def test_operations_and_their_gradients():
    x, added, weight = random(2, 5, 96), random(2, 5, 96) * 2, random(96)
    for inputs in ((x, added), (x,)):

        def add_norm(side, inputs=inputs):
            return with_gradients(lambda x, added=None: side.add_norm(x, added, weight, 1e-5), *inputs)

        assert_same(add_norm(kernels), add_norm(ops))
    assert_same(*(with_gradients(side.swiglu, random(2, 5, 64)) for side in (kernels, ops)))
    cos, sin = rotations()
    positions = torch.randint(0, LENGTH, (2, 5), device=DEVICE)
    qkv = random(2, 5, HEADS + 2 * KV, SIZE)
    assert_same(*(with_gradients(lambda z, o=side: o.rotate(z, KV, cos, sin, positions), qkv) for side in (kernels, ops)))


def reference(q, keys, values, position):
    held = position + 1
    k, v = (tensor[:, :held].repeat_interleave(HEADS // KV, 0) for tensor in (keys, values))
    return F.scaled_dot_product_attention(q[:, None], k, v)[:, 0]


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_attention_of_one_token_a_row(splits):
    keys, values, q = random(ROWS, KV, LENGTH, SIZE), random(ROWS, KV, LENGTH, SIZE) * 2, random(ROWS, HEADS, SIZE)
    at = torch.tensor([0, 10, 63, 64, LENGTH - 1], device=DEVICE)
    out = cache_kernels.attend(q, keys, values, at, splits=splits).view(ROWS, HEADS, SIZE)
    assert_same(out, [reference(q[row], keys[row], values[row], int(at[row])) for row in range(ROWS)])


def test_attention_of_packed_prompts():
    keys, values = random(ROWS, KV, LENGTH, SIZE), random(ROWS, KV, LENGTH, SIZE) * 2
    rows, starts, lengths = [3, 0, 4], [0, 37, LENGTH - 20], [140, 1, 20]
    row_of = torch.tensor(rows).repeat_interleave(torch.tensor(lengths)).to(DEVICE)
    positions = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]).to(DEVICE)
    q = random(sum(lengths), HEADS, SIZE)
    out = cache_kernels.prompt_attention(row_of, positions, lengths)(0, q, keys, values).view(-1, HEADS, SIZE)
    wanted = [reference(q[t], keys[row_of[t]], values[row_of[t]], int(positions[t])) for t in range(len(q))]
    assert_same(out, wanted)


def test_rotating_and_storing():
    cos, sin = rotations()
    keys, values = random(ROWS, KV, LENGTH, SIZE), random(ROWS, KV, LENGTH, SIZE) * 2
    at = torch.tensor([0, 10, 63, 64, LENGTH - 1], device=DEVICE)
    qkv = random(ROWS, HEADS + 2 * KV, SIZE)
    q, k, v = ops.rotate(qkv, KV, cos, sin, at)
    new_keys, new_values = keys.clone(), values.clone()
    assert_same([cache_kernels.rotate_and_store(qkv, cos, sin, at, new_keys, new_values, None, 1e-5)], [q])
    row = torch.arange(ROWS, device=DEVICE)
    assert_same([new_keys[row, :, at], new_values[row, :, at]], [k, v])
    assert (new_keys != keys).any(-1).sum() == ROWS * KV


def test_drawing(monkeypatch):
    monkeypatch.setattr(kernels, "VOCABULARY_CHUNK", 64)
    logits, uniforms = random(50, 300) * 3, torch.rand(50, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    temperatures = torch.linspace(0, 1.5, 50).to(DEVICE)
    (ids, logprobs), (wanted, exact) = (d(logits, temperatures, uniforms) for d in (kernels.draw, ops.draw))
    assert torch.equal(ids, wanted)
    assert (logprobs[1:] - exact[1:]).abs().max() < 1e-4


def scored_tokens(module):
    scores, targets = random(40, 300) * 3, torch.arange(40, device=DEVICE) * 7
    temperatures = torch.linspace(0.5, 1.5, 40).to(DEVICE)
    values, lse = module.logprobs(scores, targets, temperatures)
    return values, lse, module.logit_gradients(scores, lse, targets, temperatures, random(40), torch.float32)


def test_log_probabilities_and_their_gradients(monkeypatch):
    monkeypatch.setattr(kernels, "VOCABULARY_CHUNK", 64)
    assert_same(scored_tokens(kernels), scored_tokens(ops))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rank", [None, 4])
def test_a_step_as_the_graph_has_it_is_the_plain_one(kind, rank):
    """What is captured in a graph, run by itself: the same tokens, and the same keys and values in the cache."""
    from peergrad.engines.local.model.lora import stack
    from peergrad.engines.local.sample.cuda_graphs import decode

    if DEVICE == "cuda":
        pytest.skip("the tiny model's parts are for a CPU")
    decoder, adapter = unpacked(kind).decoder, None
    if rank:
        lora = Lora(decoder, LoraRules(rank=rank), 0)
        with torch.no_grad():
            for name, weight in lora.weights.items():
                if "lora_B" in name:
                    weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
        adapter = lora.snapshot()
    plain, fused, again = (BatchState(decoder, ROWS, 64, 16) for _ in range(3))
    for state in (plain, fused, again):
        state.cache.kv.copy_(random(*state.cache.kv.shape))
        state.ids.copy_(torch.arange(ROWS) + 7)
        state.at.copy_(torch.tensor([3, 0, 20, 33, 7]))
        state.uniforms.copy_(torch.linspace(0.1, 0.9, 16).expand(ROWS, -1))
    plain._step(ROWS, 64, adapter)
    decode(decoder, fused, ROWS, adapter and stack(decoder, adapter), (decoder.cos, decoder.sin))
    assert torch.equal(plain.ids, fused.ids)
    assert_same([plain.logprobs, plain.cache.kv], [fused.logprobs, fused.cache.kv])
    again._step(ROWS, 64, adapter)  # the base model's matrices lie elsewhere now, and are as they were
    assert_same([plain.logprobs, plain.cache.kv], [again.logprobs, again.cache.kv])


def test_graphs_are_captured_anew_when_the_matrices_they_read_move():
    from peergrad.engines.local.sample.cuda_graphs import DecodeGraphs

    decoder = unpacked("llama").decoder
    graphs = DecodeGraphs(decoder, BatchState(decoder, ROWS, 64, 16))
    captured = {(ROWS, False): "reads the matrices where they are", (ROWS, True): "and an adapter"}
    for rank, stays in ((4, False), (4, True), (8, False)):
        lora, base = Lora(decoder, LoraRules(rank=rank), 0), decoder.layers[0].weights["o"].clone()
        graphs._graphs = dict(captured)
        graphs.use_adapter(lora.snapshot())
        assert bool(graphs._graphs) == stays
        assert torch.equal(decoder.layers[0].weights["o"], base)
        graphs.use_adapter(None)
        assert bool(graphs._graphs) == stays

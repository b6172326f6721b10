"""The GPU's kernels against plain PyTorch. Without a GPU, TRITON_INTERPRET=1 runs them where Triton is installed."""

import pytest
import torch
from torch.nn import functional as F

from peergrad.engines.local import ops
from peergrad.engines.local.state import draw

pytest.importorskip("triton")
from peergrad.engines.local import kernels

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
    out = kernels.attend(q, keys, values, at, splits=splits).view(ROWS, HEADS, SIZE)
    assert_same(out, [reference(q[row], keys[row], values[row], int(at[row])) for row in range(ROWS)])


def test_attention_of_prompts_whose_padding_points_beyond_the_row():
    keys, values = random(ROWS, KV, LENGTH, SIZE), random(ROWS, KV, LENGTH, SIZE) * 2
    rows, starts, tokens = torch.tensor([3, 0, 4]), torch.tensor([0, 37, LENGTH - 20]), 70
    q = random(3, tokens, HEADS, SIZE)
    out = kernels.attend_prompt(q, keys, values, rows.to(DEVICE), starts.to(DEVICE)).view(3, tokens, HEADS, SIZE)
    for prompt in range(3):
        for token in range(min(tokens, LENGTH - int(starts[prompt]))):
            row, position = rows[prompt], int(starts[prompt]) + token
            assert (
                out[prompt, token] - reference(q[prompt, token], keys[row], values[row], position)
            ).abs().max() < TOLERANCE


def test_rotating_and_storing():
    cos, sin = rotations()
    keys, values = random(ROWS, KV, LENGTH, SIZE), random(ROWS, KV, LENGTH, SIZE) * 2
    at = torch.tensor([0, 10, 63, 64, LENGTH - 1], device=DEVICE)
    qkv = random(ROWS, HEADS + 2 * KV, SIZE)
    q, k, v = ops.rotate(qkv, KV, cos, sin, at)
    new_keys, new_values = keys.clone(), values.clone()
    assert_same([kernels.rotate_and_store(qkv, cos, sin, at, new_keys, new_values, None, 1e-5)], [q])
    row = torch.arange(ROWS, device=DEVICE)
    assert_same([new_keys[row, :, at], new_values[row, :, at]], [k, v])
    assert (new_keys != keys).any(-1).sum() == ROWS * KV


def test_drawing(monkeypatch):
    monkeypatch.setattr(kernels, "VOCABULARY_CHUNK", 64)
    logits, uniforms = random(50, 300) * 3, torch.rand(50, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    temperatures = torch.linspace(0, 1.5, 50).to(DEVICE)
    (ids, logprobs), (wanted, exact) = (d(logits, temperatures, uniforms) for d in (kernels.draw, draw))
    assert torch.equal(ids, wanted)
    assert (logprobs[1:] - exact[1:]).abs().max() < 1e-4


def scored_tokens(module):
    scores, targets = random(40, 300) * 3, torch.arange(40, device=DEVICE) * 7
    temperatures = torch.linspace(0.5, 1.5, 40).to(DEVICE)
    found, levels = module.logprobs(scores, targets, temperatures)
    return found, levels, module.slopes(scores, levels, targets, temperatures, random(40), torch.float32)


def test_log_probabilities_and_their_slopes(monkeypatch):
    monkeypatch.setattr(kernels, "VOCABULARY_CHUNK", 64)
    assert_same(scored_tokens(kernels), scored_tokens(ops))

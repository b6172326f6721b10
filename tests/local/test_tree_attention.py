"""Attention in training: what our own kernels and PyTorch's attention give for the same trees, there and back.

Without a GPU, TRITON_INTERPRET=1 runs the kernels where Triton is installed; the other path is tested everywhere.
"""

import numpy as np
import pytest
import torch

from peergrad.engines.local.model.decoder import Shape
from peergrad.engines.local.train import packing as packed
from peergrad.engines.local.train.packing import Node
from tests.local.tiny import RUNS_KERNELS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tree(sequence, start, end, *children):
    return Node(sequence, start, end, children)


def group(shared, *lengths, first=0):
    """Sequences with a shared beginning."""
    leaves = [tree(first + i, shared, shared + length) for i, length in enumerate(lengths)]
    return tree(first, 0, shared, *leaves)


# Trees as training makes them: alone, a group of answers to one prompt, branches in branches, a member of one token.
TREES = {
    "alone": [tree(0, 0, 65)],
    "several": [tree(0, 0, 130), tree(1, 0, 64), tree(2, 0, 3), tree(3, 0, 1)],
    "group": [group(40, 90, 70, 1, 128)],
    "nested": [tree(0, 0, 33, tree(0, 33, 70, tree(0, 70, 90), tree(1, 70, 140)), tree(2, 33, 40)), tree(3, 0, 50)],
    "long shared": [group(150, *[30] * 45)],  # divided on the way back
}
# Shapes on which cuDNN's attention gave NaN for gradients: a mask, and as many keys as half a tile more than whole ones.
FAILED = {
    "704 keys": [group(120, 584, 584)],
    "plain answers": [group(92, *[100] * 8)],
    "debate": [group(264, *[440] * 3)],
}


def plainly(trees, q, k, v, window):
    """Each sequence by itself, with every head and the whole softmax, in float64."""
    nodes = [node for one in trees for node in one.walk()]
    starts = np.cumsum([0, *(node.end - node.start for node in nodes)])
    out = torch.zeros(len(q), q.shape[1] * q.shape[2], dtype=torch.float64, device=q.device)

    def below(node, before):
        own = list(range(starts[place[id(node)]], starts[place[id(node)]] + node.end - node.start))
        seen = torch.tensor([*before, *own], device=q.device)
        at = torch.tensor(own, device=q.device)
        keys, values = (x[seen].double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        score = torch.einsum("inh,jnh->nij", q[at].double(), keys) * q.shape[2] ** -0.5
        age = (torch.arange(len(own), device=q.device) + len(before))[:, None] - torch.arange(len(seen), device=q.device)
        score = score.masked_fill((age < 0) | (age >= (window or len(seen))), -torch.inf)
        result.append((at, torch.einsum("nij,jnh->inh", score.softmax(-1), values).flatten(1)))
        for child in node.children:
            below(child, [*before, *own])

    place, result = {id(node): i for i, node in enumerate(nodes)}, []
    for one in trees:
        below(one, [])
    return out.index_put((torch.cat([at for at, _ in result]),), torch.cat([y for _, y in result]))


def there_and_back(attend, tensors):
    tensors = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    y = attend(*tensors)
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(y)
    return [y.detach(), *torch.autograd.grad((y * slope).sum(), tensors)]


def inputs(trees, heads, kv_heads, size, dtype=torch.float32, low=False):
    tokens = sum(one.tokens for one in trees)
    generator = torch.Generator().manual_seed(tokens)
    made = [torch.randn(tokens, count, size, generator=generator) for count in (heads, kv_heads, kv_heads)]
    if low:  # all scores near -120, as heads of Qwen2.5 have them: each row's sum of exponentials is below float32's range
        made[0], made[1] = made[0] * 0.1, made[1] * 0.1
        made[0][..., 0], made[1][..., 0] = 1.0, -120 * size**0.5
    return [x.to(DEVICE, dtype) for x in made]


def shape(size, heads, kv_heads, window):
    return Shape(1, 8, heads, kv_heads, size, 10, 1000, (window,))


NEEDS_KERNELS = pytest.mark.skipif(not RUNS_KERNELS, reason="needs a GPU, or Triton's interpreter")
PATHS = [
    pytest.param(packed._by_calls, id="calls"),
    pytest.param(packed._by_kernels, id="kernels", marks=NEEDS_KERNELS),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 32), (2, 2, 48)])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("name", TREES)
def test_every_token_sees_its_own_sequence(path, name, window, heads, kv_heads, size):
    trees, tensors = TREES[name], inputs(TREES[name], heads, kv_heads, size)
    attend = path(trees, shape(size, heads, kv_heads, window), DEVICE)
    ours = there_and_back(lambda q, k, v: attend(0, q, k, v), tensors)
    exact = there_and_back(lambda q, k, v: plainly(trees, q, k, v, window), tensors)
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).abs().max() < 1e-4 * max(1, other.abs().max())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", FAILED)
def test_scores_far_below_zero_leave_gradients_finite(path, name):
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    trees, tensors = FAILED[name], inputs(FAILED[name], 2, 1, 64, dtype, low=True)
    attend = path(trees, shape(64, 2, 1, None), DEVICE)
    ours = there_and_back(lambda q, k, v: attend(0, q, k, v), tensors)
    exact = there_and_back(lambda q, k, v: plainly(trees, q, k, v, None), tensors)
    for one, other in zip(ours, exact, strict=True):
        assert one.isfinite().all()
        # Not in the first place of a query: its slope is a sum over keys of -960 times numbers that cancel.
        one, other = (x.unflatten(-1, (-1, 64))[..., 1:].float() for x in (one, other))
        assert (one - other).norm() < (2e-2 if DEVICE.type == "cuda" else 1e-3) * other.norm()

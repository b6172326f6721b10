"""An adapter below the matrices it adds to: what drawing on a GPU multiplies with, tried without one."""

import torch

from peergrad.engines.local.model.decoder import Layer, _LoraProduct
from peergrad.engines.local.model.lora import Lora, LoraRules, StackedLora, stack, stack_fits
from tests.local.tiny import unpacked


def test_an_adapter_is_exchanged_while_another_thread_goes_back():
    weights, down, up = {"o": torch.randn(8, 6)}, torch.randn(2, 6), torch.randn(8, 2)
    layer = Layer(weights, None, *(torch.ones(6) for _ in range(4)))
    added = StackedLora.on(layer, "o", down, up)
    x, pair = torch.randn(5, 6).requires_grad_(), (down.clone().requires_grad_(), up.clone().requires_grad_())
    y = _LoraProduct.apply(x, weights["o"], None, *pair)
    added.set(down * 2, up * 2)
    (back,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(back, (weights["o"] + up @ down).sum(0).expand(5, -1), atol=1e-5)
    assert torch.allclose(added(x.detach()), x.detach() @ (weights["o"] + 4 * up @ down).T, atol=1e-5)


def test_there_is_room_for_adapters_of_the_same_shape():
    decoder = unpacked("qwen2").decoder
    base = [weight.clone() for layer in decoder.layers for weight in layer.weights.values()]
    one, same, other = (Lora(decoder, LoraRules(rank=rank), seed).snapshot() for rank, seed in ((4, 0), (4, 1), (8, 0)))
    few = Lora(decoder, LoraRules(rank=4, targets=("q_proj",)), 0).snapshot()
    added = stack(decoder, one)
    assert [stack_fits(added, adapter) for adapter in (one, same, other, few)] == [True, True, False, False]
    assert not stack_fits([], one)
    again = [weight for layer in decoder.layers for weight in layer.weights.values()]
    assert all(torch.equal(before, after) for before, after in zip(base, again, strict=True))

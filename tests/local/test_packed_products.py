"""Products with packed weights are the plain ones, there and back; merged adapters are the adapters."""

import asyncio

import pytest
import torch
from torch.nn import functional as F

from peergrad.engines.local.model.ops import Packed, can_pack
from tests.local.test_training import trained_engine
from tests.local.tiny import ask

pytestmark = pytest.mark.skipif(not can_pack([torch.zeros(4, 4)]), reason="this PyTorch has no oneDNN")


@pytest.mark.parametrize("rows", [1, 3, 64, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_there_and_back(rows, bias):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(96, 40, generator=generator), torch.randn(rows, 40, generator=generator)
    added = torch.randn(96, generator=generator) if bias else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = Packed(weight)(ours, added), F.linear(theirs, weight, added)
    assert (y - wanted).abs().max() < 1e-4
    slope = torch.randn(rows, 96, generator=generator)
    y.backward(slope)
    wanted.backward(slope)
    assert (ours.grad - theirs.grad).abs().max() < 1e-4


def test_what_is_not_packed():
    assert not can_pack([torch.zeros(4, 4, dtype=torch.bfloat16)])
    assert not can_pack([torch.zeros(4, 4, device="meta")])
    assert not can_pack([torch.zeros(1).expand(2**15, 2**15 + 1)])  # 4 GiB


def test_one_merged_copy_at_a_time():
    local = trained_engine()
    first, second = asyncio.run(local.sampler()), asyncio.run(local.sampler())
    replies = [asyncio.run(sampler.sample([ask("hello")]))[0].text for sampler in (first, second, first)]
    assert replies[0] == replies[1] == replies[2]
    assert local.scheduler._merged_adapter[0] is first._adapter

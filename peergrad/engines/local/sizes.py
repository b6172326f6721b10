"""How much is sampled and trained at once: a laptop's sizes on a CPU; on a GPU what its memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.forward import Forward, Groups, Shape
from peergrad.engines.local.model.ops import SCORED_AT_ONCE

GIB = 2**30

# More rows and larger micro-batches than these make nothing faster (docs/benchmarks.md).
_MOST_ROWS, _MOST_TOKENS = 1024, 32768
# Fewer would be no work for a GPU; where even these do not fit, they are halved when memory runs out.
_LEAST_TOKENS = 256

# Bytes that are not in a model's shape. On an H200 the 1.5B shape of docs/benchmarks.md with LoRA of rank 32 took up to
# 41.2 and 75.5 GiB with micro-batches of 16,384 and 32,768 tokens; with these numbers it is 41.7 and 77.6.
_SCORED = 8  # for each token of the vocabulary, per trained token that is looked at: two tensors in float32
_DRAWN = 20  # the same per row that is sampled: four tensors in float32, and one in the graph
_LEARNED = 20  # for each weight of LoRA: itself, two gradients and two moments, in float32
_FOREIGN = 2  # transformers' own code keeps about twice as much as ours


@dataclass(frozen=True)
class Wishes:
    """Sizes that a person has set; the others are to be found. ``train_tokens`` 0: nothing will be trained."""

    kv_gb: float | None = None
    max_rows: int | None = None
    train_tokens: int | None = None
    policies: int = 1
    """How many adapters will learn at the same time."""


@dataclass(frozen=True)
class Sizes:
    """What an engine works with."""

    kv_bytes: int
    max_rows: int
    train_tokens: int
    prefill_tokens: int
    """How many tokens of prompts are computed at once; one prompt may be longer."""


@dataclass(frozen=True)
class Card:
    """A GPU's memory in bytes: what this process may use of it, and how much of that is free."""

    name: str
    total: int
    free: int

    @staticmethod
    def of(device: torch.device) -> Card:
        """As it is now; what PyTorch keeps for later counts as used."""
        free, total = torch.cuda.mem_get_info(device)
        total = int(total * torch.cuda.get_per_process_memory_fraction(device))
        ours = total - torch.cuda.memory_reserved(device)
        return Card(torch.cuda.get_device_name(device), total, max(0, min(free, ours)))


@dataclass(frozen=True)
class Costs:
    """What one more of something takes, in bytes."""

    held: int
    """A token in a row, or in a parked prefix: its keys and values in all layers."""
    trained: int
    """A token of a micro-batch: what all layers keep until the gradient comes back to them."""
    scored: int
    """One that was sampled, of those looked at together: its scores for the whole vocabulary."""
    prefilled: int
    """A token of a prompt: what one layer needs, since nothing is kept."""
    drawn: int
    """A row: the scores of its next token."""
    adapter: int
    """What learns, with gradients and moments."""
    row_tokens: int
    """A row that a reply is sampled in should have room for so many tokens."""
    most_prefilled: int
    """So many tokens of prompts keep a GPU busy."""

    @staticmethod
    def of(shape: Shape, matrices: Sequence[Groups], itemsize: int, rank: int, *, ours: bool = True) -> Costs:
        """By a model's shape. A layer keeps what goes into its products and comes out of them; queries, keys and values
        once more, rotated; and the sum over layers, before attention and after it, in float32.
        """
        numbers = rows = adapter = 0
        for groups in matrices:
            for group in groups.values():
                numbers += group[0].inputs + sum(matrix.outputs for matrix in group)
                rows += len(group)
                adapter += rank * sum(matrix.inputs + matrix.outputs for matrix in group)
        attention = (shape.heads + 2 * shape.kv_heads) * shape.head_size
        trained = itemsize * (numbers + rank * rows + attention * shape.layers)
        trained += 2 * (4 - itemsize) * shape.hidden * shape.layers
        trained *= 1 if ours else _FOREIGN
        return Costs(
            held=2 * shape.layers * shape.kv_heads * shape.head_size * itemsize,
            trained=trained,
            scored=_SCORED * shape.vocabulary,
            prefilled=trained // shape.layers + 8 * shape.hidden,
            drawn=Costs.drawn_row(shape),
            adapter=_LEARNED * adapter,
            row_tokens=min(4096, shape.context),
            most_prefilled=16384 if ours else 4096,
        )

    @staticmethod
    def drawn_row(shape: Shape) -> int:
        """What a row takes while its next token is drawn."""
        return _DRAWN * shape.vocabulary


def fit(card: Card, costs: Costs, wishes: Wishes) -> Sizes:
    """Sizes for a GPU with the model on it. What is set is taken as it is, and the others share what that leaves.

    Rows and prefixes stay where they are while a model trains, so both must fit at the same time: half for each, and what
    training can't use as well for rows and prefixes. A tenth of the card and half a GiB stay free, for graphs,
    libraries and gaps between tensors; where there is little, a quarter of it.
    """
    spare = card.free - min(card.total // 10 + GIB // 2, card.free // 4)
    if wishes.train_tokens != 0:
        spare -= wishes.policies * costs.adapter
    rows = wishes.max_rows or _between(1, spare // 16 // costs.drawn, _MOST_ROWS)
    prefill = _between(_LEAST_TOKENS, _even(spare // 16 // costs.prefilled), costs.most_prefilled)
    spare -= rows * costs.drawn + prefill * costs.prefilled
    kv, tokens = None if wishes.kv_gb is None else int(wishes.kv_gb * GIB), wishes.train_tokens
    if tokens is None:
        left = spare // 2 if kv is None else spare - kv
        # Up to so many tokens the scores of all of them are there at once, and after that no more.
        few = left // (costs.trained + costs.scored)
        many = (left - SCORED_AT_ONCE * costs.scored) // costs.trained
        tokens = _between(_LEAST_TOKENS, _even(few if few < SCORED_AT_ONCE else many), _MOST_TOKENS)
    if kv is None:
        least = 2 * costs.held * costs.row_tokens  # half is for parked prefixes
        kv = max(least, spare - tokens * costs.trained - min(tokens, SCORED_AT_ONCE) * costs.scored)
    if wishes.max_rows is None:  # no more than there can be, were they as short as a question
        rows = _between(1, kv // 2 // (costs.held * 256), rows)
        rows = rows // 64 * 64 if rows >= 64 else rows
    return Sizes(kv, rows, tokens, prefill)


def sizes(decoder: Forward, rank: int, wishes: Wishes, share: float, say: Callable[[str], None]) -> Sizes:
    """The sizes for a model that was just loaded; ``say`` is told what was found on a GPU.

    ``share`` is how much of the GPU's free memory is for this one, if others are to be loaded beside it.
    """
    if decoder.device.type != "cuda":
        kv_gb = 4.0 if wishes.kv_gb is None else wishes.kv_gb
        tokens = 4096 if wishes.train_tokens is None else wishes.train_tokens
        return Sizes(int(kv_gb * GIB), wishes.max_rows or 64, tokens, prefill_tokens=1)
    torch.cuda.empty_cache()  # loading leaves blocks behind that nobody uses
    card = Card.of(decoder.device)
    card = Card(card.name, card.total, int(card.free * share))
    ours = isinstance(decoder, Decoder)
    found = fit(card, Costs.of(decoder.shape, decoder.matrices, decoder.dtype.itemsize, rank, ours=ours), wishes)
    say(told(card, found))
    return found


def told(card: Card, found: Sizes) -> str:
    """A line for a person to see what was found, and what to set if it should be otherwise."""
    trains, names = "", "kv_gb and max_rows"
    if found.train_tokens:
        trains, names = f", micro-batches of {found.train_tokens} tokens", "kv_gb, max_rows and train_tokens"
    held = f"{_gib(found.kv_bytes)} for keys and values (up to {found.max_rows} rows)"
    return f"memory: {_gib(card.free)} free on {card.name}: {held}{trains}; {names} set them"


def _gib(size: int) -> str:
    return f"{size / GIB:.0f} GiB" if size >= 10 * GIB else f"{size / GIB:.1f} GiB"


def _between(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


def _even(tokens: int) -> int:
    return tokens // 1024 * 1024 if tokens >= 1024 else tokens

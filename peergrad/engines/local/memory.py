"""Device memory: how much is sampled and trained at once, and what is done when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from peergrad.engines.local.model.decoder import Decoder, Forward, Groups, Shape
from peergrad.engines.local.model.ops import LOGITS_CHUNK

GIB = 2**30

# Messages of PyTorch on a CPU; of CUDA, Triton and pinned memory; and of matrix products.
_MESSAGES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

# More rows and larger micro-batches than these make nothing faster (docs/benchmarks.md).
_MAX_ROWS, _MAX_TRAIN_TOKENS = 1024, 32768
# Fewer would leave a GPU idle; where even these do not fit, they are halved when memory runs out.
_MIN_TOKENS = 256

# Bytes that do not follow from a model's shape. On an H200 the 1.5B shape of docs/benchmarks.md with LoRA of rank 32 took up
# to 41.2 and 75.5 GiB with micro-batches of 16,384 and 32,768 tokens; with these numbers the estimate is 41.7 and 77.6.
_TRAIN_LOGIT = 8  # per logit in training: two tensors in float32
SAMPLE_LOGIT = 20  # per logit in sampling: four tensors in float32, and one in the graph
_LORA_WEIGHT = 20  # the weight, two gradients and two moments, in float32
_HF_FACTOR = 2  # transformers' own code keeps about twice as much as ours


@dataclass(frozen=True)
class SizeSettings:
    """Sizes that the user has set; None: to be chosen."""

    kv_gb: float | None = None
    max_rows: int | None = None
    train_tokens: int | None = None  # 0: nothing is trained
    policies: int = 1  # adapters that are trained at the same time


@dataclass(frozen=True)
class Sizes:
    """The sizes that an engine works with."""

    kv_bytes: int
    max_rows: int
    train_tokens: int
    prefill_tokens: int  # tokens of prompts that are computed at once; one prompt may be longer


@dataclass(frozen=True)
class GpuMemory:
    """The memory of a GPU in bytes: what this process may use, and how much of that is free."""

    name: str
    total: int
    free: int

    @staticmethod
    def of(device: torch.device) -> GpuMemory:
        """The memory now; what PyTorch caches counts as used."""
        free, total = torch.cuda.mem_get_info(device)
        total = int(total * torch.cuda.get_per_process_memory_fraction(device))
        ours = total - torch.cuda.memory_reserved(device)
        return GpuMemory(torch.cuda.get_device_name(device), total, max(0, min(free, ours)))


@dataclass(frozen=True)
class MemoryCosts:
    """How many bytes one more of something takes."""

    kv_token: int  # a token in a row or in the prefix cache: its keys and values in all layers
    train_token: int  # a token of a micro-batch: the activations that all layers keep for the backward pass
    train_logits: int  # a sampled token of a micro-batch: its logits
    prefill_token: int  # a token of a prompt: the activations of one layer, since none are kept
    row_logits: int  # a row: the logits of its next token
    adapter: int  # a trained adapter, with gradients and moments
    row_tokens: int  # not a cost: a row should have room for this many tokens
    max_prefill_tokens: int  # nor this: so many tokens of prompts keep a GPU busy

    @staticmethod
    def of(shape: Shape, matrices: Sequence[Groups], itemsize: int, rank: int, *, ours: bool = True) -> MemoryCosts:
        """The costs of a model. ``ours``: it runs on our own decoder.

        A layer keeps the inputs and outputs of its matrix products; queries, keys and values once more, rotated; and the
        residual stream, before attention and after it, in float32.
        """
        all_groups = [group for groups in matrices for group in groups.values()]
        activations = sum(group[0].inputs + sum(matrix.outputs + rank for matrix in group) for group in all_groups)
        adapter = rank * sum(matrix.inputs + matrix.outputs for group in all_groups for matrix in group)
        attention = (shape.heads + 2 * shape.kv_heads) * shape.head_size
        train = itemsize * (activations + attention * shape.layers)
        train += 2 * (4 - itemsize) * shape.hidden * shape.layers
        train *= 1 if ours else _HF_FACTOR
        return MemoryCosts(
            kv_token=2 * shape.layers * shape.kv_heads * shape.head_size * itemsize,
            train_token=train,
            train_logits=_TRAIN_LOGIT * shape.vocabulary,
            prefill_token=train // shape.layers + 8 * shape.hidden,
            row_logits=SAMPLE_LOGIT * shape.vocabulary,
            adapter=_LORA_WEIGHT * adapter,
            row_tokens=min(4096, shape.context),
            max_prefill_tokens=16384 if ours else 4096,
        )


def plan_sizes(memory: GpuMemory, costs: MemoryCosts, settings: SizeSettings) -> Sizes:
    """Sizes for a GPU with the model on it. Settings are taken as they are, and the others share the rest.

    Rows and prefixes stay in memory while a model is trained, so both must fit at the same time: half for each, and what
    training can't use goes to rows and prefixes. A tenth of the GPU and half a GiB stay free, for graphs, libraries and
    fragmentation; where there is little, a quarter of it.
    """
    spare = memory.free - min(memory.total // 10 + GIB // 2, memory.free // 4)
    if settings.train_tokens != 0:
        spare -= settings.policies * costs.adapter
    rows = settings.max_rows or _clamp(1, spare // 16 // costs.row_logits, _MAX_ROWS)
    prefill = _clamp(_MIN_TOKENS, _round(spare // 16 // costs.prefill_token), costs.max_prefill_tokens)
    spare -= rows * costs.row_logits + prefill * costs.prefill_token
    kv, tokens = None if settings.kv_gb is None else int(settings.kv_gb * GIB), settings.train_tokens
    if tokens is None:
        left = spare // 2 if kv is None else spare - kv
        # Logits exist for one chunk of tokens at a time, so beyond that many tokens they take no more.
        few = left // (costs.train_token + costs.train_logits)
        many = (left - LOGITS_CHUNK * costs.train_logits) // costs.train_token
        tokens = _clamp(_MIN_TOKENS, _round(few if few < LOGITS_CHUNK else many), _MAX_TRAIN_TOKENS)
    if kv is None:
        least = 2 * costs.kv_token * costs.row_tokens  # half is for the prefix cache
        kv = max(least, spare - tokens * costs.train_token - min(tokens, LOGITS_CHUNK) * costs.train_logits)
    if settings.max_rows is None:  # no more than could be in use if they were as short as a question
        rows = _clamp(1, kv // 2 // (costs.kv_token * 256), rows)
        rows = rows // 64 * 64 if rows >= 64 else rows
    return Sizes(kv, rows, tokens, prefill)


def choose_sizes(decoder: Forward, rank: int, settings: SizeSettings, share: float, say: Callable[[str], None]) -> Sizes:
    """The sizes for a model that was just loaded, within a ``share`` of the GPU's free memory. ``say`` is told them."""
    if decoder.device.type != "cuda":
        kv_gb = 4.0 if settings.kv_gb is None else settings.kv_gb
        tokens = 4096 if settings.train_tokens is None else settings.train_tokens
        return Sizes(int(kv_gb * GIB), settings.max_rows or 64, tokens, prefill_tokens=1)
    torch.cuda.empty_cache()  # loading leaves unused blocks behind
    memory, ours = GpuMemory.of(decoder.device), isinstance(decoder, Decoder)
    memory = replace(memory, free=int(memory.free * share))
    costs = MemoryCosts.of(decoder.shape, decoder.matrices, decoder.dtype.itemsize, rank, ours=ours)
    sizes = plan_sizes(memory, costs, settings)
    say(describe_sizes(memory, sizes))
    return sizes


def describe_sizes(memory: GpuMemory, sizes: Sizes) -> str:
    """A line that says which sizes were chosen, and which settings change them."""
    trains, names = "", "kv_gb and max_rows"
    if sizes.train_tokens:
        trains, names = f", micro-batches of {sizes.train_tokens} tokens", "kv_gb, max_rows and train_tokens"
    free, kv = (f"{size / GIB:.{0 if size >= 10 * GIB else 1}f} GiB" for size in (memory.free, sizes.kv_bytes))
    rows = f"{kv} for keys and values (up to {sizes.max_rows} rows)"
    return f"memory: {free} free on {memory.name}: {rows}{trains}; {names} set them"


def _clamp(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


def _round(tokens: int) -> int:
    return tokens // 1024 * 1024 if tokens >= 1024 else tokens


class catch_out_of_memory:  # noqa: N801
    """A context manager that suppresses out-of-memory errors, if ``when``, and keeps their message.

    Example: ``with catch_out_of_memory() as oom: …``, then ``if oom.message: …``. The tensors that the exception's
    traceback refers to are free once the block is left.
    """

    def __init__(self, *, when: bool = True) -> None:
        self._when, self.message = when, ""

    def __enter__(self) -> catch_out_of_memory:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if error is None or not self._when or not is_out_of_memory(error):
            return False
        self.message = str(error) or type(error).__name__
        return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    # An allocation that fails during graph capture is reported as a failed capture, with the cause as its context.
    context = error.__context__
    return any(message in str(error) for message in _MESSAGES) or (context is not None and is_out_of_memory(context))


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device. From pinned memory, or the host would wait for the device's whole queue."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

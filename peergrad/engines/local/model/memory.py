"""Device memory: arrays into it, and running out of it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

# Messages of PyTorch on a CPU; of CUDA, Triton and pinned memory; and of matrix products.
_MESSAGES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


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

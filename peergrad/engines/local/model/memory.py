"""Memory of a device: arrays into it, and when it runs out."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

FULL = (RuntimeError, MemoryError)

# How PyTorch on a CPU says it; CUDA, Triton, memory that a GPU can read; and matrix products.
_SAID = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether one of ``FULL`` means that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    # What fails while a graph is captured comes out as a capture that failed, because of something else.
    return any(said in str(error) for said in _SAID) or (error.__context__ is not None and ran_out(error.__context__))


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device. From pinned memory, or the host would wait for all that the device has still to do."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

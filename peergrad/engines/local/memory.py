"""When memory runs out: a GPU says so with an exception of its own, a CPU with one like any other."""

from __future__ import annotations

import torch

FULL = (RuntimeError, MemoryError)


def ran_out(error: BaseException) -> bool:
    """Whether one of ``FULL`` means that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)

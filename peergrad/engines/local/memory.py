"""When memory runs out: a GPU says so with an exception of its own, a CPU with one like any other."""

from __future__ import annotations

import torch

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

"""Matrix products of SmolLM2's shapes on a CPU: oneDNN with packed weights against PyTorch's default, in one run."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from peergrad.engines.local.model.ops import Packed, can_pack

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # a layer's four matrices
LAYERS = 10


def milliseconds(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    for _ in range(9):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    weights = [torch.randn(shape) for _ in range(LAYERS) for shape in SHAPES]
    assert can_pack(weights)
    packed = [Packed(weight) for weight in weights]
    rows: dict[int, dict[str, float]] = {}
    for count in (1, 4, 12, 24, 64, 256, 1024):
        x = {size: torch.randn(count, size) for size in (576, 1536)}
        default = milliseconds(lambda x=x: [F.linear(x[weight.shape[1]], weight) for weight in weights])
        ours = milliseconds(lambda x=x: [matrix(x[weight.shape[1]]) for weight, matrix in zip(weights, packed, strict=True)])
        rows[count] = {"default_ms": round(default, 1), "packed_ms": round(ours, 1), "ratio": round(default / ours, 2)}
        print(count, "rows", rows[count])
    print(json.dumps({"benchmark": "cpu_products", "rows": rows}))


if __name__ == "__main__":
    main()

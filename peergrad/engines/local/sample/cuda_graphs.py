"""Decoding a token for every row on a GPU as one CUDA graph: hundreds of small kernels launched at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergrad.engines.local.memory import SAMPLE_LOGIT, GpuMemory
from peergrad.engines.local.model.decoder import Adapter, Decoder, Layer
from peergrad.engines.local.model.lora import StackedLora, stack, stack_fits
from peergrad.engines.local.sample import cache_kernels

if TYPE_CHECKING:
    from peergrad.engines.local.sample.cache import BatchState

# A graph is for a fixed number of rows; a batch uses the next larger one, its spare rows computing what nobody reads.
_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)

_Rotations = tuple[Tensor, Tensor]  # cosines and sines


class DecodeGraphs:
    """The graphs of one batch state. They read the adapter from buffers: new weights are copied in, not captured again."""

    def __init__(self, decoder: Decoder, state: BatchState) -> None:
        self._decoder, self._state = decoder, state
        self._stream: torch.cuda.Stream | None = None
        self._reset()

    def _reset(self) -> None:
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._stacked: list[dict[str, StackedLora]] = []  # for each layer, by name
        self._memory = None
        self._rotations: list[_Rotations] = []  # graphs read them by address, so they must stay

    def use_adapter(self, adapter: Adapter | None) -> None:
        """Decode with this adapter from now on."""
        if adapter is None:
            return
        if not stack_fits(self._stacked, adapter):
            self._reset()  # also those without an adapter: the base model's matrices move
            self._stacked = stack(self._decoder, adapter)
        for matrices, layer in zip(self._stacked, adapter, strict=True):
            for name, pair in layer.items():
                matrices[name].set(*pair)

    def step(self, rows: int, adapted: bool) -> None:
        """Decode one token of the first ``rows`` rows."""
        size = min(next((size for size in _ROWS if size >= rows), self._state.rows), self._state.rows)
        graph = self._graphs.get((size, adapted)) or self._capture(size, adapted)
        graph.replay()

    def _capture(self, rows: int, adapted: bool) -> torch.cuda.CUDAGraph:
        state, decoder = self._state, self._decoder
        if GpuMemory.of(decoder.device).free < rows * SAMPLE_LOGIT * decoder.shape.vocabulary:
            torch.cuda.empty_cache()  # during capture PyTorch does not reclaim memory that it has cached
        saved = [tensor.clone() for tensor in state.step_tensors]
        adapter, rotations = self._stacked if adapted else None, (decoder.cos, decoder.sin)
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            decode(decoder, state, rows, adapter, rotations)  # kernels are compiled and libraries set up before
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            # Not by ``torch.cuda.graph``, which gives all unused memory back first: training would have to ask for it again.
            # Only this thread is captured: another may be training.
            graph.capture_begin(*([self._memory] if self._memory else []), capture_error_mode="thread_local")
            try:
                decode(decoder, state, rows, adapter, rotations)
            finally:
                graph.capture_end()
        self._memory = self._memory or graph.pool()
        for tensor, value in zip(state.step_tensors, saved, strict=True):
            tensor.copy_(value)
        self._graphs[rows, adapted] = graph
        self._rotations.append(rotations)
        return graph


def decode(
    decoder: Decoder, state: BatchState, rows: int, adapter: list[dict[str, StackedLora]] | None, rotations: _Rotations
) -> None:
    """``BatchState`` one step further, with a kernel that stores keys and values as it rotates them."""
    at = state.at[:rows]

    def mix(index: int, layer: Layer, qkv: Tensor) -> Tensor:
        keys, values = state.cache.kv[index]
        norms = None if layer.query_norm is None or layer.key_norm is None else (layer.query_norm, layer.key_norm)
        q = cache_kernels.rotate_and_store(qkv, *rotations, at, keys, values, norms, decoder.eps)
        return cache_kernels.attend(q, keys, values, at)

    state.draw_next(rows, decoder.logits(decoder.run(state.ids[:rows], mix, adapter)))

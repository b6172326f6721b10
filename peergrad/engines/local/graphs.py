"""Drawing a token for every row on a GPU as one CUDA graph: hundreds of small kernels started at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.engines.local import kernels
from peergrad.engines.local.decoder import Decoder, product
from peergrad.engines.local.forward import Adapter

if TYPE_CHECKING:
    from peergrad.engines.local.state import State

# A graph is for a fixed number of rows; a batch uses the next larger one, its spare rows computing what nobody reads.
_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)


class Graphs:
    """The graphs for one state. They read the adapter from buffers, so new weights are copied in, not captured again."""

    def __init__(self, decoder: Decoder, state: State) -> None:
        self._decoder, self._state = decoder, state
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._buffers: Adapter | None = None
        self._memory = None
        self._read: list[tuple[Tensor, Tensor]] = []

    def use(self, adapter: Adapter | None) -> None:
        """Draw with this adapter from now on."""
        if adapter is None:
            return
        if self._buffers is None:
            self._buffers = [{n: (down.clone(), up.clone()) for n, (down, up) in layer.items()} for layer in adapter]
        for buffers, layer in zip(self._buffers, adapter, strict=True):
            for name, pair in layer.items():
                for buffer, value in zip(buffers[name], pair, strict=True):
                    buffer.copy_(value)

    def step(self, rows: int, adapted: bool) -> None:
        """Draw the next token of the first ``rows`` rows."""
        size = min(next((size for size in _ROWS if size >= rows), self._state.rows), self._state.rows)
        graph = self._graphs.get((size, adapted)) or self._capture(size, adapted)
        graph.replay()

    def _capture(self, rows: int, adapted: bool) -> torch.cuda.CUDAGraph:
        state = self._state
        held = [tensor.clone() for tensor in state.moving]
        adapter = self._buffers if adapted else None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels are compiled and libraries set up before anything is captured
                decode(self._decoder, state, rows, adapter)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Only this thread is captured: another may be training.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            decode(self._decoder, state, rows, adapter)
        self._memory = self._memory or graph.pool()
        for tensor, value in zip(state.moving, held, strict=True):
            tensor.copy_(value)
        self._graphs[rows, adapted] = graph
        self._read.append((self._decoder.cos, self._decoder.sin))  # a graph knows addresses: they must stay
        return graph


def decode(decoder: Decoder, state: State, rows: int, adapter: Adapter | None) -> None:
    """``State.step`` with fused kernels: the same arithmetic as ``Decoder.hidden`` for one token a row."""
    shape = decoder.shape
    at = state.at[:rows]
    x: Tensor = F.embedding(state.ids[:rows], decoder.embedding)
    added: Tensor | None = None
    for index, layer in enumerate(decoder.layers):
        lora = adapter[index] if adapter else {}
        x, y = kernels.add_norm(x, added, layer.before_attention, decoder.eps)
        qkv = product(y, layer.weights["qkv"], layer.bias, lora.get("qkv")).view(rows, -1, shape.head_size)
        keys, values = state.pool.kv[index]
        norms = None if layer.query_norm is None or layer.key_norm is None else (layer.query_norm, layer.key_norm)
        q = kernels.rotate_and_store(qkv, decoder.cos, decoder.sin, at, keys, values, norms, decoder.eps)
        added = product(kernels.attend(q, keys, values, at), layer.weights["o"], None, lora.get("o"))
        x, y = kernels.add_norm(x, added, layer.before_mlp, decoder.eps)
        gate_up = product(y, layer.weights["gate_up"], None, lora.get("gate_up"))
        added = product(kernels.swiglu(gate_up), layer.weights["down"], None, lora.get("down"))
    _, y = kernels.add_norm(x, added, decoder.last_norm, decoder.eps)
    uniforms = state.uniforms[:rows].gather(1, state.drawn[:rows, None])[:, 0]
    ids, logprobs = kernels.draw(decoder.logits(y), state.temperatures[:rows], uniforms)
    state.took(rows, ids, logprobs)

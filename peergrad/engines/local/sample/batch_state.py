"""The device state of a batch that is being sampled: keys and values, last tokens and random numbers of all rows.

One tensor holds the keys and values of all rows, so a row is stored, loaded or moved by a single copy. Shapes: L layers,
m key/value heads, S positions, n query heads, d head size, t new tokens; the axis of 2 is key and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from peergrad.debate.types import Ids
from peergrad.engines.local.model import ops
from peergrad.engines.local.model.decoder import Adapter, Attend, Decoder, Forward

if TYPE_CHECKING:
    from peergrad.engines.local.sample.scheduler import Job


@dataclass(eq=False, slots=True)
class CacheEntry:
    """Tokens whose keys and values exist: in a row of the ``KVCache``, or stored in ``kv`` (L, 2, m, tokens, d).

    ``weights`` is the id of the weights they were computed with.
    """

    weights: int
    ids_T: Ids
    row: int | None = None
    kv: Tensor | None = None
    blocks: list[int] = field(default_factory=list[int])


class KVCache:
    """Keys and values of rows, (L, 2, rows, m, S, d)."""

    def __init__(self, decoder: Forward, rows: int, positions: int) -> None:
        shape = decoder.shape
        size = (shape.layers, 2, rows, shape.kv_heads, positions, shape.head_size)
        self.kv = torch.zeros(size, device=decoder.device, dtype=decoder.dtype)
        self.rows, self._windows = rows, shape.windows
        self._kernels = decoder.device.type == "cuda" and isinstance(decoder, Decoder)

    def attend(self, rows: slice | Tensor, positions: Tensor, seen: int, lengths: Sequence[int] | None = None) -> Attend:
        """Attention of new tokens to everything before them in their rows.

        The tokens are packed end to end, ``lengths`` of each row or one of each. ``positions`` (t) are below ``seen``.
        """
        device = positions.device
        row_of = torch.arange(self.rows, device=device)[rows] if isinstance(rows, slice) else rows
        if lengths is not None:
            row_of = row_of.repeat_interleave(torch.tensor(lengths, device=device), output_size=sum(lengths))
        if self._kernels and lengths is not None:
            from peergrad.engines.local.sample.cache_kernels import prompt_attention

            read = prompt_attention(row_of, positions, lengths)
        else:
            read = self._padded_attention(rows, positions, seen, lengths or [1] * len(positions))
        write = (row_of, slice(None), positions)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[layer]
            keys[write], values[write] = k, v
            return read(layer, q, keys, values)

        return attend

    def _padded_attention(self, rows: slice | Tensor, positions: Tensor, seen: int, lengths: Sequence[int]) -> Attend:
        """Attention to stored keys and values by PyTorch, with the tokens of all rows padded to the longest."""
        b, longest = len(lengths), max(lengths)
        places = None
        if len(positions) < b * longest:
            packed = np.concatenate([row * longest + np.arange(length) for row, length in enumerate(lengths)])
            places = torch.from_numpy(packed).to(positions.device)

        def padded(x: Tensor) -> Tensor:
            if places is not None:
                x = x.new_zeros(b * longest, *x.shape[1:]).index_copy_(0, places, x)
            return x.view(b, longest, *x.shape[1:])

        age = padded(positions)[:, None, :, None] - torch.arange(seen, device=positions.device)  # (b, 1, longest, seen)
        masks = {w: age >= 0 if w is None else (age >= 0) & (age < w) for w in set(self._windows)}

        def read(layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            (_, n, d), m = q.shape, keys.shape[1]
            # The n/m query heads that share a key head are folded into the query length, so keys are not repeated.
            q = padded(q).view(b, longest, m, n // m, d).permute(0, 2, 3, 1, 4).reshape(b, m, n // m * longest, d)
            folded = masks[self._windows[layer]].repeat(1, 1, n // m, 1)
            y = F.scaled_dot_product_attention(q, keys[rows, :, :seen], values[rows, :, :seen], attn_mask=folded)
            y = y.view(b, m, n // m, longest, d).permute(0, 3, 1, 2, 4).reshape(b * longest, n * d)
            return y if places is None else y[places]

        return read

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row into another."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def load(self, row: int, entry: CacheEntry, length: int) -> None:
        """Copy the first ``length`` positions of an entry into a row."""
        if entry.row is not None:
            self.move(entry.row, row, length)
        elif entry.kv is not None:
            self.kv[:, :, row, :, :length] = entry.kv[:, :, :, :length]


class BatchState:
    """Everything on the device that decoding a token for each row reads and changes."""

    def __init__(self, decoder: Forward, rows: int, positions: int, uniforms: int) -> None:
        device = decoder.device
        self._decoder = decoder
        self.rows, self.positions = rows, positions
        self.cache = KVCache(decoder, rows, positions)
        self.ids, self.at, self.drawn = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
        self.logprobs = torch.zeros(rows, device=device)
        self.temperatures = torch.ones(rows, device=device)
        self.uniforms = torch.zeros(rows, uniforms, device=device)
        self.draw = ops.for_device(device).draw
        self._graphs = None
        if device.type == "cuda" and isinstance(decoder, Decoder):
            from peergrad.engines.local.sample.cuda_graphs import DecodeGraphs

            self._graphs = DecodeGraphs(decoder, self)

    @property
    def step_tensors(self) -> tuple[Tensor, ...]:
        """What a step changes besides the keys and values."""
        return self.ids, self.at, self.drawn, self.logprobs

    def free(self) -> None:
        """Free the device memory now: graphs and state refer to each other, and Python would collect them later."""
        self._graphs = None
        del self.cache

    def use_adapter(self, adapter: Adapter | None) -> None:
        if self._graphs is not None:
            self._graphs.use_adapter(adapter)

    def fill_rows(self, jobs: list[Job], rows: Tensor, ids: Tensor) -> None:
        """Set the state of rows whose prompts are computed and whose first tokens are drawn."""
        device = self.ids.device
        uniforms = np.zeros((len(jobs), self.uniforms.shape[1]), np.float32)
        for row_uniforms, job in zip(uniforms, jobs, strict=True):
            row_uniforms[: len(job.uniforms_T)] = job.uniforms_T
        self.ids[rows] = ids
        self.at[rows] = torch.tensor([len(job.prompt_T) for job in jobs], device=device)
        self.drawn[rows] = 1
        self.temperatures[rows] = torch.tensor([job.temperature for job in jobs], device=device)
        self.uniforms[rows] = torch.from_numpy(uniforms).to(device)

    def move(self, source: int, target: int, length: int) -> None:
        self.cache.move(source, target, min(length, self.positions))
        for tensor in (*self.step_tensors, self.temperatures, self.uniforms):
            tensor[target] = tensor[source]

    def steps(self, rows: int, longest: int, steps: int, adapter: Adapter | None) -> tuple[Tensor, Tensor]:
        """Draw ``steps`` tokens for each of the first rows: ids and log-probabilities, (steps, rows)."""
        ids, logprobs = [], []
        for _ in range(steps):
            if self._graphs is not None:
                self._graphs.step(rows, adapter is not None)
            else:
                self._step(rows, min(longest, self.positions), adapter)
            ids.append(self.ids[:rows].clone())
            logprobs.append(self.logprobs[:rows].clone())
        return torch.stack(ids), torch.stack(logprobs)

    def _step(self, rows: int, seen: int, adapter: Adapter | None) -> None:
        positions = self.at[:rows]
        attend = self.cache.attend(slice(rows), positions, seen)
        hidden = self._decoder.hidden(self.ids[:rows], positions, attend, adapter)
        uniforms = self.uniforms[:rows].gather(1, self.drawn[:rows, None])[:, 0]
        self.record(rows, *self.draw(self._decoder.logits(hidden), self.temperatures[:rows], uniforms))

    def record(self, rows: int, ids: Tensor, logprobs: Tensor) -> None:
        """Record drawn tokens. Finished rows continue until the host sees it, but not beyond their length."""
        self.ids[:rows] = ids
        self.logprobs[:rows] = logprobs
        self.at[:rows] = (self.at[:rows] + 1).clamp(max=self.positions - 1)
        self.drawn[:rows] = (self.drawn[:rows] + 1).clamp(max=self.uniforms.shape[1] - 1)

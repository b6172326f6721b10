"""The device state of a batch that is being sampled, and how a token is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.forward import Adapter, Forward
from peergrad.engines.local.sample.kv_cache import KVCache

if TYPE_CHECKING:
    from peergrad.engines.local.sample.scheduler import Job


class BatchState:
    """What is on the device while a batch is sampled: keys and values, and each row's last token and random numbers."""

    def __init__(self, decoder: Forward, rows: int, positions: int, uniforms: int) -> None:
        device = decoder.device
        self._decoder = decoder
        self.rows, self.positions = rows, positions
        self.cache = KVCache(decoder.shape, rows, positions, device, decoder.dtype)
        self.ids, self.at, self.drawn = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
        self.logprobs = torch.zeros(rows, device=device)
        self.temperatures = torch.ones(rows, device=device)
        self.uniforms = torch.zeros(rows, uniforms, device=device)
        self.draw = draw
        self._graphs = None
        if device.type == "cuda" and isinstance(decoder, Decoder):
            from peergrad.engines.local.model import vocabulary_kernels
            from peergrad.engines.local.sample.cuda_graphs import DecodeGraphs

            self.draw = vocabulary_kernels.draw
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
        positions = self.at[:rows, None]
        attend = self.cache.attend(slice(rows), positions, seen)
        hidden = self._decoder.hidden(self.ids[:rows, None], positions, attend, adapter)
        uniforms = self.uniforms[:rows].gather(1, self.drawn[:rows, None])[:, 0]
        ids, logprobs = self.draw(self._decoder.logits(hidden[:, 0]), self.temperatures[:rows], uniforms)
        self.record(rows, ids, logprobs)

    def record(self, rows: int, ids: Tensor, logprobs: Tensor) -> None:
        """Record drawn tokens. Finished rows go on until the host sees it, but not beyond their length."""
        self.ids[:rows] = ids
        self.logprobs[:rows] = logprobs
        self.at[:rows] = (self.at[:rows] + 1).clamp(max=self.positions - 1)
        self.drawn[:rows] = (self.drawn[:rows] + 1).clamp(max=self.uniforms.shape[1] - 1)


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token per row by its uniform number; temperature 0 takes the best. Returns ids and log-probabilities.

    By the inverse of the cumulative distribution: one random number a token, whatever the size of the vocabulary.
    """
    logprobs = torch.log_softmax(logits / temperatures.clamp(min=1e-6)[:, None], -1)
    mass = logprobs.exp().cumsum(-1)
    ids = torch.searchsorted(mass, uniforms[:, None] * mass[:, -1:], right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    ids = torch.where(temperatures > 0, ids, logits.argmax(-1))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]

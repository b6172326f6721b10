"""The local engine: one model in this process that debates and learns."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Ask, Tokens
from peergrad.engines.local.backward import gradient
from peergrad.engines.local.chat import Chat
from peergrad.engines.local.forward import Forward
from peergrad.engines.local.generate import Generator
from peergrad.engines.local.loading import load, load_tokenizer
from peergrad.engines.local.lora import Lora, LoraRules
from peergrad.engines.local.memory import FULL, ran_out
from peergrad.engines.local.sampler import LocalSampler
from peergrad.learn.datums import Datum
from peergrad.learn.losses import LossName, optim_metrics
from peergrad.learn.trainer import StepStats

BASE = 0


class Local:
    """A ``Trainer``: LoRA on a frozen base model, Adam, gradient clipping. Its samplers share the base model's weights."""

    def __init__(
        self,
        decoder: Forward,
        chat: Chat,
        *,
        name: str = "",
        lora: LoraRules | None = None,
        seed: int = 0,
        kv_gb: float = 4.0,
        max_rows: int = 64,
        train_tokens: int = 4096,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.decoder, self.chat, self.seed = decoder, chat, seed
        self.generator = Generator(decoder, kv_bytes=int(kv_gb * 2**30), max_rows=max_rows)
        self.sampling = threading.Lock()
        self._name, self._train_tokens, self._max_grad_norm = name, train_tokens, max_grad_norm
        self._lora = Lora(decoder, lora or LoraRules(), seed)
        self._adam = torch.optim.Adam(list(self._lora.weights.values()), betas=(0.9, 0.95), eps=1e-8)
        self._training = threading.Lock()
        self._samplers = BASE

    @staticmethod
    def load_model(
        model: str,
        *,
        device: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        threads: int | None = None,
        say: Callable[[str], None] = lambda _: None,
        **settings: Any,
    ) -> Local:
        """Load a model by alias, hub id, folder or GGUF file: float32 on a CPU, bfloat16 on a GPU unless told otherwise.

        With float16 sampler and trainer agree eight times more closely than with bfloat16, but activations beyond 65,504
        overflow; updates that meet one are skipped.
        """
        from transformers import GenerationConfig

        from peergrad.engines.local.models import resolve

        folder = resolve(model, say=say)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            torch.set_num_threads(threads or os.cpu_count() or 1)
        dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
        decoder = load(folder, device, getattr(torch, dtype))
        ends: list[int] = []
        if (folder / "generation_config.json").exists():
            listed = GenerationConfig.from_pretrained(str(folder)).eos_token_id
            ends = listed if isinstance(listed, list) else [listed]
        return Local(decoder, Chat(load_tokenizer(folder), ends), name=model, **settings)

    async def sampler(self) -> LocalSampler:
        return await asyncio.to_thread(self._sampler)

    def _sampler(self) -> LocalSampler:
        return self._sample_with(self._lora)

    def _sample_with(self, lora: Lora) -> LocalSampler:
        with self._training:
            # A name of its own: what one sampler computed is not used by another, so that its answers depend, to the last
            # bit, on its weights and on what it was asked, never on who else was asked before.
            self._samplers += 1
            sampler = LocalSampler(self, lora.snapshot(), self._samplers)
        weakref.finalize(sampler, self.generator.gone.append, self._samplers)
        return sampler

    def base_sampler(self) -> LocalSampler:
        """The model as it was before any training."""
        return LocalSampler(self, None, BASE)

    async def adapted(self, folder: Path) -> LocalSampler:
        """The model with the adapter of a checkpoint or of any PEFT folder; what this engine trains is not touched."""
        return await asyncio.to_thread(lambda: self._sample_with(Lora.saved(self.decoder, folder)))

    async def step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        return await asyncio.to_thread(self._step, data, loss, lr)

    def _step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        with self._training:
            self.generator.release()
            try:
                made = gradient(self.decoder, self._lora, data, loss, self._train_tokens)
            except FULL as error:
                if not ran_out(error):
                    raise
                raise EngineError(
                    f"out of memory while training on one sequence; shorten it or lower kv_gb ({error})"
                ) from None
            norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in made.by_name.values()))
            new, old, mask = (
                np.concatenate(column)
                for column in (made.logprobs, [datum.logprobs_T for datum in data], [datum.mask_T for datum in data])
            )
            metrics = optim_metrics(new, old, mask)
            if not (math.isfinite(made.loss) and math.isfinite(norm)):
                return StepStats(made.loss, norm, skipped=True, metrics=metrics)
            scale = min(1.0, self._max_grad_norm / norm) if norm else 1.0
            for name, weight in self._lora.weights.items():
                weight.grad = made.by_name[name].mul_(scale)
            self._adam.param_groups[0]["lr"] = lr
            self._adam.step()
            self._adam.zero_grad()
            return StepStats(made.loss, norm, metrics=metrics)

    @property
    def context(self) -> int:
        return self.decoder.shape.context

    def tokens(self, ask: Ask, text: str) -> Tokens:
        return self.chat.tokens(ask.messages, text, ask.temperature)

    async def save(self, path: Path) -> None:
        await asyncio.to_thread(self._save, path)

    def _save(self, path: Path) -> None:
        """A PEFT adapter, the optimizer's state beside it, and what else it takes to go on exactly from here."""
        from safetensors.torch import save

        with self._training:
            path.mkdir(parents=True, exist_ok=True)
            weights = {name: weight.detach().cpu().contiguous() for name, weight in self._lora.weights.items()}
            files = {"adapter_model.safetensors": save(weights, metadata={"format": "pt"})}
            moments = {
                f"{kind}.{name}": self._adam.state[weight][kind].cpu().contiguous()
                for name, weight in self._lora.weights.items()
                if weight in self._adam.state
                for kind in ("exp_avg", "exp_avg_sq", "step")
            }
            files["optimizer.safetensors"] = save(moments)
            files["adapter_config.json"] = self._lora.config(self._name).encode()
            files["engine.json"] = json.dumps({"seed": self.seed}).encode()
        for name, content in files.items():
            (path / name).write_bytes(content)

    async def load(self, path: Path) -> None:
        await asyncio.to_thread(self._load, path)

    def _load(self, path: Path) -> None:
        from safetensors.torch import load_file

        missing = [
            n for n in ("adapter_model.safetensors", "optimizer.safetensors", "engine.json") if not (path / n).exists()
        ]
        if missing:
            raise UserError(f"{path}: is no checkpoint of the local engine ({', '.join(missing)} missing)")
        with self._training:
            self._lora.load(path)
            moments = load_file(str(path / "optimizer.safetensors"))
            self._adam.state.clear()
            for name, weight in self._lora.weights.items():
                if f"step.{name}" in moments:
                    self._adam.state[weight] = {
                        "step": moments[f"step.{name}"],
                        "exp_avg": moments[f"exp_avg.{name}"].to(weight.device),
                        "exp_avg_sq": moments[f"exp_avg_sq.{name}"].to(weight.device),
                    }
            state = json.loads((path / "engine.json").read_text())
            self.seed = state["seed"]

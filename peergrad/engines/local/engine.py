"""The local engine: one model in this process that debates and learns."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import read_json
from peergrad.debate.types import Ask, Floats, Tokens
from peergrad.engines.base import first_line
from peergrad.engines.local.memory import SizeSettings, catch_out_of_memory, choose_sizes, is_out_of_memory
from peergrad.engines.local.model.decoder import Decoder, Forward
from peergrad.engines.local.model.hf_model import HFDecoder
from peergrad.engines.local.model.lora import Lora, LoraRules
from peergrad.engines.local.sample.sampler import LocalSampler
from peergrad.engines.local.sample.scheduler import Scheduler
from peergrad.engines.local.train.backward import Gradient, gradient, token_logprobs
from peergrad.engines.shared.chat import Chat, load_chat, why_not_loaded
from peergrad.learn.data import Datum
from peergrad.learn.losses import Bounds, LossName
from peergrad.learn.trainer import NOT_FINITE, RETRIED, Fault, StepStats, optim_metrics

BASE_WEIGHTS = 0  # the id of the base model's weights

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamRules:
    """Settings of an update; gradients longer than ``max_norm`` are scaled down to it."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = math.inf


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
        kv_gb: float | None = None,
        max_rows: int | None = None,
        train_tokens: int | None = None,
        max_grad_norm: float = 1.0,
        policies: int = 1,
        share: float = 1.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``kv_gb``, ``max_rows`` and ``train_tokens`` are chosen by the free memory where they are not set (see ``sizes``).

        ``share`` of that memory is this engine's, and ``policies`` are trained at the same time; ``train_tokens`` 0: none.
        ``say`` is told the chosen sizes, and when memory runs out.
        """
        lora = lora or LoraRules()
        chat.check_ids(decoder.shape.vocabulary)
        self.decoder, self.chat = decoder, chat
        settings = SizeSettings(kv_gb, max_rows, train_tokens, policies)
        self.sizes = sizes = choose_sizes(decoder, lora.rank, settings, share, say)
        self.scheduler = Scheduler(decoder, sizes, say)
        self.sampling = threading.Lock()
        self._name, self._max_grad_norm = name, max_grad_norm
        self._weight_ids = itertools.count(BASE_WEIGHTS + 1)
        self._start_policy(lora, seed)

    def _start_policy(self, lora: LoraRules, seed: int) -> None:
        self.seed = seed
        self._lora = Lora(self.decoder, lora, seed)
        self._adam = torch.optim.AdamW(list(self._lora.weights.values()), weight_decay=0.0)
        self._training, self._worker = threading.RLock(), ThreadPoolExecutor(1)

    def new_policy(self, lora: LoraRules, seed: int) -> Local:
        """Another policy on the same copy of the base model. Both sample in turn and are trained independently."""
        other = copy.copy(self)
        other._start_policy(lora, seed)
        return other

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
        """Load a model by alias, hub id, folder or GGUF file: float32 on a CPU, bfloat16 on a GPU by default.

        With float16 sampler and trainer agree eight times more closely than with bfloat16, but activations beyond 65,504
        overflow; updates that meet one are skipped.
        """
        from peergrad.engines.local.fetch.models import resolve

        folder = resolve(model, say=say)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            torch.set_num_threads(threads or os.cpu_count() or 1)
        dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
        with catch_out_of_memory() as oom:
            decoder = load_decoder(folder, device, getattr(torch, dtype))
            return Local(decoder, load_chat(str(folder)), name=model, say=say, **settings)
        raise UserError(f"model: {model} is too large for the memory of {device}; give another ({oom.message})")

    async def sampler(self) -> LocalSampler:
        return await self._run_in_order(self._snapshot, self._lora)

    async def _run_in_order(self, work: Callable[..., A], *args: Any) -> A:
        """Run work in a thread, after all earlier calls, whether or not they were awaited."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)

    def _snapshot(self, lora: Lora | None) -> LocalSampler:
        with self._training:
            # Each sampler has its own id, so samplers never share cached prefixes: replies depend, to the last bit, on the
            # sampler's weights and asks, never on what others were asked before.
            weights = next(self._weight_ids)
            sampler = LocalSampler(self, lora and lora.snapshot(), weights)
        weakref.finalize(sampler, self.scheduler.unused_weights.append, weights)
        return sampler

    def base_sampler(self) -> LocalSampler:
        """A sampler of the base model, without any adapter."""
        return LocalSampler(self, None, BASE_WEIGHTS)

    async def sampler_with(self, checkpoint: Path | None) -> LocalSampler:
        """A sampler with the adapter of a checkpoint or of any PEFT folder, or with none. Training is not affected."""
        return await asyncio.to_thread(lambda: self._snapshot(checkpoint and Lora.from_folder(self.decoder, checkpoint)))

    async def step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        return await self._run_in_order(self._step, data, loss, lr)

    def _step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        with self._training:
            result = self.gradient(data, loss)
            new, old, mask = (
                np.concatenate(column)
                for column in (result.logprobs, [datum.logprobs_T for datum in data], [datum.mask_T for datum in data])
            )
            metrics = optim_metrics(new, old, mask) | ({RETRIED: float(result.retried)} if result.retried else {})
            if result.error or not math.isfinite(result.loss):
                faults = (Fault(result.error or NOT_FINITE, tuple(data[index] for index in result.bad)),)
                return StepStats(result.loss, grad_norm(result.by_name), skipped=True, metrics=metrics, faults=faults)
            norm = self.apply(result.by_name, AdamRules(lr=lr, max_norm=self._max_grad_norm))
            return StepStats(result.loss, norm, skipped=not math.isfinite(norm), metrics=metrics)

    def gradient(self, data: Sequence[Datum], loss: LossName, bounds: Bounds | None = None) -> Gradient:
        """Loss and gradient at the current weights, which are not changed. ``bounds``: of the loss's ratios."""
        tokens = self.sizes.train_tokens
        return self._with_memory(lambda: gradient(self.decoder, self._lora, data, loss, tokens, bounds))

    async def logprobs(self, data: Sequence[Datum], *, base: bool = False) -> list[Floats]:
        def compute() -> list[Floats]:
            return token_logprobs(self.decoder, None if base else self._lora.snapshot(), data, self.sizes.train_tokens)

        return await self._run_in_order(lambda: self._with_memory(compute))

    def _with_memory(self, compute: Callable[[], A]) -> A:
        """What is computed with the current weights; if memory runs out, with that of sampling too."""
        self.scheduler.release()
        oom = catch_out_of_memory()
        with self._training:
            for _ in range(2):
                with oom:
                    return compute()
                if not self._free_sampling_memory():
                    break
        raise EngineError(f"out of memory while training on one sequence; shorten it or lower kv_gb ({oom.message})")

    def _free_sampling_memory(self) -> bool:
        """Free rows and cached prefixes, unless something is being sampled. Returns whether there were any."""
        if not self.sampling.acquire(blocking=False):
            return False
        try:
            return self.scheduler.free()
        finally:
            self.sampling.release()

    def apply(self, by_name: Mapping[str, Tensor], rules: AdamRules) -> float:
        """Update the weights with a gradient and return its norm. A gradient that is not finite changes nothing."""
        norm = grad_norm(by_name)
        if not math.isfinite(norm):
            return norm
        scale = min(1.0, rules.max_norm / norm) if norm else 1.0
        betas = (rules.beta1, rules.beta2)
        with self._training:
            for name, weight in self._lora.weights.items():
                weight.grad = by_name[name].mul(scale)
            self._adam.param_groups[0].update(lr=rules.lr, betas=betas, eps=rules.eps, weight_decay=rules.weight_decay)
            self._adam.step()
            self._adam.zero_grad()
        return norm

    @property
    def context(self) -> int:
        return self.decoder.shape.context

    def tokens(self, ask: Ask, text: str) -> Tokens:
        return self.chat.tokens(ask.messages, text, ask.temperature, ends=not ask.stop)

    async def save(self, path: Path) -> None:
        await self._run_in_order(self._save, path)

    def _save(self, path: Path) -> None:
        """Write a PEFT adapter, the optimizer's state, and the seed: what it takes to resume exactly from here."""
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

    async def close(self, *, failed: bool = False) -> None:
        """Nothing to do: the memory is freed with the object."""

    def forget(self, path: Path) -> None:
        """Nothing to do: all of a checkpoint is in its folder."""

    async def load(self, path: Path, *, optimizer: bool = True) -> None:
        """Resume from a checkpoint of ``save``; without ``optimizer``, begin with the weights of any adapter."""
        await self._run_in_order(self._load, path, optimizer)

    def _load(self, path: Path, optimizer: bool) -> None:
        from safetensors.torch import load_file

        moments, seed = dict[str, Tensor](), self.seed
        if optimizer:
            names = ("adapter_model.safetensors", "optimizer.safetensors", "engine.json")
            if missing := [name for name in names if not (path / name).exists()]:
                raise UserError(f"{path}: is no checkpoint of the local engine ({', '.join(missing)} missing)")
            moments = load_file(str(path / "optimizer.safetensors"))
            seed = read_json(path / "engine.json").get("seed")
            if not isinstance(seed, int):
                raise UserError(f"{path / 'engine.json'}: is damaged; restore it")
        with self._training:
            self._lora.load(path)  # the last step that can fail, so a policy is loaded completely or not changed
            self._adam.state.clear()
            for name, weight in self._lora.weights.items():
                if f"step.{name}" in moments:
                    state = {kind: moments[f"{kind}.{name}"].to(weight.device) for kind in ("exp_avg", "exp_avg_sq")}
                    self._adam.state[weight] = {"step": moments[f"step.{name}"], **state}
            self.seed = seed


def load_decoder(folder: Path, device: str, dtype: torch.dtype) -> Forward:
    """Load a Hugging Face folder: into our own forward pass if it can run the architecture, else with transformers' code."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it loads in a second; what takes long is told by ``models``
    try:
        options: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False}
        auto: Any = AutoModelForCausalLM
        model, report = auto.from_pretrained(str(folder), dtype=dtype, output_loading_info=True, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no causal model of this type, files missing or damaged, …: each raises in its own way
        what = f"{str(folder)!r} as a causal language model ({why_not_loaded(error)})"
        raise UserError(f"model: transformers can't load {what}") from None
    # transformers fills these with random numbers.
    if missing := sorted({*report["missing_keys"]} & {name for name, _ in model.named_parameters()}):
        raise UserError(f"model: {str(folder)!r} has no weights for {len(missing)} parts of it, {missing[0]} for one")
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # no such device, or none of them here
        if is_out_of_memory(error):
            raise
        raise UserError(f"device: {device!r} can't be used ({first_line(error)}); give cpu, or leave it out") from None
    return decoder_of(model)


def decoder_of(model: Any) -> Forward:
    """The forward pass of a transformers model, which must not be used otherwise any more."""
    return Decoder(model) if Decoder.runs(model) else HFDecoder(model)


def grad_norm(by_name: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of a gradient."""
    return float(torch.stack([torch.linalg.vector_norm(grad) for grad in by_name.values()]).double().norm())

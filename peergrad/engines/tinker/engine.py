"""The Tinker engine: a policy that a service trains and samples, through the official client.

Nothing heavy is here: the tokenizer, and numbers on their way. See docs/design/tinker-engine.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tinker

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import read_json
from peergrad.debate.quote import visible
from peergrad.debate.sampler import all_of
from peergrad.debate.types import Ask, Floats, Tokens
from peergrad.engines.base import EngineConfig, UpdateConfig
from peergrad.engines.shared.chat import load_chat
from peergrad.engines.shared.servers import check_tinker, tinker_address, tinker_key
from peergrad.engines.tinker.connection import Connection, NotFound
from peergrad.engines.tinker.kept import Kept
from peergrad.engines.tinker.sampler import TinkerSampler
from peergrad.learn import losses
from peergrad.learn.data import Datum
from peergrad.learn.losses import RATIO_BOUNDS, LossName
from peergrad.learn.trainer import NOT_FINITE, Fault, StepStats, optim_metrics

CHECKPOINT = "tinker.json"  # the file in a checkpoint that says where the service keeps it
_CONTEXT = 32768  # where neither a service nor the model says


class Tinker:
    """A ``Trainer``: LoRA on a base model of the service. What it learns from must have been sampled at temperature 1."""

    def __init__(
        self,
        engine: EngineConfig,
        update: UpdateConfig | None = None,
        *,
        seed: int = 0,
        say: Callable[[str], None] = lambda _: None,
        tokenizer_of: Callable[[str], str] = str,
    ) -> None:
        """``tokenizer_of`` gives the folder or hub id of a model's tokenizer."""
        self._model, self._update, self._seed = engine.model, update or UpdateConfig(), seed
        check_tinker(engine, self._update)
        url = tinker_address(engine.base_url)
        secret = tinker_key(url)
        self._connection = Connection(url, secret, engine.deadline_s)
        self._connection.get("healthz")
        length = _context(self._connection, engine.model)
        say(f"getting the tokenizer of {engine.model}")
        tokenizer = tokenizer_of(engine.model)
        self.chat = load_chat(tokenizer)
        self.context = length or _own_context(tokenizer)
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # on by default; nobody asked for it here
        self._service = tinker.ServiceClient(base_url=url, api_key=secret)
        self._client: tinker.TrainingClient | None = None
        self._kept = Kept()
        self._samplers: dict[str, TinkerSampler] = {}

    async def sampler(self) -> TinkerSampler:
        return await self._snapshot(await self._training())

    async def sampler_with(self, checkpoint: Path | None) -> TinkerSampler:
        """A sampler of the model with a checkpoint's weights, or as it is; what this engine trains is not touched."""
        if checkpoint is None:
            # In a thread, for it may begin the session, and the client does that where it is called.
            create = partial(self._service.create_sampling_client, base_model=self._model)
            return self._sampler_of(await self._connection.in_thread("a sampler of the base model", create))
        state = _state(checkpoint)
        if state not in self._samplers:  # each makes a policy, which a service keeps until the session ends
            client = await self._restored(checkpoint, self._service.create_training_client_from_state)
            self._samplers[state] = await self._snapshot(client)
        return self._samplers[state]

    async def _snapshot(self, client: tinker.TrainingClient) -> TinkerSampler:
        # The client's own coroutine for this blocks whatever else the event loop has to do.
        return self._sampler_of(await self._connection.in_thread("a sampler", client.save_weights_and_get_sampling_client))

    def _sampler_of(self, client: tinker.SamplingClient) -> TinkerSampler:
        return TinkerSampler(client, self.chat, self._connection, context=self.context, seed=self._seed)

    async def step(self, data: Sequence[Datum], loss: LossName, lr: float) -> StepStats:
        if any((datum.temperatures_T != 1).any() for datum in data):
            raise UserError(
                "temperature: the service evaluates a policy at 1 alone, and these debates were sampled at another"
            )
        client = await self._training()
        adam = tinker.AdamParams(
            learning_rate=lr, beta1=0.9, beta2=0.95, eps=1e-8, grad_clip_norm=self._update.max_grad_norm
        )
        bounds = zip(("clip_low_threshold", "clip_high_threshold"), RATIO_BOUNDS.get(loss, ()), strict=False)
        # Both are sent before either is awaited, and so are all parts of a large batch: the service never idles.
        computing = await client.forward_backward_async([_payload(d, loss) for d in data], loss, dict(bounds) or None)
        applying = await client.optim_step_async(adam)
        results: list[Any] = [computing.result_async(), applying.result_async()]
        forward, update = await self._connection.wait("the update", all_of(results))
        return _stats(data, loss, forward, update.metrics or {})

    async def logprobs(self, data: Sequence[Datum], *, base: bool = False) -> list[Floats]:
        if not base:
            client = await self._training()
            computing = await client.forward_async([_payload(datum, "cross_entropy") for datum in data], "cross_entropy")
            forward = await self._connection.wait("log-probabilities", computing.result_async())
            scores = _logprobs(data, forward)
        else:
            sampler = await self.sampler_with(None)
            scores = await all_of([sampler.logprobs([*datum.inputs_T.tolist(), int(datum.targets_T[-1])]) for datum in data])
        return [np.where(datum.mask_T > 0, score_T, 0.0) for datum, score_T in zip(data, scores, strict=True)]

    def tokens(self, ask: Ask, text: str) -> Tokens:
        return self.chat.tokens(ask.messages, text, 1.0, ends=not ask.stop)

    async def save(self, path: Path) -> None:
        """The service keeps the weights and the optimizer's state; here is written where."""
        client = await self._training()
        name = f"{path.name.strip('.').removesuffix('.part')}-{secrets.token_hex(4)}"
        state = await self._connection.wait("the checkpoint", (await client.save_state_async(name)).result_async())
        await asyncio.to_thread(self._keep, path, state.path)

    def _keep(self, path: Path, state: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if not _states(path.parent):
            self._kept.begin(path.parent)
        self._kept.add(path.parent, state)
        (path / CHECKPOINT).write_text(json.dumps({"path": state, "model": self._model}, indent=2))

    def forget(self, path: Path) -> None:
        """The service lets go of a checkpoint that it was had to keep for the run in this very folder, by this person."""
        with contextlib.suppress(UserError):
            self._remove(path.parent, _state(path))

    def _remove(self, folder: Path, state: str) -> None:
        if self._kept.take(folder, state):
            run, _, name = state.removeprefix("tinker://").partition("/")
            self._connection.delete(f"training_runs/{run}/checkpoints/{name}")

    async def load(self, path: Path, *, optimizer: bool = True) -> None:
        service = self._service
        weights, all_ = service.create_training_client_from_state, service.create_training_client_from_state_with_optimizer
        self._client = await self._restored(path, all_ if optimizer else weights)
        if optimizer:  # the run is resumed: what it had kept as it was cut off, no checkpoint of it names
            for state in {*self._kept.of(path.parent)} - _states(path.parent):
                self._remove(path.parent, state)

    async def _restored(self, folder: Path, create: Callable[[str], tinker.TrainingClient]) -> tinker.TrainingClient:
        """A policy made from a checkpoint."""
        state = _state(folder)
        try:
            return await self._connection.in_thread(f"the checkpoint {state}", lambda: create(state))
        except NotFound:
            raise UserError(
                f"{folder}: {self._connection.host} does not have its weights ({state}); give the address of the service "
                "that has them (base_url), or remove that folder to resume from the checkpoint before it"
            ) from None

    async def close(self, *, failed: bool = False) -> None:
        """The service need keep nothing in memory any more."""
        await self._connection.close(lambda: self._service.close("errored" if failed else "success").result())

    async def _training(self) -> tinker.TrainingClient:
        """The policy on the service, made when it is first needed: a run that is resumed loads another."""
        if self._client is None:
            self._client = await self._connection.in_thread(
                f"a new policy on {self._model}",
                lambda: self._service.create_lora_training_client(self._model, rank=self._update.rank, seed=self._seed),
            )
        return self._client


def _context(connection: Connection, model: str) -> int | None:
    """The longest sequence the service takes of this model, which it must have, if it says."""
    offered = connection.get("get_server_capabilities").get("supported_models")
    listed: list[Any] = offered if isinstance(offered, list) else []
    known = {str(one.get("model_name")): one for one in listed if isinstance(one, dict)}
    if model not in known:
        some = visible(", ".join(sorted(known)[:20]))
        raise UserError(f"model: {connection.host} has no {model!r}; it has {some or 'none'}")
    length = known[model].get("max_context_length")
    return length if isinstance(length, int) and length > 0 else None


def _own_context(folder: str) -> int:
    """The longest sequence by the model's own config."""
    from transformers import AutoConfig

    try:
        length = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config().max_position_embeddings
    except Exception:  # a model with none, one this transformers does not know, …: each raises in its own way
        return _CONTEXT
    return length if isinstance(length, int) and length > 0 else _CONTEXT


def _state(folder: Path) -> str:
    try:
        path = read_json(folder / CHECKPOINT).get("path")
    except UserError:
        path = None
    if not isinstance(path, str) or not path.startswith("tinker://"):
        raise UserError(f"{folder}: is no checkpoint of the Tinker engine ({CHECKPOINT} is missing or damaged)")
    return path


def _states(folder: Path) -> set[str]:
    """Those that the checkpoints in a folder name."""
    states = set[str]()
    for checkpoint in folder.iterdir():
        with contextlib.suppress(UserError):
            states.add(_state(checkpoint))
    return states


def _payload(datum: Datum, loss: LossName) -> tinker.Datum:
    """A datum as the service takes it. There is no mask: what was not sampled has advantage 0."""
    columns: dict[str, np.ndarray] = {"advantages": datum.advantages_T * datum.mask_T, "logprobs": datum.logprobs_T}
    if loss == "cross_entropy":
        columns = {"weights": datum.advantages_T}
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    columns["target_tokens"] = datum.targets_T.astype(np.int64)
    inputs = {
        name: tinker.TensorData(data=column, dtype=str(column.dtype), shape=[len(column)])  # type: ignore[arg-type]
        for name, column in columns.items()
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(datum.inputs_T.tolist()), loss_fn_inputs=inputs)


def _logprobs(data: Sequence[Datum], forward: tinker.ForwardBackwardOutput) -> list[Floats]:
    """What a forward pass says of the targets."""
    logprobs = [np.asarray(one["logprobs"].tolist(), np.float32) for one in forward.loss_fn_outputs if "logprobs" in one]
    if [len(one) for one in logprobs] != list(map(len, data)):
        raise EngineError("the service gave no log-probabilities for what was trained on; it may not be the right version")
    return logprobs


def _stats(
    data: Sequence[Datum], loss: LossName, forward: tinker.ForwardBackwardOutput, applied: dict[str, float]
) -> StepStats:
    """What the update did. The loss is computed here, from the service's log-probabilities: not all services report it."""
    logprobs = _logprobs(data, forward)
    columns = zip(*((datum.logprobs_T, datum.advantages_T, datum.mask_T) for datum in data), strict=True)
    new, old, advantages, mask = map(np.concatenate, (logprobs, *columns))
    value = getattr(losses, loss)(new, *((advantages,) if loss == "cross_entropy" else (old, advantages, mask))).value
    skipped = applied.get("skipped", 0.0) > 0
    if not math.isfinite(value) and not skipped:
        raise EngineError(
            "the loss of an update is not finite, and the service does not say that it left the weights alone; "
            "the same command tries that step again, a new run may have a lower learning rate"
        )
    norms = [value for name, value in applied.items() if name.rpartition("/")[2] == "grad_norm"]  # some say whose it is
    norm = norms[0] if norms else math.nan
    about = "the loss is not finite" if not math.isfinite(value) else NOT_FINITE
    faults = (Fault(f"the service skipped it: {about}", tuple(data)),) if skipped else ()
    return StepStats(value, norm, skipped=skipped, metrics=optim_metrics(new, old, mask), faults=faults)

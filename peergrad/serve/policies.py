"""Policies on one base model, trained by requests. Those of a policy are done once, in the order of their numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tinker.proto import tinker_public_pb2 as pb
from torch import Tensor

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.serve import messages
from peergrad.serve.checkpoints import CheckpointStore
from peergrad.serve.messages import BusyError, ModelInfo, NotFoundError, Result
from peergrad.serve.sessions import Futures, Session, Sessions

ALPHA = 32.0
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "dense"}
# Parts of a batch are sent in parallel and arrive in any order: how far ahead of the next number they may be.
_MAX_AHEAD, _MAX_AHEAD_BYTES = 4096, 512 * 2**20
# A request that was refused before its number was known, or whose sender gave up, never arrives.
_ARRIVAL_TIMEOUT_S = 120.0


class Policies:
    """At most ``max_models`` policies on ``engine``, whose base model clients know as ``model``. Each is of a session."""

    def __init__(
        self, engine: Local, model: str, tokenizer: str, store: CheckpointStore, sessions: Sessions, max_models: int
    ) -> None:
        self._engine, self._model, self._tokenizer, self._max_models = engine, model, tokenizer, max_models
        self._store, self._sessions, self._futures = store, sessions, sessions.futures
        self._creating: set[str] = set()
        self._training_lock = asyncio.Lock()

    async def create(self, request: Field) -> Result:
        """Begin to create a policy."""
        session = self._sessions.find(request["session_id"].text())
        id = f"{session.id}-{request['model_seq_id'].whole(0, messages.MAX_NUMBER)}"
        info = messages.model_info(request, self._model)
        request_id = f"{id}.0"
        if request_id not in self._futures:
            if self._full:
                self._sessions.end_idle(under_pressure=True)
            if self._full:
                raise BusyError(f"{self._max_models} models are being trained; wait, or start with more max_models")
            seed = request.get("lora_config", {}).object().get("seed", None)
            number = 0 if seed.value is None else seed.whole(0, 2**63 - 1)
            self._creating.add(id)
            self._futures.start(request_id, lambda: self._create(id, session, info, number))
        return Result.json(request_id=request_id, model_id=id)

    @property
    def _full(self) -> bool:
        trained = sum(len(session.policies) for session in self._sessions.alive.values())
        return trained + len(self._creating) >= self._max_models

    async def _create(self, id: str, session: Session, info: ModelInfo, seed: int) -> Result:
        kinds = {matrix.kind for groups in self._engine.decoder.matrices for group in groups.values() for matrix in group}
        attention = kinds & _ATTENTION
        some = attention if info.train_attn else kinds - attention
        targets = () if info.train_mlp and info.train_attn else tuple(sorted(some))
        rules = LoraRules(rank=info.rank, alpha=ALPHA, targets=targets)
        try:
            engine = await asyncio.to_thread(self._engine.new_policy, rules, seed)
        finally:
            self._creating.discard(id)
        self._sessions.find(session.id)  # it may have ended meanwhile
        session.policies[id] = Policy(id, engine, info, self._futures, self._training_lock)
        return Result.json(model_id=id, type="create_model")

    def find(self, id: str) -> Policy:
        """A policy by its id."""
        session = self._sessions.owner(id)
        if session is None or id not in session.policies:
            raise NotFoundError(f"there is no model {id!r}; its session has ended, or the server was restarted")
        return session.policies[id]

    async def info(self, request: Field) -> Result:
        """What a policy is."""
        policy = self.find(request["model_id"].text())
        data = {"arch": None, "model_name": self._model, "tokenizer_id": self._tokenizer}
        lora = {"is_lora": True, "lora_rank": policy.info.rank}
        return Result.json(model_id=policy.id, model_name=self._model, model_data=data, **lora)

    async def forward_backward(self, request: pb.ForwardBackwardRequest) -> Result:
        """Queue the computation of a loss and its gradient."""
        policy, number = self.find(request.model_id), Field(request.seq_id, "request", "seq_id")
        return policy.submit(number, request.ByteSize(), partial(policy.forward_backward, request))

    def queued(self, work: Callable[[Policy, Field], Awaitable[Result]]) -> Callable[[Field], Awaitable[Result]]:
        """Answers requests for this work on a policy by queueing it.

        The rest of a request is read when its turn comes: if it is wrong, it still uses up its number, so that later
        requests do not wait for it.
        """

        async def submit(request: Field) -> Result:
            policy = self.find(request["model_id"].text())
            return policy.submit(request["seq_id"], 0, partial(work, policy, request))

        return submit

    async def save(self, policy: Policy, request: Field) -> Result:
        """Save a checkpoint to resume from."""
        return Result.json(path=await self._store.save(policy, "weights", request), type="save_weights")

    async def load(self, policy: Policy, request: Field) -> Result:
        """Load a checkpoint into a policy."""
        _, folder, info = await self._store.lookup(request["path"])
        if info != policy.info:
            request["path"].wrong(f"is of {info}, this model is {policy.info}; create one like it")
        await policy.load(folder, request["optimizer"].flag())
        return Result.json(path=request["path"].text(), model_id=policy.id, type="load_weights")

    async def checkpoint_info(self, request: Field) -> Result:
        """The model that a checkpoint is of."""
        _, _, info = await self._store.lookup(request["tinker_path"])
        parts = {"train_mlp": info.train_mlp, "train_attn": info.train_attn, "train_unembed": False}
        return Result.json(base_model=info.base_model, is_lora=True, lora_rank=info.rank, **parts)


class Policy:
    """A policy and its queue of requests. Gradients accumulate until an update uses them.

    ``training_lock`` is shared by all policies, because they share the memory that training needs.
    """

    def __init__(self, id: str, engine: Local, info: ModelInfo, futures: Futures, training_lock: asyncio.Lock) -> None:
        self.id, self.info, self.engine = id, info, engine
        self._futures, self._training_lock = futures, training_lock
        self._next = 1
        self._queue: dict[int, tuple[Callable[[], Awaitable[Result]], int]] = {}  # work and its size, by number
        self._next_arrived = asyncio.Event()
        self._gradient: dict[str, Tensor] | None = None
        self._gradient_error: str | None = None
        self._worker: asyncio.Task[None] | None = None

    def submit(self, seq_id: Field, size: int, work: Callable[[], Awaitable[Result]]) -> Result:
        """Queue work that holds ``size`` bytes until it is done. A number that is known is not done again."""
        number = seq_id.whole(1, messages.MAX_NUMBER)
        id = f"{self.id}.{number}"
        if number < self._next or number in self._queue:
            return Result.json(request_id=id)
        if number > self._next + _MAX_AHEAD:
            raise UserError(f"seq_id: {number} is too far ahead; {self._next} comes next")
        queued = sum(size for _, size in self._queue.values())
        if number != self._next and queued + size > _MAX_AHEAD_BYTES:
            raise BusyError(f"{queued >> 20} MiB are waiting to be trained on; send more when some of it is done")
        self._futures.create(id)
        self._queue[number] = work, size
        if number == self._next:
            self._next_arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return Result.json(request_id=id)

    async def _work(self) -> None:
        while self._queue:
            if self._next not in self._queue:
                await self._wait_for_next()
            async with self._training_lock:
                if entry := self._queue.get(self._next):  # else the session has ended, or the queue has failed
                    await self._futures.run(f"{self.id}.{self._next}", entry[0])
                    self._queue.pop(self._next, None)
                    self._next += 1

    async def _wait_for_next(self) -> None:
        """Wait for the next number, while later ones wait for it. If it does not arrive in time, all queued ones fail."""
        self._next_arrived.clear()
        try:
            await asyncio.wait_for(self._next_arrived.wait(), _ARRIVAL_TIMEOUT_S)
        except TimeoutError:
            if self._queue and self._next not in self._queue:
                self._fail_queue()

    def _fail_queue(self) -> None:
        """Fail all queued requests and discard the gradient, because one that precedes them is missing."""
        last = max(self._queue)
        reason = f"request {self._next} did not come within {_ARRIVAL_TIMEOUT_S:g} s"
        for number in range(self._next, last + 1):
            self._futures.fail(f"{self.id}.{number}", f"seq_id: {number} was not done, because {reason}")
        self._queue.clear()
        self._next, self._gradient_error = last + 1, reason

    async def forward_backward(self, request: pb.ForwardBackwardRequest) -> Result:
        """Compute the loss of a batch and, unless it is ``forward_only``, add its gradient to the accumulated one."""
        try:
            return await asyncio.to_thread(self._forward_backward, request)
        except Exception as error:
            if not request.forward_only:
                self._gradient_error = f"a forward_backward before it failed ({error})"
            raise

    def _forward_backward(self, request: pb.ForwardBackwardRequest) -> Result:
        gradient = self.engine.gradient(*messages.training_batch(request, self.engine.decoder.shape))
        if not request.forward_only:
            if self._gradient is None:
                self._gradient = gradient.by_name
            else:
                for name, grad in gradient.by_name.items():
                    self._gradient[name] += grad
        return messages.gradient_result(gradient)

    async def optim_step(self, request: Field) -> Result:
        """Update the weights with the accumulated gradient. One that is not finite, or not complete, changes nothing."""
        gradient, error = self._gradient, self._gradient_error
        self._gradient = self._gradient_error = None  # used up, even if the request is refused
        rules = messages.adam_rules(request)
        if error is not None:
            raise UserError(f"optim_step: no update was made, because {error}")
        if gradient is None:
            raise UserError("optim_step: there is no gradient; send forward_backward before it")
        norm = await asyncio.to_thread(self.engine.apply, gradient, rules)
        if not math.isfinite(norm):
            return Result.json(metrics={"skipped": 1.0})
        return Result.json(metrics={"grad_norm": norm, "skipped": 0.0})

    async def load(self, folder: Path, optimizer: bool) -> None:
        """Resume from a checkpoint; without ``optimizer``, from its weights alone."""
        await self.engine.load(folder, optimizer=optimizer)
        self._gradient = self._gradient_error = None

    def close(self) -> None:
        """Drop the queue; work that is under way may end."""
        self._queue.clear()
        self._next_arrived.set()

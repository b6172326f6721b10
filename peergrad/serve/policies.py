"""The policies of all sessions, and the requests that train, save and load them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.serve.checkpoints import CheckpointId, CheckpointStore, ModelInfo
from peergrad.serve.errors import BusyError, NotFoundError
from peergrad.serve.futures import Futures
from peergrad.serve.policy import Policy
from peergrad.serve.requests import Limits, adam_rules, checkpoint_id, checkpoint_name, model_info, ttl_seconds
from peergrad.serve.results import Result
from peergrad.serve.sessions import Sessions
from peergrad.serve.training_data import training_batch

ALPHA = 32.0
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "dense"}


class Policies:
    """At most ``max_models`` policies on one base model. Each belongs to a session."""

    def __init__(
        self,
        engine: Local,
        store: CheckpointStore,
        sessions: Sessions,
        futures: Futures,
        limits: Limits,
        max_models: int,
    ) -> None:
        self._engine, self._store, self._sessions, self._futures = engine, store, sessions, futures
        self._limits, self._max_models = limits, max_models
        self._policies: dict[str, Policy] = {}
        self._creating: set[str] = set()
        self._training_lock = asyncio.Lock()

    def create(self, request: Field, model: str) -> tuple[str, str]:
        """Create a policy. Returns the ids of the request and of the policy."""
        session = request["session_id"].text()
        self._sessions.touch(session)
        id = f"{session}-{request['model_seq_id'].whole(0)}"
        info = model_info(request, model)
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
        return request_id, id

    @property
    def _full(self) -> bool:
        return len(self._policies) + len(self._creating) >= self._max_models

    async def _create(self, id: str, session: str, info: ModelInfo, seed: int) -> Result:
        kinds = {matrix.kind for groups in self._engine.decoder.matrices for group in groups.values() for matrix in group}
        attention = kinds & _ATTENTION
        some = attention if info.train_attn else kinds - attention
        targets = () if info.train_mlp and info.train_attn else tuple(sorted(some))
        rules = LoraRules(rank=info.rank, alpha=ALPHA, targets=targets)
        try:
            engine = await asyncio.to_thread(self._engine.new_policy, rules, seed)
        finally:
            self._creating.discard(id)
        self._sessions.touch(session)  # it may have ended meanwhile
        self._policies[id] = Policy(id, session, engine, info, self._futures, self._training_lock)
        return Result.json(model_id=id, type="create_model")

    def find(self, id: str) -> Policy:
        """A policy by its id."""
        if id not in self._policies:
            raise NotFoundError(f"there is no model {id!r}; its session has ended, or the server was restarted")
        policy = self._policies[id]
        self._sessions.touch(policy.session)
        return policy

    def end_session(self, session: str) -> None:
        """Drop a session's policies."""
        for policy in [policy for policy in self._policies.values() if policy.session == session]:
            policy.close()
            del self._policies[policy.id]

    def forward_backward(self, request: pb.ForwardBackwardRequest) -> str:
        """Queue the computation of a loss and its gradient. Returns the id of the request."""
        policy = self.find(request.model_id)
        work = partial(policy.forward_backward, partial(training_batch, request, self._limits), request.forward_only)
        return policy.submit(_number(Field(request.seq_id, "request", "seq_id")), request.ByteSize(), work)

    def submit(self, request: Field, work: Callable[[Policy], Awaitable[Result]]) -> str:
        """Queue work on a policy. Returns the id of the request.

        The rest of the request is read when its turn comes: if it is wrong, it still uses up its number, so that later
        requests do not wait for it.
        """
        policy = self.find(request["model_id"].text())
        return policy.submit(_number(request["seq_id"]), 0, partial(work, policy))

    def optim_step(self, request: Field) -> str:
        """Queue an update. Returns the id of the request."""
        return self.submit(request, lambda policy: policy.optim_step(partial(adam_rules, request)))

    def save(self, request: Field) -> str:
        """Queue saving a checkpoint to resume from. Returns the id of the request."""

        async def work(policy: Policy) -> Result:
            id = CheckpointId(policy.id, "weights", checkpoint_name(request["path"]))
            overwrite, ttl = request.get("overwrite", False).flag(), ttl_seconds(request)
            path = await self._store.save(id, policy.info, policy.engine.save, overwrite=overwrite, ttl=ttl)
            return Result.json(path=path, type="save_weights")

        return self.submit(request, work)

    def load(self, request: Field) -> str:
        """Queue loading a checkpoint into a policy. Returns the id of the request."""

        async def work(policy: Policy) -> Result:
            folder, info = await self.checkpoint(request["path"])
            if info != policy.info:
                request["path"].wrong(f"is of {info}, this model is {policy.info}; create one like it")
            await policy.load(folder, request["optimizer"].flag())
            return Result.json(path=request["path"].text(), model_id=policy.id, type="load_weights")

        return self.submit(request, work)

    async def checkpoint(self, path: Field) -> tuple[Path, ModelInfo]:
        """The folder of a checkpoint and the model it is of."""
        return await asyncio.to_thread(self._store.find, checkpoint_id(path))


def _number(field: Field) -> int:
    return field.whole(1, 2**62)

"""The policies that are trained, and what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.serve.learning import Learner
from peergrad.serve.lessons import lesson
from peergrad.serve.promises import Promises
from peergrad.serve.refusals import Busy, Missing
from peergrad.serve.requests import Limits, about, adam, name, saved, seconds
from peergrad.serve.results import Result
from peergrad.serve.sessions import Sessions
from peergrad.serve.store import About, Store

ALPHA = 32.0
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "dense"}


class Policies:
    """At most ``most`` of them, on one base model. Each belongs to a session."""

    def __init__(self, engine: Local, store: Store, sessions: Sessions, promises: Promises, most: int) -> None:
        self._engine, self._store, self._sessions, self._promises, self._most = engine, store, sessions, promises, most
        self._limits = Limits(engine.decoder.shape.vocabulary, engine.context)
        self._learners: dict[str, Learner] = {}
        self._creating: set[str] = set()
        self._alone = asyncio.Lock()

    def create(self, request: Field, model: str) -> tuple[str, str]:
        """A new policy: the ids of the request and of the policy."""
        session = request["session_id"].text()
        self._sessions.hear(session)
        id = f"{session}-{request['model_seq_id'].whole(0)}"
        wanted = about(request, model)
        promise = f"{id}.0"
        if promise not in self._promises:
            if self._full:
                self._sessions.make_room()
            if self._full:
                raise Busy(f"{self._most} models are being trained; wait, or start with more max_models")
            seed = request.get("lora_config", {}).object().get("seed", None)
            number = 0 if seed.value is None else seed.whole(0, 2**63 - 1)
            self._creating.add(id)
            self._promises.start(promise, lambda: self._create(id, session, wanted, number))
        return promise, id

    @property
    def _full(self) -> bool:
        return len(self._learners) + len(self._creating) >= self._most

    async def _create(self, id: str, session: str, about: About, seed: int) -> Result:
        kinds = {matrix.kind for groups in self._engine.decoder.matrices for group in groups.values() for matrix in group}
        attention = kinds & _ATTENTION
        some = attention if about.train_attn else kinds - attention
        targets = () if about.train_mlp and about.train_attn else tuple(sorted(some))
        rules = LoraRules(rank=about.rank, alpha=ALPHA, targets=targets)
        try:
            engine = await asyncio.to_thread(self._engine.beside, rules, seed)
        finally:
            self._creating.discard(id)
        self._sessions.hear(session)  # it may have ended meanwhile
        self._learners[id] = Learner(id, session, engine, about, self._promises, self._alone)
        return Result.json(model_id=id, type="create_model")

    def find(self, id: str) -> Learner:
        """A policy by its id."""
        if id not in self._learners:
            raise Missing(f"there is no model {id!r}; its session has ended, or the server was started anew")
        found = self._learners[id]
        self._sessions.hear(found.session)
        return found

    def end(self, session: str) -> None:
        """Let go of a session's policies."""
        for learner in [one for one in self._learners.values() if one.session == session]:
            learner.close()
            del self._learners[learner.id]

    def learn(self, sent: pb.ForwardBackwardRequest) -> str:
        """Have a loss and its gradient computed."""
        learner = self.find(sent.model_id)
        work = partial(learner.learn, partial(lesson, sent, self._limits), sent.forward_only)
        return learner.submit(_number(Field(sent.seq_id, "request", "seq_id")), sent.ByteSize(), work)

    def in_turn(self, request: Field, work: Callable[[Learner], Awaitable[Result]]) -> str:
        """Have something done to a policy. Whatever is wrong with the request shows when it is its turn, which it has then
        had: those that come after it do not wait for another.
        """
        learner = self.find(request["model_id"].text())
        return learner.submit(_number(request["seq_id"]), 0, partial(work, learner))

    def update(self, request: Field) -> str:
        """Have an update made."""

        async def work(learner: Learner) -> Result:
            return await learner.update(partial(adam, request))

        return self.in_turn(request, work)

    def save(self, request: Field) -> str:
        """Have a checkpoint written to go on from."""

        async def work(learner: Learner) -> Result:
            as_, over = name(request["path"]), request.get("overwrite", False).flag()
            ttl = seconds(request)
            path = await self._store.save(learner.id, "weights", as_, learner.about, learner.save, overwrite=over, ttl=ttl)
            return Result.json(path=path, type="save_weights")

        return self.in_turn(request, work)

    def load(self, request: Field) -> str:
        """Have a policy go on from a checkpoint."""

        async def work(learner: Learner) -> Result:
            folder, about = await self.checkpoint(request["path"])
            if about != learner.about:
                request["path"].wrong(f"is of {about}, this model is {learner.about}; create one like it")
            await learner.load(folder, request["optimizer"].flag())
            return Result.json(path=request["path"].text(), model_id=learner.id, type="load_weights")

        return self.in_turn(request, work)

    async def checkpoint(self, path: Field) -> tuple[Path, About]:
        """Where a checkpoint is, and what it is of."""
        return await asyncio.to_thread(self._store.find, *saved(path))


def _number(field: Field) -> int:
    return field.whole(1, 2**62)

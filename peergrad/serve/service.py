"""Who is served: sessions, the policies they train and the samplers they made, within limits."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import Local
from peergrad.engines.local.lora import LoraRules
from peergrad.engines.local.sampler import LocalSampler
from peergrad.serve.learning import Learner
from peergrad.serve.promises import Promises
from peergrad.serve.samplers import Samplers
from peergrad.serve.sampling import Desk
from peergrad.serve.store import About, Kept, Store
from peergrad.serve.wire import Limits, Missing, Result, Wish, adam, lesson, name, sampled, saved, training, wish

ALPHA = 32.0
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "dense"}
_SILENT_S = 300.0  # a session that is not heard of for so long has ended; clients say every ten seconds that they live
_STALE_S = 30.0  # and if its room is needed, after so long
_MOST_SESSIONS, _MOST_WAITING = 256, 4096
_MOST_NOTES = 16_384  # characters
_LONGEST_S = 10 * 366 * 24 * 3600  # ten years


class Busy(Exception):  # noqa: N818
    """There is no room now; there may be later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRules:
    """What is served, and how much at once."""

    model: str
    out: Path
    max_models: int = 8
    max_samplers: int = 32


@dataclass(slots=True)
class _Session:
    heard: float
    samplers: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Sampler by id: the checkpoint it is of, None for the base model, or "" for one that is in memory alone."""


class Service:
    """Answers requests. What is asked a second time has happened once."""

    def __init__(self, engine: Local, rules: ServeRules) -> None:
        self.rules, self.promises, self.desk, self.store = rules, Promises(), Desk(), Store(rules.out)
        self._engine = engine
        self._limits = Limits(engine.decoder.shape.vocabulary, engine.context)
        self._sessions: dict[str, _Session] = {}
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._learners: dict[str, Learner] = {}
        self._creating: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._samplers = Samplers(engine, self.store, rules.max_samplers)
        self._alone = asyncio.Lock()
        self.store.sweep()

    @property
    def context(self) -> int:
        """The longest sequence there can be."""
        return self._limits.context

    # Sessions

    def begin(self, key: str | None) -> str:
        """A new session; the same key begins the same one."""
        self._forget_silent(_SILENT_S)
        if key and key in self._keys:
            return self._keys[key]
        if len(self._sessions) >= _MOST_SESSIONS:
            raise Busy(f"there are {_MOST_SESSIONS} sessions; end some")
        id = secrets.token_hex(8)
        self._sessions[id] = _Session(time.monotonic())
        if key:
            self._keys[key] = id
            if len(self._keys) > _MOST_SESSIONS:
                self._keys.popitem(last=False)
        return id

    def hear(self, id: str) -> None:
        """A session lives."""
        self._session(id).heard = time.monotonic()

    def end(self, id: str) -> None:
        """Let go of all that a session has in memory. Checkpoints stay."""
        session = self._sessions.pop(id, None)
        for sampler in session.samplers if session else ():
            self._samplers.drop(sampler)
        for learner in [one for one in self._learners.values() if one.session == id]:
            learner.close()
            del self._learners[learner.id]

    def _session(self, id: str) -> _Session:
        if id not in self._sessions:
            raise Missing(f"there is no session {id!r}; it has ended, or the server was started anew")
        return self._sessions[id]

    def _forget_silent(self, seconds: float) -> None:
        now = time.monotonic()
        for id in [id for id, session in self._sessions.items() if now - session.heard > seconds]:
            self.end(id)

    # Policies

    def create(self, request: Field) -> tuple[str, str]:
        """A new policy: the ids of the request and of the policy."""
        session = request["session_id"].text()
        self.hear(session)
        id = f"{session}-{request['model_seq_id'].whole(0)}"
        about = self._about(request)
        promise = f"{id}.0"
        if promise not in self.promises:
            if self._full:
                self._forget_silent(_STALE_S)
            if self._full:
                raise Busy(f"{self.rules.max_models} models are being trained; wait, or start with more max_models")
            seed = request.get("lora_config", {}).object().get("seed", None)
            number = 0 if seed.value is None else seed.whole(0, 2**63 - 1)
            self._creating.add(id)
            self._start(promise, lambda: self._create(id, session, about, number))
        return promise, id

    @property
    def _full(self) -> bool:
        return len(self._learners) + len(self._creating) >= self.rules.max_models

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
        self._learners[id] = Learner(id, session, engine, about, self.promises, self._alone)
        return Result.json(model_id=id, type="create_model")

    def _about(self, request: Field) -> About:
        self.known(request["base_model"])
        lora = request.get("lora_config", {}).object()
        if request.get("optimizer_config", {}).object().get("type", "adamw").value != "adamw":
            request["optimizer_config"].wrong("this server has Adam alone")
        mlp, attention = (lora.get(part, True).flag() for part in ("train_mlp", "train_attn"))
        if not (mlp or attention):
            lora.wrong("train_mlp and train_attn are both false, which leaves nothing to train")
        return About(self.rules.model, lora.get("rank", 32).whole(1, 1024), mlp, attention, _notes(request))

    def known(self, base: Field) -> None:
        """Refuse another model than the one served."""
        if base.text() != self.rules.model:
            raise Missing(f"there is no model {base.shown} here; this server has {self.rules.model}")

    def learner(self, id: str) -> Learner:
        """A policy by its id."""
        if id not in self._learners:
            raise Missing(f"there is no model {id!r}; its session has ended, or the server was started anew")
        found = self._learners[id]
        self.hear(found.session)
        return found

    def learn(self, body: bytes) -> str:
        """Have a loss and its gradient computed."""
        sent = training(body)
        learner = self.learner(sent.model_id)
        work = partial(learner.learn, partial(lesson, sent, self._limits), sent.forward_only)
        return learner.submit(_number(Field(sent.seq_id, "request", "seq_id")), work)

    def _in_turn(self, request: Field, work: Callable[[Learner], Awaitable[Result]]) -> str:
        """Have something done to a policy. Whatever is wrong with the request shows when it is its turn, which it has then
        had: those that come after it do not wait for another.
        """
        learner = self.learner(request["model_id"].text())
        return learner.submit(_number(request["seq_id"]), partial(work, learner))

    def update(self, request: Field) -> str:
        """Have an update made."""

        async def work(learner: Learner) -> Result:
            return await learner.update(adam(request))

        return self._in_turn(request, work)

    def save(self, request: Field) -> str:
        """Have a checkpoint written to go on from."""

        async def work(learner: Learner) -> Result:
            as_, over = name(request["path"]), request.get("overwrite", False).flag()
            ttl = self._ttl(request)
            path = await self.store.save(learner.id, "weights", as_, learner.about, learner.save, overwrite=over, ttl=ttl)
            return Result.json(path=path, type="save_weights")

        return self._in_turn(request, work)

    def load(self, request: Field) -> str:
        """Have a policy go on from a checkpoint."""

        async def work(learner: Learner) -> Result:
            folder, about = self.checkpoint(request["path"])
            if about != learner.about:
                request["path"].wrong(f"is of {about}, this model is {learner.about}; create one like it")
            await learner.load(folder, request["optimizer"].flag())
            return Result.json(path=request["path"].text(), model_id=learner.id, type="load_weights")

        return self._in_turn(request, work)

    def checkpoint(self, path: Field) -> tuple[Path, About]:
        """Where a checkpoint is, and what it is of."""
        return self.store.find(*saved(path))

    def _ttl(self, request: Field) -> int | None:
        """How long a checkpoint is to be kept. What has expired makes room first."""
        for path in self.store.sweep():
            self._part(path)
        return seconds(request)

    async def forget(self, path: Field) -> None:
        """Remove a checkpoint from the disk."""
        self.checkpoint(path)
        self._part(path.text())
        await asyncio.to_thread(self.store.remove, *saved(path))

    def limit(self, path: Field, ttl: int | None) -> None:
        """Have a checkpoint expire so many seconds from now, or never."""
        self.store.limit(*saved(path), ttl)

    def _part(self, path: str) -> None:
        """Samplers of a checkpoint that is gone keep their weights, in memory alone: its name may come to mean others."""
        for session in self._sessions.values():
            for id in [id for id, of in session.samplers.items() if of == path]:
                session.samplers[id] = ""
                self._samplers.inherit(id, path)
        self._samplers.drop(path)

    def run(self, model: Field) -> tuple[About, list[Kept]]:
        """What a model is, trained now or once, and its checkpoints."""
        kept = self.store.all(name(model))
        if model.text() in self._learners:
            return self._learners[model.text()].about, kept
        if not kept:
            raise Missing(f"there is no model {model.shown}: it is not trained now, and has no checkpoint")
        return self.store.find(kept[-1].model, kept[-1].kind, kept[-1].name)[1], kept

    # Samplers

    def save_sampler(self, request: Field) -> str:
        """Have a policy's weights kept to sample with: under a name on disk, or in memory as long as its session lives."""

        async def work(learner: Learner) -> Result:
            kind, path = "save_weights_for_sampler", request.get("path", None)
            if path.value is not None:
                where = (learner.id, "sampler_weights", name(path))
                ttl = self._ttl(request)
                made = await self.store.save(*where, learner.about, learner.save, overwrite=False, ttl=ttl)
                self._samplers.drop(made)  # one of that name may have been removed while it was being loaded
                return Result.json(path=made, type=kind)
            id = f"{learner.id}-live-{request['seq_id'].value}"
            self._samplers.hold(id, await learner.sampler())
            self._session(learner.session).samplers[id] = ""
            return Result.json(sampling_session_id=id, type=kind)

        return self._in_turn(request, work)

    async def sampler_of(self, request: Field) -> str:
        """A sampler of the base model or of weights kept under a name; it is of these weights for ever."""
        session, path = request["session_id"].text(), request.get("model_path", None)
        self.hear(session)
        id = f"{session}-sampler-{request['sampling_session_seq_id'].whole(0)}"
        if path.value is None:
            self.known(request["base_model"])
        elif saved(path)[1] != "sampler_weights":
            path.wrong("is for training; save it with save_weights_for_sampler to sample with it")
        else:
            self.checkpoint(path)  # or there is none: what is in memory may have been removed
            await self._samplers.loaded(path.text())
        self._session(session).samplers[id] = path.value
        return id

    def about_sampler(self, id: str) -> dict[str, Any]:
        """What a sampler is of."""
        for session in self._sessions.values():
            if id in session.samplers:
                return {"sampler_id": id, "base_model": self.rules.model, "model_path": session.samplers[id] or None}
        raise Missing(f"there is no sampler {id!r}; its session has ended, or the server was started anew")

    async def sample(self, request: Field) -> tuple[str, list[str]]:
        """Have something sampled: the ids of the request and of what it will give."""
        wanted = wish(request, self._limits, self._engine.chat.ends, secrets.token_hex(16))
        about = self.about_sampler(wanted.sampler)
        promise = f"{wanted.sampler}.{wanted.number}"
        ids = [f"{promise}.{index}" for index in range(len(wanted.starts))]
        if promise in self.promises:
            return promise, ids
        if self.promises.waiting >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests are waiting")
        sampler = await self._sampler(wanted.sampler, about["model_path"])
        if promise not in self.promises:  # the same request may have come a second time meanwhile
            self._start(promise, lambda: self._sample(sampler, wanted))
        return promise, ids

    async def _sample(self, sampler: LocalSampler, wanted: Wish) -> Result:
        prompt_T = wanted.starts[0].prompt_T
        scores_T = await sampler.logprobs(prompt_T) if wanted.scored else None
        return sampled(await self.desk.sample(sampler, wanted.starts), prompt_T, scores_T, wanted.scored)

    async def _sampler(self, id: str, path: str | None) -> LocalSampler:
        if path is not None:
            return await self._samplers.loaded(path)
        in_memory = any(session.samplers.get(id) == "" for session in self._sessions.values())
        return self._samplers.held(id) if in_memory else self._samplers.base

    def _start(self, promise: str, work: Callable[[], Awaitable[Result]]) -> None:
        self.promises.make(promise)
        task = asyncio.create_task(self.promises.keep(promise, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def seconds(request: Field) -> int | None:
    """How long something is to be kept; None: for ever."""
    ttl = request.get("ttl_seconds", None)
    return None if ttl.value is None else ttl.whole(1, _LONGEST_S)


def _notes(request: Field) -> dict[str, str]:
    given = request.get("user_metadata", None)
    if given.value is None:
        return {}
    notes = {key: given.get(key).text() for key in given.names()}
    if len(json.dumps(notes)) > _MOST_NOTES:
        given.wrong(f"is too long; give at most {_MOST_NOTES} characters")
    return notes


def _number(field: Field) -> int:
    return field.whole(1, 2**62)

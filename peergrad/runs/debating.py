"""Debates for their own sake (SPEC 9.6): who holds which seat, and playing the debates that a transcript is missing."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peergrad.config import DebatesConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.imports import is_import_path
from peergrad.debate.play import play_all
from peergrad.debate.protocol import BaseProtocol, playable
from peergrad.debate.sampler import Answer, Sampler, Seats, all_of, answered
from peergrad.debate.types import Ask, Debate, Question, Reply
from peergrad.engines.registry import LOCAL, engine_of
from peergrad.runs.models import ModelPool, ModelRef, keys_of, model_ref, policy_of
from peergrad.runs.transcript_log import TranscriptLog
from peergrad.runs.watch import Watcher
from peergrad.settings import flat
from peergrad.tasks.lines import name_of

WEAK = LOCAL.default_model


@dataclass(frozen=True, slots=True)
class SessionCost:
    """What was spent so far in this session: requests to servers, tokens, dollars, seconds."""

    requests: int = 0
    prompt: int = 0
    sampled: int = 0
    usd: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class DebatesPlan:
    """Settings with what they name, checked: nothing heavy is loaded yet. ``refs`` are by seat, a judge's last."""

    config: DebatesConfig
    protocol: BaseProtocol
    questions: tuple[Question, ...]
    refs: tuple[ModelRef, ...]
    models: tuple[str, ...]
    out: Path

    @property
    def usual(self) -> frozenset[int]:
        """The seats that the model holds: whoever sits elsewhere is called by its seat."""
        others = {int(setting.partition("=")[0]) for setting in self.config.seats.seat}
        return frozenset(range(self.protocol.agents)) - others

    @property
    def facts(self) -> dict[str, Any]:
        """What decides what is said."""
        config = flat(self.config)
        settings = {name: config[name] for name in (*flat(self.config.debate), "style", "stops", "send_temperature", "seed")}
        settings["prompts"] = self.protocol.prompts  # what they say, wherever they lie
        if is_import_path(self.config.engine.engine):
            settings["engine"] = self.config.engine.engine
        seats = [
            {"model": one.base, "adapter": str(one.adapter) if one.adapter else None, "server": one.url} for one in self.refs
        ]
        agents = self.protocol.agents
        return {"seats": seats[:agents], "judge": seats[agents] if len(seats) > agents else None, "settings": settings}

    def usd(self, debate: Debate) -> float:
        """What the replies of a debate cost, in dollars; what was asked more than once is not in it."""
        turns = [*debate.turns, *([debate.verdict] if debate.verdict else [])]
        used = [turn.used for turn in turns if turn.used and self.refs[turn.agent].url]
        api = self.config.api
        return sum(one.prompt * api.price_in + one.sampled * api.price_out for one in used) / 1e6


def plan(config: DebatesConfig, questions: Sequence[Question], name: str, origin: str) -> DebatesPlan:
    """Check everything that can be checked without a model.

    ``name`` is for the file, if none is given, and ``origin`` says where the questions are from: other origins, other files.
    """
    own, seats = engine_of(config.engine), config.seats
    protocol = playable(config.debate.build(own.temperature))
    keys_of(config.api)
    named = _seats(seats.seat, protocol.agents)
    left = [seat for seat in range(protocol.agents) if seat not in named]
    model = config.engine.model
    if model and not left and len(named) == protocol.agents:
        raise UserError("model: holds no seat, since every seat is given to another; leave it out")
    if left and not model:
        model = "" if config.engine.base_url else own.default_model
        if not model:
            raise UserError("model: is not set; give the name that the server knows it by, or the engine")
    engine = replace(config.engine, model=model)
    refs = [
        _model_ref(f"seat {seat}", named[seat]) if seat in named else policy_of(engine) for seat in range(protocol.agents)
    ]
    models = [named.get(seat, model) for seat in range(protocol.agents)]
    if seats.judge is not None:
        if protocol.agents < 2:
            raise UserError("judge: has nothing to compare where only one agent answers; give agents 2 or more")
        refs.append(_model_ref("judge", seats.judge))
        models.append(seats.judge)
    if seats.out and seats.out.suffix != ".jsonl":
        raise UserError(f"out: {seats.out} is no .jsonl file; give a name that ends so")
    plan = DebatesPlan(config, protocol, tuple(questions), tuple(refs), tuple(models), Path())
    return replace(plan, out=seats.out or Path("debates") / f"{_file_name(plan.facts, name, origin)}.jsonl")


def _seats(settings: Sequence[str], agents: int) -> dict[int, str]:
    """The models that ``SEAT=MODEL`` settings name, by seat."""
    models: dict[int, str] = {}
    for setting in settings:
        number, equals, model = setting.partition("=")
        if not equals or not number.strip().isdecimal() or len(number) > 6 or not model.strip():
            raise UserError(
                "seat: is not SEAT=MODEL; give the seat's number, from 0, and a model, such as 0=gpt-x@https://…/v1"
            )
        seat = int(number)
        if seat >= agents:
            raise UserError(f"seat {seat}: there is none; {agents} agents have the seats 0 to {agents - 1}")
        if seat in models:
            raise UserError(f"seat {seat}: is given twice; give it one model")
        models[seat] = model.strip()
    return models


def _model_ref(where: str, name: str) -> ModelRef:
    try:
        return model_ref(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _file_name(facts: dict[str, Any], name: str, origin: str) -> str:
    """The name with a hash of all that decides what is said: other settings go to another file."""
    text = json.dumps([facts, origin])
    return f"{name_of(name).rpartition('-')[0] or 'debate'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


async def debate_all(plan: DebatesPlan, watch: Watcher) -> list[Debate]:
    """Play the debates that are missing, and save each as it ends. Returns all debates in the order of the questions."""
    log = TranscriptLog(plan.out, watch.warn)
    with log.opened(plan.facts) as debates:
        for question in plan.questions:
            if question.id in debates and debates[question.id].question != question:
                raise UserError(f"out: {plan.out} holds a debate {question.id!r} about another question; give another file")
        missing = [question for question in plan.questions if question.id not in debates]
        if before := [debates[question.id] for question in plan.questions if question.id in debates]:
            watch.resumed(before)
        if missing:
            watch.begin("debates", len(missing))
            config = plan.config
            hear = watch.heard if watch.listens else None
            loading = ModelPool(config.engine, config.api, config.seats.seed, watch.say, hear, expected=plan.refs)
            async with loading as pool:
                await _Debating(plan, log, watch, pool).play(missing, debates)
    return [debates[question.id] for question in plan.questions if question.id in debates]


class _Debating:
    """Debates under way."""

    def __init__(self, plan: DebatesPlan, log: TranscriptLog, watch: Watcher, pool: ModelPool) -> None:
        self._plan, self._log, self._watch, self._pool = plan, log, watch, pool
        self._local = SessionCost()
        self._since = time.monotonic()
        self._begun: dict[str, float] = {}

    async def play(self, missing: Sequence[Question], debates: dict[str, Debate]) -> None:
        def done(debate: Debate | None) -> None:
            cost, begun = self._cost(), self._since
            if debate:
                self._log.add(debate, asdict(cost))
                debates[debate.id] = debate
                begun = self._begun.get(debate.id, begun)
            self._watch.cost(cost)
            self._watch.debate(debate, time.monotonic() - begun)

        plan = self._plan
        sampler, judge_tokens = await self._sampler(), plan.protocol.max_tokens if plan.config.seats.judge else 0
        self._since = time.monotonic()  # loading is not part of it
        played = await play_all(plan.protocol, missing, sampler, judge_tokens=judge_tokens, done=done)
        self._log.note_spent(asdict(self._cost()))
        played.usable(most=0, note=f"What is done is in {plan.out}; the same command resumes it (a budget counts anew)")

    async def _sampler(self) -> Sampler:
        """A sampler for every seat; seats of one model share theirs. The model's is first: the key is its server's."""
        plan = self._plan
        of: dict[ModelRef, Sampler] = {}
        seats: dict[int, Sampler] = {}
        for seat in sorted(range(len(plan.refs)), key=lambda seat: (seat not in plan.usual, seat)):
            who = plan.refs[seat]
            where = "" if seat in plan.usual else "judge" if seat == plan.protocol.agents else f"seat {seat}"
            try:
                of[who] = of.get(who) or await self._pool.sampler(who)
            except (UserError, EngineError) as error:
                raise type(error)(f"{where}: {error}" if where else str(error)) from None
            seats[seat] = _Seat(of[who], where, self, local=who.url is None)
        return Seats(seats, seats[0])

    def asked(self, ask: Ask) -> None:
        """An agent is asked, perhaps the first one of its debate."""
        self._begun.setdefault(ask.debate, time.monotonic())

    def replied(self, ask: Ask, reply: Reply, local: bool) -> None:
        """An agent has spoken. What servers took is the meter's business."""
        if local and reply.tokens:
            prompt, sampled = len(reply.tokens.prompt_T), len(reply.tokens.ids_T)
            self._local = replace(self._local, prompt=self._local.prompt + prompt, sampled=self._local.sampled + sampled)
        self._watch.cost(self._cost())
        self._watch.replied(ask, reply)

    def _cost(self) -> SessionCost:
        spent = self._pool.meter.spent
        prompt, sampled = self._local.prompt + spent.prompt, self._local.sampled + spent.sampled
        return SessionCost(spent.requests, prompt, sampled, spent.usd, time.monotonic() - self._since)


class _Seat:
    """Who holds a seat: tells of every reply as it comes, and says in errors which seat it is."""

    hands_on_choices = True

    def __init__(self, sampler: Sampler, where: str, debating: _Debating, *, local: bool) -> None:
        self._sampler, self._where, self._debating, self._local = sampler, where, debating, local

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return await all_of([self._one(ask) for ask in asks])

    async def _one(self, ask: Ask) -> Answer:
        self._debating.asked(ask)
        try:
            (answer,) = await answered(self._sampler, [ask])
        except UserError as error:
            raise UserError(self._named(error)) from None
        if isinstance(answer, EngineError):
            return type(answer)(self._named(answer))
        self._debating.replied(ask, answer, self._local)
        return answer

    def _named(self, error: Exception) -> str:
        return f"{self._where}: {error}" if self._where else str(error)

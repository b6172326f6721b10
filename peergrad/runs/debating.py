"""Debates for their own sake (SPEC 9.6): who holds which seat, the transcript, and playing the debates it is missing."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from peergrad.config import ApiConfig, DebateConfig, EngineConfig, TaskConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import read_json
from peergrad.debate.personas import personas_toml
from peergrad.debate.play import play_all
from peergrad.debate.protocol import BaseProtocol, playable
from peergrad.debate.question import Question
from peergrad.debate.sampler import Answer, Sampler, all_of, answered
from peergrad.debate.settings import RESUMABLE, Range, check_settings, flat, is_import_path
from peergrad.debate.transcript import dump
from peergrad.debate.types import Ask, Debate, Reply, Tokens, Usage
from peergrad.engines.base import Spent
from peergrad.engines.registry import LOCAL, engine_of
from peergrad.runs import files
from peergrad.runs.models import ModelPool, ModelRef, keys_of, model_ref, models_by_seat, policy_of
from peergrad.runs.watch import Watcher
from peergrad.tasks.files import name_of

WEAK = LOCAL.default_model


@dataclass(frozen=True, kw_only=True)
class SeatsConfig:
    """Who holds which seat, and where the debates are kept."""

    seat: tuple[str, ...] = ()
    """SEAT=MODEL, for a seat that the model does not hold: 0=gpt-x@https://…, 1=./checkpoint. Seats count from 0."""
    judge: str | None = None
    """A model that does not debate: it sees the final solutions and votes, and its votes count."""
    style: Literal["open", "boxed", "number"] = "open"
    """Of typed questions: boxed asks for the final answer in \\boxed{}, number as a number; then answers can be compared."""
    questions: Annotated[int, Range(0)] = 0
    """Only so many questions of the task, from the first; 0 is all."""
    out: Annotated[Path | None, RESUMABLE] = None
    """The transcript, a .jsonl file; unset, one in debates/. The same command resumes what is there."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Another seed makes another debate."""


@dataclass(frozen=True, kw_only=True)
class DebatesConfig:
    """Debates for their own sake, without training. No model is the small built-in one."""

    debate: DebateConfig = field(default_factory=lambda: DebateConfig(max_tokens=512))
    seats: SeatsConfig = field(default_factory=SeatsConfig)
    task: TaskConfig = field(default_factory=lambda: TaskConfig(task=""))
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(model=""))
    api: ApiConfig = field(default_factory=ApiConfig)

    def __post_init__(self) -> None:
        check_settings(self)
        self.debate.build()


@dataclass(frozen=True)
class DebatesPlan:
    """Settings with what they name, checked: nothing heavy is loaded yet. ``refs`` are by seat, a judge's last."""

    config: DebatesConfig
    protocol: BaseProtocol
    questions: tuple[Question, ...]
    refs: tuple[ModelRef, ...]
    models: tuple[str, ...]
    out: Path

    def where(self, seat: int) -> str:
        """What errors call a seat: nothing where the model sits."""
        others = {int(setting.partition("=")[0]) for setting in self.config.seats.seat}
        return "judge" if seat == self.protocol.agents else f"seat {seat}" if seat in others else ""

    @property
    def facts(self) -> dict[str, Any]:
        """What decides what is said."""
        config = flat(self.config)
        settings = {name: config[name] for name in (*flat(self.config.debate), "style", "stops", "send_temperature", "seed")}
        settings["prompts"] = self.protocol.prompts  # what they say, wherever they lie
        settings["personas"] = personas_toml(self.config.debate.characters) if self.config.debate.personas else None
        for name in ("end_early", "extra_rounds", "agents_min"):  # unset, as where there was no such setting yet
            settings[name] = settings[name] or None
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
    named, model = models_by_seat(seats.seat, protocol.agents), config.engine.model
    if model and len(named) == protocol.agents:
        raise UserError("model: holds no seat, since every seat is given to another; leave it out")
    if not model and len(named) < protocol.agents:
        model = "" if config.engine.base_url else own.default_model
        if not model:
            raise UserError("model: is not set; give the name that the server knows it by, or the engine")
    models = [named.get(seat, model) for seat in range(protocol.agents)]
    if seats.judge is not None:
        if protocol.agents < 2:
            raise UserError("judge: has nothing to compare where only one agent answers; give agents 2 or more")
        models.append(seats.judge)
    if seats.out and seats.out.suffix != ".jsonl":
        raise UserError(f"out: {seats.out} is no .jsonl file; give a name that ends so")
    plan = DebatesPlan(config, protocol, tuple(questions), (), tuple(models), Path())
    refs: list[ModelRef] = []
    for seat, one in enumerate(models):
        with _naming(where := plan.where(seat)):
            refs.append(model_ref(one) if where else policy_of(replace(config.engine, model=one)))
    plan = replace(plan, refs=tuple(refs))
    # By a hash of all that decides what is said: other settings go to another file.
    hashed = hashlib.sha256(json.dumps([plan.facts, origin]).encode()).hexdigest()[:6]
    return replace(plan, out=seats.out or Path("debates") / f"{name_of(name).rpartition('-')[0] or 'debate'}-{hashed}.jsonl")


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Errors say which seat they are about."""
    try:
        yield
    except (UserError, EngineError) as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from None


class TranscriptLog:
    """Debates in a file, one a line, each whole or not there. ``NAME.about.json`` says what they were made with, and
    ``NAME.replies.jsonl`` holds the replies of debates that have not ended.
    """

    def __init__(self, path: Path, warn: files.Warn) -> None:
        self.path, self._warn = path, warn
        self._about_path = path.with_suffix(".about.json")
        self._replies_path = path.with_suffix(".replies.jsonl")
        self._about: dict[str, Any] = {}
        self._before = self._total = Spent()

    @contextmanager
    def opened(self, facts: Mapping[str, Any]) -> Iterator[dict[str, Debate]]:
        """Lock the file and give the debates in it, by id. A file whose debates were made with other facts is refused."""
        files.make(self.path.parent)
        with files.locked(self.path, f"another process is writing to {self.path}; wait for it or give another file"):
            try:
                self._begin(dict(facts))
                yield files.read_debates(self.path, self._warn, strict=True)
            finally:
                with suppress(OSError):  # removed meanwhile, or a name too long for the file beside it
                    if not self.path.stat().st_size and not (self._total.requests or self._total.sampled):
                        self.path.unlink()
                        self._about_path.unlink(missing_ok=True)

    def add(self, debate: Debate, spent: Spent) -> None:
        """Add a debate; it is on disk when this returns. ``spent`` is what was spent since the file was opened."""
        files.append(self.path, dump(debate).encode() + b"\n")
        self.note_spent(spent)

    def note_spent(self, spent: Spent) -> None:
        """Write down what was spent since the file was opened, together with what was spent before."""
        total = self._total = self._before.plus(spent)
        self._about["spent"] = asdict(replace(total, usd=round(total.usd, 9), seconds=round(total.seconds, 3)))
        files.write(self._about_path, files.json_bytes(self._about, indent=2) + b"\n")

    def add_reply(self, ask: Ask, reply: Reply) -> None:
        """Keep a reply until its debate ends."""
        line = json.dumps({"ask": _hash(ask), "reply": asdict(reply)}, default=lambda array: array.tolist())
        files.append(self._replies_path, line.encode() + b"\n", sync=False)

    def replies(self) -> dict[str, Reply]:
        """The replies that were kept, by a hash of what was asked; what can't be read is asked again."""
        kept: dict[str, Reply] = {}
        for line in files.read_records(self._replies_path):
            with suppress(KeyError, TypeError, ValueError, OverflowError, AttributeError):
                tokens, usage = line["reply"].pop("tokens"), line["reply"].pop("usage")
                told = {
                    "tokens": Tokens.of(*tokens.values()) if tokens else None,
                    "usage": Usage(**usage) if usage else None,
                }
                kept[line["ask"]] = Reply(**line["reply"], **told)
        return kept

    def forget_replies(self) -> None:
        """All debates have ended."""
        self._replies_path.unlink(missing_ok=True)

    def _begin(self, facts: dict[str, Any]) -> None:
        if not self._about_path.exists():
            if self.path.stat().st_size:
                raise UserError(f"out: {self.path} holds something else; give another file")
            self.forget_replies()  # of a transcript that was removed
            self._about = {"format": 1} | facts
            self.note_spent(Spent())
            return
        self._about = read_json(self._about_path)
        try:
            self._before = self._total = Spent().plus(Spent(**self._about["spent"]))
        except (KeyError, TypeError):
            raise UserError(f"{self._about_path}: is damaged; restore it, or give another file (out)") from None
        files.check_same_settings(f"the transcript {self.path}", self._about, json.loads(json.dumps(facts)))


def _hash(ask: Ask) -> str:
    """All that decides what is said, besides the settings."""
    asked = [ask.debate, ask.agent, ask.turn, *((message.role, message.text) for message in ask.messages)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


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
            on_text = watch.heard if watch.listens else None
            loading = ModelPool(config.engine, config.api, config.seats.seed, watch.say, on_text, expected=plan.refs)
            async with loading as pool:
                await _Debating(plan, log, watch, pool).play(missing, debates)
    return [debates[question.id] for question in plan.questions if question.id in debates]


class _Debating:
    """Debates under way: a sampler for all seats, which tells of every reply as it comes and names seats in errors."""

    forwards_choices = True

    def __init__(self, plan: DebatesPlan, log: TranscriptLog, watch: Watcher, pool: ModelPool) -> None:
        self._plan, self._log, self._watch, self._pool = plan, log, watch, pool
        self._samplers: dict[ModelRef, Sampler] = {}
        self._local = Spent()  # what servers took is counted by the pool's meter
        self._since = time.monotonic()
        self._begun: dict[str, float] = {}
        self._kept = log.replies()

    async def play(self, missing: Sequence[Question], debates: dict[str, Debate]) -> None:
        """Play debates about these questions, and save each as it ends."""

        def done(debate: Debate | None) -> None:
            spent, begun = self._spent(), self._since
            if debate:
                self._log.add(debate, spent)
                debates[debate.id] = debate
                begun = self._begun.get(debate.id, begun)
            self._watch.cost(spent)
            self._watch.debate(debate, time.monotonic() - begun)

        plan = self._plan
        # The model's is loaded first: the key is its server's.
        for seat in sorted(range(len(plan.refs)), key=lambda seat: (plan.where(seat) != "", seat)):
            if (ref := plan.refs[seat]) not in self._samplers:
                with _naming(plan.where(seat)):
                    self._samplers[ref] = await self._pool.sampler(ref)
        self._since = time.monotonic()  # loading is not part of it
        judge_tokens = plan.protocol.max_tokens if plan.config.seats.judge else 0
        try:
            played = await play_all(plan.protocol, missing, self, judge_tokens=judge_tokens, done=done)
        finally:
            self._log.note_spent(self._spent())
        if not played.dropped:
            self._log.forget_replies()
        played.usable(most=0, note=f"What is done is in {plan.out}; the same command resumes it (a budget counts anew)")

    async def sample(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        return await all_of([self._answer(ask) for ask in asks])

    async def _answer(self, ask: Ask) -> Answer:
        self._begun.setdefault(ask.debate, time.monotonic())
        ref = self._plan.refs[ask.agent]
        if kept := self._kept.get(_hash(ask)):  # said before the debate was interrupted
            self._watch.replied(ask, kept)
            return kept
        try:
            with _naming(self._plan.where(ask.agent)):
                (answer,) = await answered(self._samplers[ref], [ask])
                if isinstance(answer, EngineError):
                    raise answer
        except EngineError as error:
            return error
        if ref.url is None and answer.tokens:
            self._local = self._local.plus(Spent(0, len(answer.tokens.prompt_T), len(answer.tokens.ids_T)))
        self._log.add_reply(ask, answer)
        self._watch.cost(self._spent())
        self._watch.replied(ask, answer)
        return answer

    def _spent(self) -> Spent:
        return self._pool.meter.spent.plus(replace(self._local, seconds=time.monotonic() - self._since))

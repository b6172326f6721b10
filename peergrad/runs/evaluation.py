"""An evaluation from its settings to its result (SPEC 9.1): play what is missing, then measure all of it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peergrad.config import EvalConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.play import play_all
from peergrad.debate.protocols import Direct, Parallel, Sequential
from peergrad.debate.sampler import Sampler, Seats, all_of
from peergrad.debate.types import Debate, Protocol, Question
from peergrad.engines.shared.meter import Meter
from peergrad.measure.budget import cost, draws
from peergrad.measure.outcome import Outcome, counted, debate_outcome, direct_outcome, joined, seat_outcome
from peergrad.measure.result import result
from peergrad.runs.eval_folder import EvalFolder
from peergrad.runs.model_pool import ModelPool, ModelRef, model_ref, policy_of, weights_of
from peergrad.settings import flat, from_file, to_toml
from peergrad.tasks.base import Grader, Task
from peergrad.tasks.files import fingerprint
from peergrad.tasks.open import left_out

# What may be changed when an evaluation goes on: it decides how fast it is, not what is measured.
_FREE = ("out", "device", "threads", "kv_gb", "max_rows", "deadline_s", "key_env", "max_concurrent", "timeout_s", "retries")
_FREE += ("price_in", "price_out", "budget_tokens", "budget_usd", "server_keys")


class EvalWatcher(typing.Protocol):
    """Told how an evaluation goes."""

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def begin(self, part: str, debates: int) -> None:
        """Something is played: so many debates."""
        ...

    def debate(self, debate: Debate | None) -> None:
        """One of them ended; ``None`` was dropped."""
        ...


@dataclass(frozen=True)
class EvalPlan:
    """An evaluation's settings with what they name, checked: nothing heavy is loaded yet."""

    config: EvalConfig
    protocol: Parallel | Sequential
    task: Task
    questions: tuple[Question, ...]
    policy: ModelRef
    opponent: ModelRef | None
    notes: tuple[str, ...] = ()

    @property
    def k(self) -> int:
        """How many independent answers there are at least."""
        return self.config.measure.samples or self.config.debate.agents


def plan(config: EvalConfig, task: Task, trained: Set[tuple[str, str | None]] = frozenset()) -> EvalPlan:
    """Check everything that can be checked without a model. What was trained on (text, answer) is not asked."""
    every = [task[index] for index in range(len(task))]
    questions, notes = _to_ask([question for question in every if (question.text, question.answer) not in trained])
    if not questions:
        why = "were all trained on" if trained and any(q.known for q in every) else "have no answers"
        raise UserError(f"task: its questions {why}, so there is nothing to measure; name others")
    if len(every) > len(questions) and trained:
        notes.insert(0, f"{len(every)} questions, less those that the run was trained on and those that repeat")
    most = config.measure.questions or len(questions)
    if most > len(questions):
        notes.append(f"there are {len(questions)} questions to ask, not {most}")
    questions = questions[:most]
    policy, opponent = policy_of(config.engine), None
    if config.measure.mode == "role-averaged":
        name = config.measure.opponent
        opponent = replace(policy, adapter=None) if name == "base" else model_ref(name)
        if opponent == policy:
            raise UserError(f"opponent: {name} is the model itself; name another, or use mode debate")
    notes += [note] if (note := left_out(task)) else []
    return EvalPlan(config, config.debate.build(config.engine), task, tuple(questions), policy, opponent, tuple(notes))


def _to_ask(questions: Sequence[Question]) -> tuple[list[Question], list[str]]:
    """Those that have an answer, each once; and what there is to say about the others."""
    answered = [question for question in questions if question.known]
    first: dict[tuple[str, str | None], Question] = {}
    for question in answered:
        first.setdefault((question.text, question.answer), question)
    distinct, notes = list(first.values()), list[str]()
    if without := len(questions) - len(answered):
        notes.append(f"{without} questions have no answer and are left out")
    if again := len(answered) - len(distinct):
        notes.append(f"{again} questions repeat others and are left out")
    return distinct, notes


async def evaluate(
    made: EvalPlan,
    out: Path,
    watch: EvalWatcher,
    show: Callable[[Mapping[str, Any]], str],
    sampler_of: Callable[[ModelRef], Awaitable[Sampler]] | None = None,
) -> dict[str, Any]:
    """Evaluate, in a folder; one that was interrupted goes on where it was. ``show`` turns the result into a table."""
    for note in made.notes:
        watch.warn(note)
    folder = EvalFolder(out, watch.warn)
    if not folder.exists:
        folder.refuse_strangers(to_toml(made.config))
    with folder.locked():
        if folder.begun:
            _same(folder, made)
            folder.make()
            if folder.finished and not (found := folder.result())["dropped"]:
                watch.say(f"{folder.path} is finished; this is what was found. Give another folder (out) to evaluate again")
                return found
        expected = (made.policy, made.opponent or made.policy)
        config = made.config
        async with ModelPool(config.engine, config.api, config.measure.seed, watch.say, expected=expected) as pool:
            pool.meter.spent = folder.spent()  # a budget is for all sittings together
            sampler_of = sampler_of or pool.sampler
            policy = await sampler_of(made.policy)
            opponent = await sampler_of(made.opponent) if made.opponent else None
            if not folder.begun:
                folder.begin(to_toml(made.config), _facts(made))
            work = _Evaluation(made, folder, watch, pool.meter)
            try:
                measure = await work.play(policy, opponent)
            finally:
                folder.flush()
        outcome = await asyncio.to_thread(measure)  # comparing answers may take long, and signals must be heard
        about = _facts(made) | {"dropped": work.dropped, "times": folder.times(), "settings": _plain(flat(made.config))}
        found = result(outcome, made.task.name, {q.id: fingerprint([q])[:16] for q in made.questions}) | about
        folder.publish(found, show(found))
    return found


@dataclass(frozen=True)
class _Batch:
    """Debates to play: one about each question, named by a prefix."""

    prefix: str
    protocol: Protocol
    questions: Sequence[Question]


class _Evaluation:
    """One evaluation under way."""

    def __init__(self, made: EvalPlan, folder: EvalFolder, watch: EvalWatcher, meter: Meter) -> None:
        self.made, self.folder, self.watch, self.meter = made, folder, watch, meter
        self.dropped: dict[str, str] = {}
        self._kept: dict[str, dict[str, Debate]] = {}

    async def play(self, policy: Sampler, opponent: Sampler | None) -> Callable[[], Outcome]:
        """Play all parts; what is returned measures them. Questions of which anything was dropped are left out."""
        mode, by = self.made.config.measure.mode, self.made.config.measure.cost
        protocol, tokens = self.made.protocol, self.made.config.debate.max_tokens
        direct = await self._once("direct", Direct(max_tokens=tokens), policy, "direct/")
        if opponent is not None:
            seats = [
                await self._once("seats", protocol, Seats({seat: policy}, opponent), f"seat-{seat}/")
                for seat in range(protocol.agents)
            ]
            questions = self._whole(direct, *seats)
            ids = [question.id for question in questions]
            by_seat = [[debates[name] for name in ids] for debates in seats]
            return lambda: joined(self._direct(ids, direct, {}), seat_outcome(ids, by_seat, self._grade))
        debates = await self._once("debate", protocol, policy, "debate/") if mode == "debate" else {}
        # Where nobody counts tokens, equal cost can't be had: there are k independent answers, and that is all.
        budgets = (
            {name: cost(debate, by) or 0 for name, debate in debates.items()} if counted(list(debates.values())) else {}
        )
        temperature = self.made.config.measure.sample_temperature
        sample = Direct(max_tokens=tokens, temperature=temperature)
        samples = await self._drawn("samples", lambda _: sample, policy, budgets, self.made.k)
        if mode == "direct":
            ids = [question.id for question in self._whole(direct, samples)]
            return lambda: self._direct(ids, direct, samples)
        chains = await self._drawn("alone", self._alone, policy, budgets, 1) if budgets else {name: [] for name in debates}
        ids = [question.id for question in self._whole(direct, debates, samples, chains)]
        return lambda: joined(
            self._direct(ids, direct, samples),
            debate_outcome(
                ids,
                [debates[name] for name in ids],
                [samples[name] for name in ids],
                [chains[name] for name in ids],
                self._grade,
                by,
            ),
        )

    @property
    def _grade(self) -> Grader:
        return self.made.task.grade

    def _direct(self, ids: list[str], direct: Mapping[str, Debate], samples: Mapping[str, list[Debate]]) -> Outcome:
        answers, drawn = [direct[name] for name in ids], [samples.get(name, []) for name in ids]
        return direct_outcome(ids, answers, drawn, self.made.k, self._grade, self.made.config.measure.cost)

    def _alone(self, draw: int) -> Protocol:
        """Somebody who debates with nobody: as many rounds, seeing only itself, in each of the debaters' characters."""
        protocol = self.made.protocol
        if isinstance(protocol, Parallel):
            return replace(protocol, agents=1, personas=(protocol.persona(draw % protocol.agents),))
        return replace(protocol, agents=1)

    async def _once(self, part: str, protocol: Protocol, sampler: Sampler, prefix: str) -> dict[str, Debate]:
        """One debate about each question, by the question's id."""
        batch = _Batch(prefix, protocol, self.made.questions)
        debates = await self._play(part, [batch], sampler)
        return {name.removeprefix(prefix): debate for name, debate in debates.items() if name.startswith(prefix)}

    async def _drawn(
        self, part: str, protocol: Callable[[int], Protocol], sampler: Sampler, budgets: Mapping[str, int], least: int
    ) -> dict[str, list[Debate]]:
        """Independent debates about each question, at least so many, and until they cost what may be spent on it."""
        questions = [q for q in self.made.questions if not budgets or q.id in budgets]
        drawn: dict[str, list[Debate]] = {question.id: [] for question in questions}
        wanted = {question.id: 0 for question in questions}
        by = self.made.config.measure.cost
        while True:
            spent = [[cost(debate, by) or 0 for debate in drawn[q.id]] for q in questions]
            more = draws(spent, [budgets.get(q.id, 0) for q in questions], least)
            if not any(more):
                return drawn
            by_draw: dict[int, list[Question]] = {}
            for question, count in zip(questions, more, strict=True):
                for draw in range(wanted[question.id], wanted[question.id] + count):
                    by_draw.setdefault(draw, []).append(question)
                wanted[question.id] += count
            batches = [_Batch(f"{part}-{draw}/", protocol(draw), asked) for draw, asked in sorted(by_draw.items())]
            debates = await self._play(part, batches, sampler)
            for question in list(questions):
                ids = [f"{part}-{draw}/{question.id}" for draw in range(wanted[question.id])]
                if all(name in debates for name in ids):
                    drawn[question.id] = [debates[name] for name in ids]
                else:  # something was dropped: the question is left out
                    questions.remove(question)
                    del drawn[question.id]

    async def _play(self, part: str, batches: Sequence[_Batch], sampler: Sampler) -> dict[str, Debate]:
        """Play what is not kept yet of some batches, all at the same time; returns all of the part that there is."""
        kept = self._kept.get(part)
        if kept is None:
            kept = self._kept[part] = await asyncio.to_thread(self.folder.kept, part)
        missing = [
            replace(batch, questions=[q for q in batch.questions if batch.prefix + q.id not in kept]) for batch in batches
        ]
        total = sum(len(batch.questions) for batch in missing)
        if not total:
            return kept
        self.watch.begin(part, total)
        started, sampled, spent = time.monotonic(), 0, self.meter.spent

        def done(debate: Debate | None) -> None:
            nonlocal sampled
            if debate:
                kept[debate.id] = debate
                sampled += sum(turn.used.sampled for turn in debate.turns if turn.used)
                self.folder.keep(part, debate)
            self.watch.debate(debate)

        played = await all_of(
            [play_all(b.protocol, b.questions, sampler, prefix=b.prefix, done=done) for b in missing if b.questions]
        )
        self.folder.flush()
        self.folder.took(part, time.monotonic() - started, sampled, self.meter.spent.less(spent))
        if halted := next((one.halted for one in played if one.halted), None):
            raise EngineError(f"{halted}. What is done is kept")
        dropped = {name: why for one in played for name, why in one.dropped.items()}
        self.dropped |= dropped
        if not kept:
            raise EngineError(f"all {total} debates were dropped; the first because: {next(iter(dropped.values()))}")
        return kept

    def _whole(self, *parts: Mapping[str, Any]) -> list[Question]:
        """The questions that every part has."""
        found = [question for question in self.made.questions if all(question.id in part for part in parts)]
        if not found:
            why = next(iter(self.dropped.values()), "nothing was played")
            raise EngineError(f"no question was answered in full; the first because: {why}")
        return found


def _facts(made: EvalPlan) -> dict[str, Any]:
    return {
        "format": 1,
        "model": made.config.engine.model,
        "base": made.policy.base,
        "server": made.policy.url,
        "adapter_sha256": _weights(made.policy),
        "opponent_sha256": _weights(made.opponent),
        "task": made.task.name,
        "questions_sha256": fingerprint(made.questions),
        "asked": len(made.questions),
    }


def _weights(who: ModelRef | None) -> str | None:
    """A hash of a model's adapter, which training may change; base models are taken to stay what they are."""
    if who is None or who.adapter is None:
        return None
    path = weights_of(who.adapter)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"model: {path} can't be read ({error.strerror})") from None


def _same(folder: EvalFolder, made: EvalPlan) -> None:
    """Refuse to go on with an evaluation of other questions, of another model or with other settings."""
    facts, new = folder.facts, _facts(made)
    alike = {"questions_sha256": "questions", "adapter_sha256": "weights", "opponent_sha256": "an opponent's weights"}
    for name, what in alike.items():
        if facts.get(name) != new[name]:
            raise UserError(f"out: the evaluation in {folder.path} is of other {what}; give another folder (out)")
    before = flat(from_file(EvalConfig(), folder.path / "config.toml"))
    for name, value in flat(made.config).items():
        if name not in _FREE and before[name] != value:
            raise UserError(
                f"{name}: the evaluation in {folder.path} has {before[name]}, not {value}; give the same, or another out"
            )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back."""
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
    }

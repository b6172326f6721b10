"""An evaluation from its settings to its result (SPEC 9.1): play what is missing, then measure all of it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peergrad.config import EvalConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol, playable
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Sampler, Seats, all_of
from peergrad.debate.types import Debate, Question
from peergrad.engines.base import Engine
from peergrad.engines.registry import engine_of
from peergrad.engines.shared.meter import Meter
from peergrad.measure.budget import cost, draws
from peergrad.measure.outcome import Outcome, counted, debate_outcome, direct_outcome, joined, result, seat_outcome
from peergrad.runs.eval_folder import EvalFolder, read_result
from peergrad.runs.models import ModelPool, ModelRef, model_ref, policy_of, weights_of
from peergrad.runs.watch import Watcher
from peergrad.settings import flat
from peergrad.tasks.base import Grader, Task
from peergrad.tasks.open import fingerprint, left_out


@dataclass(frozen=True)
class EvalPlan:
    """An evaluation's settings with what they name, checked: nothing heavy is loaded yet."""

    config: EvalConfig
    protocol: BaseProtocol
    task: Task
    questions: tuple[Question, ...]
    policy: ModelRef
    opponent: ModelRef | None
    notes: tuple[str, ...] = ()

    @property
    def k(self) -> int:
        """How many independent answers there are at least."""
        return self.config.measure.samples or self.config.debate.agents

    @property
    def facts(self) -> dict[str, Any]:
        """What is evaluated."""
        return {
            "format": 1,
            "model": self.config.engine.model,
            "base": self.policy.base,
            "server": self.policy.url,
            "adapter_sha256": _weights(self.policy, engine_of(self.config.engine)),
            "opponent_sha256": _weights(self.opponent, engine_of(self.config.engine)),
            "task": self.task.name,
            "questions_sha256": fingerprint(self.questions),
            "asked": len(self.questions),
        }


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
    protocol = playable(config.debate.build(engine_of(config.engine).temperature))
    return EvalPlan(config, protocol, task, tuple(questions), policy, opponent, tuple(notes))


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
    plan: EvalPlan,
    out: Path,
    watch: Watcher,
    show: Callable[[Mapping[str, Any]], str],
    sampler_of: Callable[[ModelRef], Awaitable[Sampler]] | None = None,
) -> dict[str, Any]:
    """Evaluate, in a folder; an evaluation that was interrupted is resumed. ``show`` turns the result into a table."""
    for note in plan.notes:
        watch.warn(note)
    folder, config, facts = EvalFolder(out, watch.warn), plan.config, plan.facts
    with folder.opened(config, facts, fixed=("base_url",)):
        if folder.resumable and folder.finished and not (before := read_result(folder.path))["dropped"]:
            watch.say(f"{folder.path} is finished; this is its result. Give another folder (out) to evaluate again")
            return before
        expected = (plan.policy, plan.opponent or plan.policy)
        async with ModelPool(config.engine, config.api, config.measure.seed, watch.say, expected=expected) as pool:
            pool.meter.spent = folder.spent()  # a budget is for all sessions together
            sampler_of = sampler_of or pool.sampler
            policy = await sampler_of(plan.policy)
            opponent = await sampler_of(plan.opponent) if plan.opponent else None
            folder.begin(config, facts)
            evaluation = _Evaluation(plan, folder, watch, pool.meter)
            try:
                measure = await evaluation.play(policy, opponent)
            finally:
                folder.flush()
        outcome = await asyncio.to_thread(measure)  # comparing answers may take long, and signals must be heard
        about = facts | {"dropped": evaluation.dropped, "times": folder.times(), "settings": _plain(flat(config))}
        measured = result(outcome, plan.task.name, {q.id: fingerprint([q])[:16] for q in plan.questions}) | about
        folder.publish(measured, show(measured))
    return measured


@dataclass(frozen=True)
class _Batch:
    """Debates to play: one about each question, named by a prefix."""

    prefix: str
    protocol: BaseProtocol
    questions: Sequence[Question]


class _Evaluation:
    """One evaluation under way."""

    def __init__(self, plan: EvalPlan, folder: EvalFolder, watch: Watcher, meter: Meter) -> None:
        self.plan, self.folder, self.watch, self.meter = plan, folder, watch, meter
        self.dropped: dict[str, str] = {}
        self._debates: dict[str, dict[str, Debate]] = {}

    async def play(self, policy: Sampler, opponent: Sampler | None) -> Callable[[], Outcome]:
        """Play all parts; what is returned measures them. Questions of which anything was dropped are left out."""
        mode, by = self.plan.config.measure.mode, self.plan.config.measure.cost
        protocol, tokens = self.plan.protocol, self.plan.config.debate.max_tokens
        direct = await self._once("direct", Direct(max_tokens=tokens, prompts=protocol.prompts), policy, "direct/")
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
        temperature = self.plan.config.measure.sample_temperature
        sample = Direct(max_tokens=tokens, temperature=temperature, prompts=protocol.prompts)
        samples = await self._drawn("samples", lambda _: sample, policy, budgets, self.plan.k)
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
        return self.plan.task.grade

    def _direct(self, ids: list[str], direct: Mapping[str, Debate], samples: Mapping[str, list[Debate]]) -> Outcome:
        answers, drawn = [direct[name] for name in ids], [samples.get(name, []) for name in ids]
        return direct_outcome(ids, answers, drawn, self.plan.k, self._grade, self.plan.config.measure.cost)

    def _alone(self, draw: int) -> BaseProtocol:
        """Somebody who debates with nobody: as many rounds, seeing only itself, in each of the debaters' characters."""
        return self.plan.protocol.alone(draw % self.plan.protocol.agents)

    async def _once(self, part: str, protocol: BaseProtocol, sampler: Sampler, prefix: str) -> dict[str, Debate]:
        """One debate about each question, by the question's id."""
        batch = _Batch(prefix, protocol, self.plan.questions)
        debates = await self._play(part, [batch], sampler)
        return {name.removeprefix(prefix): debate for name, debate in debates.items() if name.startswith(prefix)}

    async def _drawn(
        self, part: str, protocol: Callable[[int], BaseProtocol], sampler: Sampler, budgets: Mapping[str, int], least: int
    ) -> dict[str, list[Debate]]:
        """Independent debates about each question, at least so many, and until they cost what may be spent on it."""
        questions = [q for q in self.plan.questions if not budgets or q.id in budgets]
        drawn: dict[str, list[Debate]] = {question.id: [] for question in questions}
        wanted = {question.id: 0 for question in questions}
        by = self.plan.config.measure.cost
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
        """Play the debates of some batches that are missing, all at the same time; returns the debates of the part."""
        if part not in self._debates:
            self._debates[part] = await asyncio.to_thread(self.folder.debates, part)
        debates = self._debates[part]
        missing = [
            replace(batch, questions=[q for q in batch.questions if batch.prefix + q.id not in debates]) for batch in batches
        ]
        total = sum(len(batch.questions) for batch in missing)
        if not total:
            return debates
        self.watch.begin(part, total)
        started, sampled, spent = time.monotonic(), 0, self.meter.spent

        def done(debate: Debate | None) -> None:
            nonlocal sampled
            if debate:
                debates[debate.id] = debate
                sampled += sum(turn.used.sampled for turn in debate.turns if turn.used)
                self.folder.add(part, debate)
            self.watch.debate(debate)

        played = await all_of(
            [play_all(b.protocol, b.questions, sampler, prefix=b.prefix, done=done) for b in missing if b.questions]
        )
        self.folder.flush()
        self.folder.note_cost(part, time.monotonic() - started, sampled, self.meter.spent.less(spent))
        dropped = {name: why for one in played for name, why in one.dropped.items()}
        self.dropped |= dropped
        halted = next((one.halted for one in played if one.halted), None)
        Played(tuple(debates.values()), dropped, halted=halted).usable(note="What is done is kept")
        return debates

    def _whole(self, *parts: Mapping[str, Any]) -> list[Question]:
        """The questions that every part has."""
        questions = [question for question in self.plan.questions if all(question.id in part for part in parts)]
        if not questions:
            why = next(iter(self.dropped.values()), "nothing was played")
            raise EngineError(f"no question was answered in full; the first because: {why}")
        return questions


def _weights(who: ModelRef | None, engine: Engine) -> str | None:
    """A hash of a model's adapter, which training may change; base models are taken to stay what they are."""
    if who is None or who.adapter is None:
        return None
    path = weights_of(who.adapter, engine)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"model: {path} can't be read ({error.strerror})") from None


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back."""
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
    }

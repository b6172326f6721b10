"""An evaluation (SPEC 9.1): its plan, its folder (docs/reference/eval.md), playing what is missing, and the result."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peergrad.config import EvalConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.head_to_head import HeadToHead
from peergrad.debate.play import Played, play_all
from peergrad.debate.protocol import BaseProtocol, playable
from peergrad.debate.protocols import Direct
from peergrad.debate.question import Question
from peergrad.debate.sampler import Sampler, Seats, all_of
from peergrad.debate.settings import flat
from peergrad.debate.transcript import dump
from peergrad.debate.types import Debate
from peergrad.engines.base import Meter, Spent
from peergrad.engines.registry import engine_of
from peergrad.measure.outcome import (
    Outcome,
    cost,
    counted,
    debate_outcome,
    direct_outcome,
    draws,
    joined,
    pair_outcome,
    result,
    seat_outcome,
)
from peergrad.runs import files
from peergrad.runs.models import ModelPool, ModelRef, model_ref, policy_of, weights_sha256
from peergrad.runs.results import read_result
from peergrad.runs.watch import Watcher
from peergrad.tasks.base import Task
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
    judge: ModelRef | None = None
    notes: tuple[str, ...] = ()

    @property
    def k(self) -> int:
        """How many independent answers there are at least."""
        return self.config.measure.samples or self.config.debate.agents

    @property
    def facts(self) -> dict[str, Any]:
        """What is evaluated."""
        debate = self.config.debate
        own = [repr(texts)] if (texts := self.protocol.prompts) else []
        own += [repr(debate.characters)] if debate.personas else []
        return {
            "format": 1,
            "model": self.config.engine.model,
            "base": self.policy.base,
            "server": self.policy.url,
            "adapter_sha256": weights_sha256(self.policy, engine_of(self.config.engine)),
            "opponent_sha256": self.opponent and weights_sha256(self.opponent, engine_of(self.config.engine)),
            "judge_sha256": self.judge and weights_sha256(self.judge, engine_of(self.config.engine)),
            "task": self.task.name,
            "questions_sha256": fingerprint(self.questions),
            "prompts_sha256": hashlib.sha256("".join(own).encode()).hexdigest() if own else None,
            "asked": len(self.questions),
        }


def plan(config: EvalConfig, task: Task, trained: Set[tuple[str, str | None]] = frozenset()) -> EvalPlan:
    """Check everything that can be checked without a model. What was trained on (text, answer) is not asked."""
    every = [task[index] for index in range(len(task))]
    new = [question for question in every if (question.text, question.answer) not in trained]
    mode = config.measure.mode
    open_ended = mode == "head-to-head" or (mode == "role-averaged" and not any(question.known for question in new))
    answered = [question for question in new if question.known or open_ended]
    distinct: dict[tuple[str, str | None], Question] = {}
    for question in answered:
        distinct.setdefault((question.text, question.answer), question)
    questions, notes = list(distinct.values()), list[str]()
    if not questions:
        seen = trained and any(q.known or open_ended for q in every)
        why, how = ("were all trained on", "") if seen else ("have no answers", ", or --mode head-to-head or role-averaged")
        raise UserError(f"task: its questions {why}, so there is nothing to measure; name others{how}")
    if len(every) > len(questions) and trained:
        notes.append(f"{len(every)} questions, less those that the run was trained on and those that repeat")
    if without := len(new) - len(answered):
        notes.append(f"{without} questions have no answer and are left out")
    if again := len(answered) - len(questions):
        notes.append(f"{again} questions repeat others and are left out")
    most = config.measure.questions or len(questions)
    if most > len(questions):
        notes.append(f"there are {len(questions)} questions to ask, not {most}")
    questions = questions[:most]
    policy, opponent = policy_of(config.engine), None
    if mode in ("role-averaged", "head-to-head"):
        name = config.measure.opponent
        opponent = replace(policy, adapter=None) if name == "base" else model_ref(name)
        if opponent == policy:
            raise UserError(f"opponent: {name} is the model itself; name another, or use mode debate")
    judge = model_ref(config.measure.judge) if config.measure.judge is not None else None
    notes += [note] if (note := left_out(task)) else []
    protocol = playable(config.debate.build(engine_of(config.engine).temperature))
    if mode == "head-to-head":
        protocol = HeadToHead(
            agents=3 if judge else 2,
            max_tokens=protocol.max_tokens,
            prompts=protocol.prompts,
            vote_form=config.measure.vote_form,
            judge_form=config.measure.judge_form,
        )
    return EvalPlan(config, protocol, task, tuple(questions), policy, opponent, judge, tuple(notes))


class EvalFolder(files.WorkFolder):
    """Reads and writes the folder of one evaluation."""

    noun, facts_name, subfolders = "evaluation", "eval.json", ("debates",)

    @property
    def resumable(self) -> bool:
        """Whether anything was played. Until then settings may still be corrected."""
        return self.exists and any((self.path / "debates").glob("*.jsonl"))

    def debates(self, part: str) -> dict[str, Debate]:
        """The debates of a part by id."""
        return files.read_debates(self.path / "debates" / f"{part}.jsonl", self.warn)

    def add(self, part: str, debate: Debate) -> None:
        """Add a debate, without its prompts and tokens. Many end at the same moment, so none waits for the disk."""
        files.append(self.path / "debates" / f"{part}.jsonl", dump(debate, thin=True).encode() + b"\n", sync=False)

    def note_cost(self, part: str, seconds: float, sampled: int, spent: Spent) -> None:
        """Write down how long playing took, how many tokens of it were saved, and what servers charged for."""
        line = {"part": part, "seconds": round(seconds, 3), "sampled": sampled, "usd": spent.usd, "spent": asdict(spent)}
        files.append(self.path / "time.jsonl", files.json_bytes(line) + b"\n")

    def costs(self) -> tuple[dict[str, dict[str, float]], Spent]:
        """Seconds, sampled tokens and dollars by part, and what servers charged for, over all sessions."""
        times, spent = dict[str, dict[str, float]](), Spent()
        for line in files.read_records(self.path / "time.jsonl"):
            with contextlib.suppress(KeyError, TypeError):
                part = times.setdefault(line["part"], dict.fromkeys(("seconds", "sampled", "usd"), 0.0))
                for name in part:
                    part[name] += line[name]
                spent = spent.plus(Spent(**line["spent"]))
        return times, spent


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
        finished = folder.resumable and (out / "result.json").exists()
        if finished and not (before := read_result(out))["dropped"]:
            watch.say(f"{out} is finished; this is its result. Give another folder (out) to evaluate again")
            return before
        expected = [ref for ref in (plan.policy, plan.opponent, plan.judge) if ref]
        async with ModelPool(config.engine, config.api, config.measure.seed, watch.say, expected=expected) as pool:
            _, pool.meter.spent = folder.costs()  # a budget is for all sessions together
            sampler_of = sampler_of or pool.sampler
            policy = await sampler_of(plan.policy)
            opponent = await sampler_of(plan.opponent) if plan.opponent else None
            judge = await sampler_of(plan.judge) if plan.judge else None
            folder.begin(config, facts)
            evaluation = _Evaluation(plan, folder, watch, pool.meter)
            if opponent and isinstance(plan.protocol, HeadToHead):
                measure = await evaluation.play_pairs(policy, opponent, judge)
            else:
                measure = await evaluation.play(policy, opponent)
        outcome = await asyncio.to_thread(measure)  # comparing answers may take long, and signals must be heard
        settings = json.loads(json.dumps(flat(config), default=str))
        about = facts | {"size": plan.protocol.size, "settings": settings}
        about |= {"dropped": evaluation.dropped, "times": folder.costs()[0]}
        measured = result(outcome, plan.task.name, {q.id: fingerprint([q])[:16] for q in plan.questions}) | about
        files.write(out / "result.txt", show(measured).encode())
        files.write(out / "result.json", files.json_bytes(measured) + b"\n")
    return measured


class _Evaluation:
    """One evaluation under way."""

    def __init__(self, plan: EvalPlan, folder: EvalFolder, watch: Watcher, meter: Meter) -> None:
        self.plan, self.folder, self.watch, self.meter = plan, folder, watch, meter
        self.dropped: dict[str, str] = {}
        self._debates: dict[str, dict[str, Debate]] = {}

    async def play(self, policy: Sampler, opponent: Sampler | None) -> Callable[[], Outcome]:
        """Play all parts; what is returned measures them. Questions of which anything was dropped are left out."""
        plan, protocol, rules = self.plan, self.plan.protocol, self.plan.config.measure
        tokens, by, grade = plan.config.debate.max_tokens, rules.cost, plan.task.grade
        if opponent is not None:
            seats = [
                await self._once("seats", protocol, Seats({seat: policy}, opponent), f"seat-{seat}/")
                for seat in range(protocol.agents)
            ]
            known = any(question.known for question in plan.questions)
            direct = await self._direct(policy) if known else {}
            ids = self._complete(*seats, *([direct] if known else []))
            by_seat = [[debates[name] for name in ids] for debates in seats]
            if not known:
                return lambda: seat_outcome(ids, by_seat, None)
            alone = [direct[name] for name in ids]
            return lambda: joined(
                direct_outcome(ids, alone, [[]] * len(ids), plan.k, grade, by), seat_outcome(ids, by_seat, grade)
            )
        direct = await self._direct(policy)
        debates = await self._once("debate", protocol, policy, "debate/") if rules.mode == "debate" else {}
        # Where nobody counts tokens, equal cost can't be had: there are k independent answers, and that is all.
        budgets = {name: cost(one, by) or 0 for name, one in debates.items()} if counted(list(debates.values())) else {}
        sample = Direct(max_tokens=tokens, temperature=rules.sample_temperature, prompts=protocol.prompts)
        samples = await self._drawn("samples", lambda _: sample, policy, budgets, plan.k)
        # Somebody who debates with nobody: as many rounds, seeing only itself, in each of the debaters' characters. With one
        # round nothing is corrected.
        chains = {name: list[Debate]() for name in debates}
        if budgets and protocol.alone(0).rounds != 1:
            chains = await self._drawn("alone", lambda draw: protocol.alone(draw % protocol.agents), policy, budgets, 1)
        ids = self._complete(direct, samples, *([debates, chains] if rules.mode == "debate" else []))

        def measured() -> Outcome:
            drawn = [samples[name] for name in ids]
            outcome = direct_outcome(ids, [direct[name] for name in ids], drawn, plan.k, grade, by)
            if rules.mode == "direct":
                return outcome
            alone = [chains[name] for name in ids]
            return joined(outcome, debate_outcome(ids, [debates[name] for name in ids], drawn, alone, grade, by))

        return measured

    async def _direct(self, policy: Sampler) -> dict[str, Debate]:
        tokens, prompts = self.plan.config.debate.max_tokens, self.plan.protocol.prompts
        return await self._once("direct", Direct(max_tokens=tokens, prompts=prompts), policy, "direct/")

    async def play_pairs(self, policy: Sampler, opponent: Sampler, judge: Sampler | None) -> Callable[[], Outcome]:
        """Have both models answer every question and judge both answers, with the judge if there is one."""
        seats = Seats({0: policy, 1: opponent} | ({2: judge} if judge else {}), opponent)
        pairs = await self._once("pairs", self.plan.protocol, seats, "pair/")
        ids = self._complete(pairs)
        return lambda: pair_outcome(ids, [pairs[name] for name in ids])

    async def _once(self, part: str, protocol: BaseProtocol, sampler: Sampler, prefix: str) -> dict[str, Debate]:
        """One debate about each question, by the question's id."""
        debates = await self._play(part, {prefix: (protocol, self.plan.questions)}, sampler)
        return {name.removeprefix(prefix): debate for name, debate in debates.items() if name.startswith(prefix)}

    async def _drawn(
        self, part: str, protocol: Callable[[int], BaseProtocol], sampler: Sampler, budgets: Mapping[str, int], least: int
    ) -> dict[str, list[Debate]]:
        """Independent debates about each question, at least so many, and until they cost what may be spent on it."""
        drawn: dict[str, list[Debate]] = {q.id: [] for q in self.plan.questions if not budgets or q.id in budgets}
        by = self.plan.config.measure.cost
        while True:
            spent = [[cost(debate, by) or 0 for debate in debates] for debates in drawn.values()]
            more = draws(spent, [budgets.get(name, 0) for name in drawn], least)
            if not any(more):
                return drawn
            wanted = {name: len(drawn[name]) + count for name, count in zip(drawn, more, strict=True)}
            batches = {
                f"{part}-{draw}/": (protocol(draw), [q for q in self.plan.questions if draw < wanted.get(q.id, 0)])
                for draw in range(max(wanted.values()))
            }
            debates = await self._play(part, batches, sampler)
            names = {name: [f"{part}-{draw}/{name}" for draw in range(count)] for name, count in wanted.items()}
            # Where something was dropped, the question is left out.
            drawn = {name: [debates[one] for one in ones] for name, ones in names.items() if debates.keys() >= set(ones)}

    async def _play(
        self, part: str, batches: Mapping[str, tuple[BaseProtocol, Sequence[Question]]], sampler: Sampler
    ) -> dict[str, Debate]:
        """Play the debates of some batches, by the prefix of their names, that are missing; returns those of the part."""
        if part not in self._debates:
            self._debates[part] = await asyncio.to_thread(self.folder.debates, part)
        debates = self._debates[part]
        missing = {
            prefix: [q for q in questions if prefix + q.id not in debates] for prefix, (_, questions) in batches.items()
        }
        if not any(missing.values()):
            return debates
        self.watch.begin(part, sum(map(len, missing.values())))
        started, sampled, spent = time.monotonic(), 0, self.meter.spent

        def done(debate: Debate | None) -> None:
            nonlocal sampled
            if debate:
                debates[debate.id] = debate
                sampled += sum(turn.used.sampled for turn in debate.turns if turn.used)
                self.folder.add(part, debate)
            self.watch.debate(debate)

        played = await all_of(
            [play_all(batches[p][0], questions, sampler, prefix=p, done=done) for p, questions in missing.items()]
        )
        self.folder.note_cost(part, time.monotonic() - started, sampled, self.meter.spent.less(spent))
        dropped = {name: why for one in played for name, why in one.dropped.items()}
        self.dropped |= dropped
        halted = next((one.halted for one in played if one.halted), None)
        Played(tuple(debates.values()), dropped, halted=halted).usable(note="What is done is kept")
        return debates

    def _complete(self, *parts: Mapping[str, Any]) -> list[str]:
        """The ids of the questions that every part has."""
        ids = [question.id for question in self.plan.questions if all(question.id in part for part in parts)]
        if not ids:
            why = next(iter(self.dropped.values()), "nothing was played")
            raise EngineError(f"no question was answered in full; the first because: {why}")
        return ids

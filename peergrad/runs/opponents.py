"""Frozen opponents in some seats of a training run (SPEC 7.7): who they are, and who answers for them in each step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from peergrad.config import EngineConfig, TrainConfig
from peergrad.debate.errors import UserError
from peergrad.debate.sampler import Opponent, Sampler, Seats
from peergrad.engines.base import Model
from peergrad.engines.registry import engine_of
from peergrad.learn.trainer import Trainer
from peergrad.runs.folder import Progress, Run
from peergrad.runs.models import ModelPool, ModelRef, check_name, model_ref, models_by_seat, weights_sha256

_STEPS_AGO = re.compile(r"-(\d{1,6})")


@dataclass(frozen=True)
class OpponentsPlan:
    """Who holds the seats that are not the policy's, by the names a person gave, and the models that these name.

    A judge has the seat after the last.
    """

    seats: dict[int, str]
    models: dict[str, ModelRef]
    judge: int | None = None

    @property
    def steps_ago(self) -> int:
        """How many steps back the policy's checkpoints are needed."""
        return max((int(ago[1]) for name in self.seats.values() if (ago := _STEPS_AGO.fullmatch(name))), default=0)

    def facts(self, engine: EngineConfig) -> dict[str, Any]:
        """What decides who they are besides their names: adapters may have learned since."""
        hashes = [weights_sha256(ref, engine_of(engine)) for ref in self.models.values() if ref.url is None]
        return {"opponent_sha256": hashes} if hashes else {}


def plan_opponents(config: TrainConfig) -> OpponentsPlan:
    """Check who is named. Nothing is loaded."""
    least = max(1, config.learn.max_staleness)
    seats = models_by_seat(config.learn.opponents, config.debate.agents, "opponents")
    if len(seats) == config.debate.agents:
        raise UserError("opponents: hold every seat, so that nobody learns; leave one to the policy")
    if seats and config.debate.protocol == "sequential":
        raise UserError(
            "opponents: a sequential debate may end before an opponent has spoken, and is then no match for the others; "
            "take --protocol parallel or ballot"
        )
    judge = None if config.learn.judge is None else config.debate.agents
    if config.learn.judge is not None:
        if config.debate.agents < 2 or not config.learn.judge.strip():
            why = "is empty" if config.debate.agents > 1 else "has nothing to compare where only one agent answers"
            raise UserError(f"judge: {why}; name a model, and give agents 2 or more")
        seats[config.debate.agents] = config.learn.judge.strip()
    for name in seats.values():
        if (ago := _STEPS_AGO.fullmatch(name)) and int(ago[1]) < least:
            raise UserError(f"opponents: {name} is a policy that may not be there yet; give -{least}, or more steps")
    models = {name: model_ref(name) for name in seats.values() if name != "base" and not _STEPS_AGO.fullmatch(name)}
    for ref in models.values():
        check_name(ref, engine_of(config.engine))
    return OpponentsPlan(seats, models, judge)


class Opponents:
    """The opponents of a run under way. ``base`` is the name of its base model."""

    def __init__(self, plan: OpponentsPlan | None, base: str, run: Run, trainer: Trainer, pool: ModelPool) -> None:
        self._plan, self._base = plan or OpponentsPlan({}, {}), base
        self._run, self._trainer, self._pool, self._warn = run, trainer, pool, run.warn

    async def seated(self, step: int, policy: Sampler, *, judged: bool) -> Sampler:
        """Who answers in a step, counted from 0: the policy, its opponents in their seats, and a judge if it is asked."""
        # Made anew for every step, so that what is said does not depend on what was asked before a run was resumed.
        seats = {seat: name for seat, name in self._plan.seats.items() if judged or seat != self._plan.judge}
        samplers = {name: await self._opponent(name, step) for name in dict.fromkeys(seats.values())}
        return Seats({seat: samplers[name] for seat, name in seats.items()}, others=policy) if seats else policy

    async def base(self) -> Opponent:
        """The base model, as the policy was before it learned."""
        return await self._opponent("base", 0)

    async def policy_after(self, steps: int, otherwise: Sampler) -> Sampler:
        """The policy as it was after so many steps; ``otherwise`` where its checkpoint is gone."""
        try:
            return await self._sampler(ModelRef(self._base, self._run.folder(self._checkpoint(steps))))
        except UserError as error:
            self._warn(f"{error}; a batch that it had begun is sampled by the policy of now")
            return otherwise

    async def _opponent(self, name: str, step: int) -> Opponent:
        ref = self._plan.models.get(name, ModelRef(self._base))
        if ago := _STEPS_AGO.fullmatch(name):
            at = self._checkpoint(max(0, step - int(ago[1])))
            name, ref = at.name, ModelRef(self._base, self._run.folder(at))
        return Opponent(await self._sampler(ref), ref.base if ref.url else name)

    def _checkpoint(self, steps: int) -> Progress:
        """After so many steps; of step 0, that at the end of a warm start."""
        return max((at for at in self._run.checkpoints() if at.step == steps), default=Progress(steps))

    async def _sampler(self, ref: ModelRef) -> Sampler:
        if ref.base == self._base and ref.url is None and isinstance(self._trainer, Model):
            return await self._trainer.sampler_with(ref.adapter)  # with the weights that are there
        return (await self._pool.unbatched(ref))[0]

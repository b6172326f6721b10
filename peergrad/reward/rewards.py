"""What a debate is worth: the reward function a run is configured with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from peergrad.debate.contract import FULL
from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.debate.protocols import PROTOCOLS
from peergrad.debate.settings import imported, is_import_path, where_it_failed
from peergrad.debate.types import Debate
from peergrad.reward import pairwise
from peergrad.reward.controls import Votes, majority, nothing, shuffled, with_truth
from peergrad.reward.streams import (
    Consensus,
    Form,
    Stream,
    Unjudged,
    Voices,
    borda,
    consensus_alignment,
    contract_penalty,
    default_consensus,
    diagnosis,
    soft_vote_ratio,
)
from peergrad.reward.tally import Ballots, SelfVotes, Tally, tally

REWARDS = ("streams", "borda", "win_rate", "win_minus_loss")

Truth = Callable[[int], bool | None]
"""Whether the solution of a turn, given by its index, is right; ``None`` where nobody knows. Graded when it is asked for."""

Reward = Callable[[Debate, Tally, Truth], Sequence[Stream]]
"""What a debate is worth, from its transcript, its valid votes and, if it asks, the truth."""


def nobody_knows(_: int) -> None:
    """The truth where there is none."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number that may change over the steps of a run (SPEC 4.15): from ``start`` to ``end`` within ``over`` steps, those
    of the run if it is ``None``, linearly or along half a cosine.

    Example: ``Schedule.of("1.0 -> 0.0 over 100 cosine", "truth_weight").at(50, 200) == 0.5``
    """

    start: float
    end: float
    over: int | None = None
    cosine: bool = False

    @staticmethod
    def of(setting: float | str, name: str) -> Schedule:
        """A setting, called ``name`` in messages: a number, or text such as ``"1.0 -> 0.0"``."""
        start, arrow, rest = str(setting).partition("->")
        try:
            end, *words = rest.split() if arrow else [start]
            cosine = words[-1:] == ["cosine"]
            words = words[:-1] if cosine else words
            if words and not (words[0] == "over" and len(words) == 2 and re.fullmatch("[1-9][0-9]{0,8}", words[1])):
                raise ValueError
            schedule = Schedule(float(start), float(end), int(words[1]) if words else None, cosine)
            if not math.isfinite(schedule.start + schedule.end):
                raise ValueError
        except ValueError:
            forms = "'1.0 -> 0.0', '1.0 -> 0.0 over 100' or '1.0 -> 0.0 over 100 cosine'"
            raise UserError(f"{name}: {str(setting)[:80]!r} is not possible; give a number, or {forms}") from None
        return schedule

    @property
    def follows_run(self) -> bool:
        """Whether its values depend on how many steps the run has."""
        return self.over is None and self.start != self.end

    def at(self, step: int, steps: int) -> float:
        """The value in a step, counted from 0, of a run of so many steps."""
        if self.start == self.end:
            return self.start
        done = min(1.0, step / max(1, self.over or steps))
        left = 0.5 * (1 + math.cos(math.pi * done)) if self.cosine else 1 - done
        return self.start * left + self.end * (1 - left)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRules:
    """How votes become reward. The defaults are ours; each has the published rule beside it, as ``literal`` or ``all``."""

    reward: str = "streams"
    """One score per agent (win_rate, win_minus_loss); separate streams for generating, judging and form, which ballots
    have their own of (borda); or module:name."""
    consensus: Consensus | None = None
    """Whose votes make the consensus a judge is held to: all, or only the others'. Unset: others from 4 agents on."""
    votes: Votes = "peer"
    """What scores answers: the agents' votes (peer); or, to compare with: their scores dealt out anew among the answers of
    a round (shuffled), agreement with the most frequent answer (majority), or nothing but the form (none)."""
    truth_weight: float | str = 0.0
    """How much of an answer's score is whether it is right, from 0 to 1; it may change over the steps: '1.0 -> 0.0', or
    '1.0 -> 0.0 over 100 cosine'."""
    outcome_bonus: float | str = 0.0
    """Added to the score of an agent's final answer if it is right; it may change as truth_weight may."""
    judge_weight: float | str | None = None
    """How many votes a judge's verdict on the final answers counts as; it may change as truth_weight may. Unset: 1 in a run
    with a judge, and 0 elsewhere."""
    self_votes: SelfVotes = "drop"
    """Votes that name their author: dropped, or kept for the consensus (never for the author's own score)."""
    ballots: Ballots = "once"
    """One vote per pair and turn, or the literal rule: every line counts."""
    unjudged: Unjudged = "skip"
    """A turn nobody judged has no signal, or by the literal formula -1."""
    voices: Voices = "agents"
    """In the consensus on a pair an agent is one voice, its last vote, or has as many as votes over the rounds."""
    pool_equal: bool = True
    """Borda: answers with the same final value share the mean of their scores."""
    form: Form = "graded"
    """What bad form costs: by how bad it is, or the literal rule (unreadable -1, no vote -0.5)."""
    format_penalty: bool = True
    """Punish unreadable turns and missing votes by a stream of their own."""
    lambda_gen: float = 1.0
    """Weight of the generator stream."""
    lambda_judge: float = 1.0
    """Weight of the judge stream."""
    lambda_form: float = 1.0
    """Weight of the form stream."""
    lambda_diagnosis: float = 1.0
    """Borda: weight of what critiques are worth, where answers are revised."""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.reward), str):  # a folder keeps settings, and no functions
            what = type(self.reward).__name__
            raise UserError(f"reward: a {what} can't be kept with the settings; give its import path, module:name, as text")
        if self.reward not in REWARDS and not is_import_path(self.reward):
            raise UserError(
                f"reward: {self.reward!r} is not known; {nearest(self.reward, REWARDS)}, or module:name of your own"
            )
        for name in ("lambda_gen", "lambda_judge", "lambda_form", "lambda_diagnosis"):
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give a number")
        for name, schedule in self._schedules.items():
            share = name == "truth_weight"
            if min(schedule.start, schedule.end) < 0 or (share and max(schedule.start, schedule.end) > 1):
                wanted = "numbers from 0 to 1" if share else "0 or more"
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give {wanted}")
        set_here = [*self.in_force(0, 1), *(["votes"] if self.votes != "peer" else [])]
        if set_here and self.reward not in ("streams", "borda"):
            raise UserError(f"{set_here[0]}: the reward {self.reward!r} has no stream for answers; take streams or borda")

    @property
    def _schedules(self) -> dict[str, Schedule]:
        names = ("truth_weight", "outcome_bonus", "judge_weight")
        return {name: Schedule.of(value, name) for name in names if (value := getattr(self, name)) is not None}

    @property
    def fades(self) -> bool:
        """Whether a number depends on how many steps the run has."""
        return any(schedule.follows_run for schedule in self._schedules.values())

    def judge_weight_at(self, step: int, steps: int, unset: float = 0.0) -> float:
        """How many votes a verdict counts as in a step, counted from 0."""
        schedule = self._schedules.get("judge_weight")
        return schedule.at(step, steps) if schedule else unset

    @property
    def needs_truth(self) -> bool:
        """Whether a built-in reward asks what is right."""
        return bool(self.in_force(0, 1))

    @property
    def needs_votes(self) -> bool:
        """Whether there is nothing to reward answers by without the agents' votes."""
        weight = self._schedules["truth_weight"]
        return not is_import_path(self.reward) and self.votes in ("peer", "shuffled") and min(weight.start, weight.end) < 1

    def in_force(self, step: int, steps: int) -> dict[str, float]:
        """What the truth counts for, if it is asked at all: the values in a step of a run, counted from 0."""
        truth = ((name, self._schedules[name]) for name in ("truth_weight", "outcome_bonus"))
        used = {name: schedule for name, schedule in truth if schedule.start or schedule.end}
        return {name: schedule.at(step, steps) for name, schedule in used.items()}

    @property
    def function(self) -> Reward:
        """The reward as a function; one of somebody's own is imported here, and refused if it is none."""
        if self.reward in ("streams", "borda"):
            return self._streams
        if self.reward in REWARDS:
            return self._pairwise
        own = imported(self.reward, "reward")
        if not callable(own):
            raise UserError(f"reward: {self.reward!r} is {type(own).__name__}, not a function of debate, tally and truth")
        reward = cast("Reward", own)
        return lambda debate, tallied, truth: _own(self.reward, reward, debate, tallied, truth)

    def _streams(self, debate: Debate, tallied: Tally, truth: Truth) -> list[Stream]:
        consensus = self.consensus or default_consensus(debate.agents)
        if self.reward == "borda":
            answers = borda(debate, tallied, pool_equal=self.pool_equal, weight=self.lambda_gen)
        else:
            answers = soft_vote_ratio(debate, tallied, unjudged=self.unjudged, weight=self.lambda_gen)
        weight = self.lambda_judge
        judges = consensus_alignment(debate, tallied, consensus=consensus, voices=self.voices, weight=weight)
        streams = [answers, judges]
        if self.reward == "borda":
            streams.append(diagnosis(debate, tallied, weight=self.lambda_diagnosis))
        if self.votes == "shuffled":
            streams = [shuffled(debate, stream) for stream in streams]
        elif self.votes != "peer":
            streams = [(majority if self.votes == "majority" else nothing)(debate, answers)]
        if weights := self.in_force(0, 1):  # in a run they are numbers by now; elsewhere there are no steps
            weight, bonus = weights.get("truth_weight", 0.0), weights.get("outcome_bonus", 0.0)
            streams[0] = with_truth(debate, streams[0], truth, weight=weight, bonus=bonus)
        if self.format_penalty:
            streams.append(contract_penalty(debate, tallied, form=self.form, weight=self.lambda_form))
        return streams

    def _pairwise(self, debate: Debate, tallied: Tally, _: Truth) -> list[Stream]:
        scores = pairwise.SCORES[self.reward](debate.agents, tallied.all_votes, tallied.judge_weight)
        return [pairwise.returns(debate, tallied, self.reward, scores, self.form)]


def _own(name: str, reward: Reward, debate: Debate, tallied: Tally, truth: Truth) -> list[Stream]:
    """What somebody's own reward gives, if it has the right shape."""
    where = f"reward: {name}, debate {debate.id!r}"
    try:
        streams: list[Any] = list(reward(debate, tallied, truth))
    except Exception as error:
        raise UserError(f"{where}: failed ({where_it_failed(error)})") from error
    if not streams:
        raise UserError(f"{where}: gave no stream; give one, with None for every turn if there is no signal")
    if wrong := [type(stream).__name__ for stream in streams if not isinstance(stream, Stream)]:
        raise UserError(f"{where}: gave {wrong[0]}; each must be a Stream")
    if not all(isinstance(stream.name, str) and isinstance(stream.unit, str) for stream in streams):
        raise UserError(f"{where}: a stream's name and unit must be text")
    if len({stream.name for stream in streams}) < len(streams) or len({stream.unit for stream in streams}) > 1:
        raise UserError(f"{where}: streams need names of their own, and all are of turns or all of agents")
    return [_whole(stream, debate, f"{where}, stream {stream.name!r}") for stream in streams]


def _whole(stream: Stream, debate: Debate, where: str) -> Stream:
    """A stream with plain numbers, as many as there must be, for sections that there are."""
    units = {"agent": debate.agents, "turn": len(debate.turns)}.get(stream.unit)
    if units is None:
        raise UserError(f"{where}: is of {stream.unit!r}; give 'turn' or 'agent'")
    try:
        values = [None if value is None else float(value) for value in stream.values]
        numbers = [stream.weight, *(value for value in values if value is not None)]
        sections = None if stream.sections is None else {*stream.sections}
        finite = all(map(math.isfinite, numbers))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: its values are not numbers ({error}); give one for each {stream.unit}, or None") from None
    if len(values) != units:
        raise UserError(f"{where}: {len(values)} values for {units} {stream.unit}s; give one for each, or None")
    if not finite:
        raise UserError(f"{where}: a number is not finite; give None where there is no signal")
    # Of the built-in protocols all sections are known. Of others a debate may have ended before one was asked for.
    known = {*FULL.names} if debate.protocol.name in PROTOCOLS else sections or set()
    if sections is not None and (isinstance(stream.sections, str) or not sections <= known):
        names = ", ".join(FULL.names)
        raise UserError(f"{where}: sections are {stream.sections!r}; give a tuple of {names}, or None for all")
    if stream.follows not in (None, "solution", "votes"):
        raise UserError(f"{where}: follows is {stream.follows!r}; give 'solution', 'votes' or None")
    return replace(stream, values=tuple(values))


@dataclass(frozen=True, slots=True)
class Scored:
    """A debate with its valid votes and its reward streams."""

    debate: Debate
    tally: Tally
    streams: tuple[Stream, ...]

    def agent_of(self, stream: Stream, unit: int) -> int:
        """The agent whose value a unit of a stream is."""
        return unit if stream.unit == "agent" else self.debate.turns[unit].agent


def score(debate: Debate, rules: RewardRules | None = None, truth: Truth = nobody_knows) -> Scored:
    """Score one debate. Pure: the same transcript and rules always give the same numbers.

    Example: ``score(debate, RewardRules(reward="win_rate")).streams[0].values``
    """
    rules = rules or RewardRules()
    weight = rules.judge_weight_at(0, 1)
    tallied = tally(debate, self_votes=rules.self_votes, ballots=rules.ballots, judge_weight=weight)
    return score_votes(debate, tallied, rules, truth)


def score_votes(debate: Debate, tallied: Tally, rules: RewardRules, truth: Truth = nobody_knows) -> Scored:
    """Score a debate whose votes are already counted by these rules, as several rewards may be made of the same votes."""
    scored, opponents = Scored(debate, tallied, tuple(rules.function(debate, tallied, truth))), debate.opponents

    def of_policy(stream: Stream) -> Stream:
        values = (None if scored.agent_of(stream, u) in opponents else value for u, value in enumerate(stream.values))
        return replace(stream, values=tuple(values))

    return replace(scored, streams=tuple(map(of_policy, scored.streams))) if opponents else scored

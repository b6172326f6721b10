"""The list of alarms: ways self-play goes wrong (SPEC 9.5). An alarm is a plain function of the metrics so far and the step.

One in ``ALARMS``, or given by its import path (``--alarms module:name``), is told, logged, drawn in the report, and stops a
run that was asked to stop. ``fallen_answers`` looks at evaluations instead, and all else is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.settings import call_own
from peergrad.learn.data import has_signal
from peergrad.learn.train import Step
from peergrad.measure.counts import copied_votes
from peergrad.measure.history import mean, number
from peergrad.reward.rewards import Scored

WINDOW = 5
_ALONE = re.compile("eval/direct/.*/correct", re.DOTALL)

History = Sequence[Mapping[str, Any]]
"""The lines of metrics.jsonl for all steps so far, the last one this step's; a number that was not finite is ``None``."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that makes further training pointless: what is seen, in which debates, and what to try."""

    name: str
    seen: str
    advice: str
    debates: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" See {', '.join(self.debates)}." if self.debates else ""
        return f"{self.name}: {self.seen}. {self.advice}{where}"


AlarmRule = Callable[[History, Step], Alarm | None]


def format_collapse(history: History, step: Step) -> Alarm | None:
    """Readable replies, or due turns with a vote, are below half of what they were at best."""
    for name, what in (("replies/readable", "readable replies"), ("votes/due_turns_with_vote", "due turns with a vote")):
        best = max((mean(history[i : i + WINDOW], name) or 0.0 for i in range(len(history) - WINDOW + 1)), default=0.0)
        share = mean(history[-WINDOW:], name)
        if share is not None and best >= 0.2 and share < best / 2:
            return Alarm(
                "format collapse",
                f"{what} fell to {share:.0%}, from {best:.0%} at best",
                "Lower the learning rate, or go back to an earlier checkpoint; keep format_penalty on.",
                _first_debates(step, lambda scored: bool(scored.tally.counts.parse_errors or scored.tally.missing)),
            )
    return None


def degenerate_consensus(history: History, step: Step) -> Alarm | None:
    """Replies can be read, but most debates have no signal, or all agents give the same wrong answer."""
    recent = history[-WINDOW:]
    readable = mean(recent, "replies/readable") or 0.0
    silent = mean(recent, "debates/without_signal") or 0.0
    names = [name for name in recent[-1] if name.startswith("train_") and name.endswith("/correct")]
    alike, right = mean(recent, "debates/same_answer"), mean(recent, names[0]) if names else None
    if len(recent) < WINDOW or readable < 0.5:
        return None
    if silent >= 0.8:
        seen = f"{silent:.0%} of the debates teach nothing"
    elif alike is not None and right is not None and alike >= 0.9 and right < 0.5:
        seen = f"all agents give the same answer in {alike:.0%} of the debates, and {1 - right:.0%} are wrong"
    else:
        return None
    signals = {one.debate.id: has_signal(one.streams, a) for one, a in zip(step.scored, step.advantages, strict=True)}
    return Alarm(
        "degenerate consensus",
        seen,
        "Take harder questions, more agents or higher temperatures; a frozen opponent helps too (--opponents 2=base).",
        _first_debates(step, lambda scored: not signals[scored.debate.id]),
    )


def random_noise(history: History, step: Step) -> Alarm | None:
    """Votes are no better than a coin by one standard error."""
    recent = history[-WINDOW:]
    for name, count, what in (
        ("votes/accuracy", "votes/between_right_and_wrong", "votes between a right and a wrong solution are right"),
        ("votes/agreement", "votes/agreement_pairs", "votes of different agents on the same pair agree"),
    ):
        total = sum(line[count] for line in recent if line.get(name) is not None and line.get(count))
        share = mean(recent, name, count)
        if len(recent) == WINDOW and share is not None and total >= 40 and share <= 0.5 + 0.5 / math.sqrt(total):
            return Alarm(
                "random noise",
                f"only {share:.0%} of {total:.0f} {what}, which a coin does as well",
                "What is rewarded by chance unlearns what the model could: take another form of vote (the soft ones of "
                "--protocol ballot), easier questions, or warm-start the judge.",
                _first_debates(step, lambda scored: bool(scored.tally.votes)),
            )
    return None


def copied_ballots(history: History, step: Step) -> Alarm | None:
    """Votes that follow the prompt or the seats, whatever was said, are a fifth of all."""
    recent = history[-WINDOW:]
    share = mean(recent, "votes/copied")
    if len(recent) < WINDOW or share is None or share < 0.2:
        return None
    return Alarm(
        "copied ballots",
        f"{share:.0%} of the votes stand in the prompt, or are the same for every seat",
        "Such votes say nothing about answers: take the protocol ballot, or prompts without filled-in votes (--prompts).",
        _first_debates(step, lambda scored: bool(copied_votes(scored))),
    )


def fallen_answers(evaluations: History) -> Alarm | None:
    """Right answers alone to held-out questions are fewer than at first, by more than two standard errors."""
    last = evaluations[-1]
    for name in filter(_ALONE.fullmatch, last):
        asked, after = number(last.get(name.removesuffix("correct") + "answers")), number(last[name])
        before = next((known for line in evaluations if (known := number(line.get(name))) is not None), None)
        if asked is None or before is None or after is None:
            continue
        if not 0 <= after < before <= 1 <= asked:  # a log may hold anything
            continue
        error = math.sqrt((before * (1 - before) + after * (1 - after)) / asked)
        if before - after > 2 * error:
            return Alarm(
                "fallen answers",
                f"right answers alone to {asked:.0f} held-out questions fell to {after:.0%}, from {before:.0%} at first",
                "What is rewarded is not what is right: go back to an earlier checkpoint, see whether votes tell right from "
                "wrong (votes/accuracy), or lower the learning rate.",
            )
    return None


ALARMS: tuple[AlarmRule, ...] = (format_collapse, copied_ballots, degenerate_consensus, random_noise)


def alarms(history: History, step: Step, own: Mapping[str, AlarmRule] | None = None) -> list[Alarm]:
    """What is wrong after a step. ``own`` are somebody's own alarms, by the name that messages give them."""
    sounding = [alarm for rule in ALARMS if (alarm := rule(history, step))]
    for path, rule in (own or {}).items():
        alarm = call_own(rule, path, "alarms", history, step)
        if alarm is not None and not isinstance(alarm, Alarm):
            raise UserError(f"alarms: {path}: gave {type(alarm).__name__}; give an Alarm, or None where all is well")
        sounding += [alarm] if alarm else []
    return sounding


def _first_debates(step: Step, chosen: Callable[[Scored], bool]) -> tuple[str, ...]:
    return tuple([scored.debate.id for scored in step.scored if chosen(scored)][:3])

"""The three ways self-play goes wrong (SPEC 9.5), read from the metrics of the last steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peergrad.learn.advantages import has_signal
from peergrad.learn.train import Step
from peergrad.reward.rewards import Scored

WINDOW = 5


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


def alarms(history: Sequence[Mapping[str, Any]], step: Step) -> list[Alarm]:
    """What is wrong after a step, given the metrics of all steps so far, this one's last."""
    if len(history) < WINDOW:
        return []
    found: list[Alarm] = []
    now = history[-WINDOW:]
    for name, what in (("replies/readable", "readable replies"), ("votes/due_turns_with_vote", "due turns with a vote")):
        best = max(_mean(history[i : i + WINDOW], name) or 0.0 for i in range(len(history) - WINDOW + 1))
        share = _mean(now, name)
        if share is not None and best >= 0.2 and share < best / 2:
            found.append(
                Alarm(
                    "format collapse",
                    f"{what} fell to {share:.0%}, from {best:.0%} at best",
                    "Lower the learning rate, or go back to an earlier checkpoint; keep format_penalty on.",
                    _some(step, lambda scored: bool(scored.tally.counts.parse_errors or scored.tally.missing)),
                )
            )
            break
    readable = _mean(now, "replies/readable") or 0.0
    silent = _mean(now, "debates/without_signal") or 0.0
    alike, right = _mean(now, "debates/same_answer"), _correct(now)
    if readable >= 0.5 and (silent >= 0.8 or (alike is not None and right is not None and alike >= 0.9 and right < 0.5)):
        seen = (
            f"{silent:.0%} of the debates teach nothing"
            if silent >= 0.8
            else f"all agents give the same answer in {alike or 0:.0%} of the debates, and {1 - (right or 0):.0%} are wrong"
        )
        found.append(
            Alarm(
                "degenerate consensus",
                seen,
                "Take harder questions, more agents or higher temperatures; mixing in a frozen opponent helps too.",
                _without_signal(step),
            )
        )
    for name, count, chance, what in (
        ("votes/accuracy", "votes/between_right_and_wrong", 0.5, "votes between a right and a wrong solution are right"),
        ("votes/agreement", "votes/agreement_pairs", 0.5, "votes of different agents on the same pair agree"),
    ):
        share, total = _weighted(now, name, count)
        # A coin is within chance of this: no better than it by one standard error.
        if share is not None and total >= 40 and share <= chance + 0.5 / math.sqrt(total):
            found.append(
                Alarm(
                    "random noise",
                    f"only {share:.0%} of {total:.0f} {what}, which a coin does as well",
                    "Take easier questions, warm-start the judge, or train the generator alone (lambda_judge 0).",
                    _some(step, lambda scored: bool(scored.tally.votes)),
                )
            )
            break
    return found


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def _weighted(lines: Sequence[Mapping[str, Any]], name: str, count: str) -> tuple[float | None, float]:
    counted = [(line[name], line[count]) for line in lines if line.get(name) is not None and line.get(count)]
    total = sum(weight for _, weight in counted)
    return (sum(value * weight for value, weight in counted) / total if total else None), total


def _correct(lines: Sequence[Mapping[str, Any]]) -> float | None:
    names = [name for name in lines[-1] if name.startswith("train_") and name.endswith("/correct")]
    return _mean(lines, names[0]) if names else None


def _some(step: Step, chosen: Any) -> tuple[str, ...]:
    scored: list[Scored] = [one for one in step.scored if chosen(one)]
    return tuple(one.debate.id for one in scored[:3])


def _without_signal(step: Step) -> tuple[str, ...]:
    pairs = zip(step.scored, step.advantages, strict=True)
    return tuple([one.debate.id for one, values in pairs if not has_signal(one.streams, values)][:3])

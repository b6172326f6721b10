"""Debates under the reward rules of the run that they are from, and the row of each in a table of debates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from peergrad.config import EvalConfig, TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.settings import is_import_path
from peergrad.debate.types import Debate
from peergrad.learn.data import Values, advantages, has_signal
from peergrad.learn.train import LearnRules
from peergrad.measure.counts import copied_votes, final_grades, known_grades, share_right, vote_counts
from peergrad.measure.ending import ending, used
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.tasks.base import Grade, truth_of
from peergrad.tasks.open import gradable, regrade
from peergrad.web import safe
from peergrad.web.sources import Source

FLAGS = (
    "winner_wrong", "agree_wrong", "right_to_wrong", "wrong_to_right", "no_winner", "no_signal", "alarm", "unreadable",
    "truncated", "malformed", "copied", "dropped", "damaged",
)  # fmt: skip
"""What a debate may be looked for by; in the index, one bit each."""
_LONGEST = 300  # characters of a question in a table
_LONGEST_ANSWER = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """How the debates of a source are scored. ``whose``: the run's own rules, or the default ones, and ``note`` says why."""

    learn: LearnRules = field(default_factory=lambda: LearnRules(steps=100))
    whose: str = "default"
    note: str | None = None

    def at(self, step: int | None) -> RewardRules:
        """The rules in force at a step of the run, counted from 1."""
        return self.learn.reward_at(max(0, (step or 1) - 1))

    def as_object(self) -> dict[str, Any]:
        centring = {"center": self.learn.center, "divide_by_std": self.learn.divide_by_std}
        return {"whose": self.whose, "note": self.note, **centring}


def settings_of(source: Source) -> tuple[TrainConfig | EvalConfig | None, str | None]:
    """The settings in a folder, or why they can't be read. No code that they name is imported."""
    if source.kind == "file":
        return None, None
    try:
        safe.check_plain(source.path, "config.toml", "prompts", "personas.toml")
        return from_folder(TrainConfig() if source.kind == "run" else EvalConfig(), source.path), None
    except UserError as error:
        return None, str(error)
    except (OSError, ValueError, TypeError, RecursionError) as error:  # whatever somebody wrote there
        return None, f"{source.path}: its settings can't be read ({type(error).__name__})"


def rules_of(source: Source) -> Rules:
    """The rules of a run; of anything else those that ``peergrad score`` has."""
    config, problem = settings_of(source)
    if source.kind != "run":
        return Rules()
    if not isinstance(config, TrainConfig):
        return Rules(note=f"Its settings can't be read, so rewards are by the default rules. {problem}")
    own = config.learn.reward.reward
    if not is_import_path(own):
        return Rules(config.learn, "run")
    # A folder somebody sent names it, and no code is run for that.
    learn = replace(config.learn, reward=replace(config.learn.reward, reward="streams"))
    return Rules(learn, "default", f"It trained on {own[:80]}, which is not imported; rewards are by the default one.")


class ScoredDebate:
    """A debate with all that is computed of it. ``advantages`` are as if it were alone in its batch."""

    def __init__(self, debate: Debate, rules: Rules, step: int | None) -> None:
        self.debate = debate
        self.scored: Scored = score(debate, rules.at(step), truth_of(regrade, gradable)(debate))
        self.grades: tuple[Grade, ...] | None = known_grades([debate], regrade, gradable)[0]
        self.advantages: list[Values] = centred([self.scored], rules)[0]
        self.copied = copied_votes(self.scored)

    def row(self) -> dict[str, Any]:
        """Its row, without where it is."""
        debate, counts, end = self.debate, self.scored.tally.counts, ending(self.debate)
        final = final_grades(debate, self.grades) if self.grades else []
        flips = vote_counts(self.scored, self.grades) if self.grades else {}
        at = None if end.winner is None else debate.final_turn(end.winner)
        tokens = used(debate) if any(turn.used for turn in debate.turns) else None
        row: dict[str, Any] = {
            "id": debate.id,
            "question_id": debate.question.id,
            "question": debate.question.text[:_LONGEST],
            "dataset": debate.question.dataset[:_LONGEST],
            "answer": short(debate.question.answer),
            "protocol": debate.protocol.name,
            "agents": debate.agents,
            "rounds": debate.rounds,
            "turns": len(debate.turns),
            "right": self._right_by_round(),
            "answers": [short(one.answer) for one in end.finals],
            "right_share": share_right(final),
            "right_to_wrong": int(flips.get("flips/right_to_wrong", (0, 0))[0]),
            "wrong_to_right": int(flips.get("flips/wrong_to_right", (0, 0))[0]),
            "winner": end.winner,
            "winner_right": self.grades[at].right if self.grades and at is not None else None,
            "decided_by": end.by,
            "votes": len(self.scored.tally.votes),
            "copied": len(self.copied),
            "malformed": counts.malformed,
            "self_votes": counts.self_votes,
            "unreadable": counts.parse_errors,
            "truncated": sum(turn.truncated for turn in debate.turns),
            "signal": has_signal(self.scored.streams, self.advantages),
            "prompt_tokens": tokens and tokens.prompt,
            "sampled_tokens": tokens and tokens.sampled,
            "chars": sum(len(turn.text) for turn in debate.turns),
            "dropped": None,
            "problem": None,
        }
        alike = len({answer.answer for answer in final}) == 1 and all(answer.right is False for answer in final)
        row["agree_wrong"] = len(final) > 1 and final[0].answer is not None and alike
        return row

    def _right_by_round(self) -> list[list[bool | None]]:
        by_round: dict[int, list[bool | None]] = {}
        for index, turn in enumerate(self.debate.turns):
            if turn.asked_to_answer:
                of_round = by_round.setdefault(turn.round, [None] * self.debate.agents)
                of_round[turn.agent] = self.grades[index].right if self.grades else None
        return [by_round[round_] for round_ in sorted(by_round)]


def centred(batch: Sequence[Scored], rules: Rules) -> list[list[Values]]:
    """The advantages of debates that are a batch together."""
    return advantages(batch, center=rules.learn.center, divide_by_std=rules.learn.divide_by_std)


def no_row(**about: Any) -> dict[str, Any]:
    """The row of something that is no debate: a dropped one, or a line that can't be read."""
    nothing = dict.fromkeys(
        ("id", "question_id", "question", "dataset", "answer", "protocol", "agents", "rounds", "turns", "right_share",
         "winner", "winner_right", "decided_by", "signal", "prompt_tokens", "sampled_tokens", "dropped", "problem")
    )  # fmt: skip
    counts = dict.fromkeys(
        (
            "right_to_wrong",
            "wrong_to_right",
            "votes",
            "copied",
            "malformed",
            "self_votes",
            "unreadable",
            "truncated",
            "chars",
        ),
        0,
    )
    return nothing | counts | {"right": [], "answers": [], "agree_wrong": False} | about


def flags_of(row: dict[str, Any], *, alarm: bool = False) -> list[str]:
    """What a debate can be found by."""
    debated = row["dropped"] is None and row["problem"] is None
    found = {
        "winner_wrong": row["winner_right"] is False,
        "no_winner": debated and row["winner"] is None,
        "no_signal": row["signal"] is False,
        "alarm": alarm,
        "dropped": row["dropped"] is not None,
        "damaged": row["problem"] is not None,
    }
    return [flag for flag in FLAGS if found.get(flag, bool(row.get(flag)))]


def short(text: str | None) -> str | None:
    """An answer as tables and reasons have it."""
    return text if text is None else text[:_LONGEST_ANSWER]

"""The command ``peergrad rescore``."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import tyro

from peergrad.cli.flags import Flag, Inline, warn
from peergrad.debate.errors import UserError
from peergrad.measure.rescore import rescore, verdict
from peergrad.reward.rewards import RewardRules
from peergrad.reward.streams import Consensus
from peergrad.runs.folder import Run
from peergrad.tasks.open import TaskRules, gradable, open_questions, regrade


@dataclass(frozen=True, kw_only=True)
class SharedRules(RewardRules):
    """What is the same in all the rewards that are compared; in these two they differ."""

    reward: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = "streams"
    consensus: Annotated[Consensus | None, tyro.conf.Fixed, tyro.conf.Suppress] = None


def command(
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    /,
    rules: Annotated[SharedRules, Inline] = SharedRules(),  # noqa: B008 (frozen)
    reward: tuple[str, ...] = (),
    task: str = "",
    json: Flag = False,
) -> None:
    """Compare rewards on saved debates, without a model: which of them follows the truth?

    Args:
        paths: Folders that ``peergrad train`` wrote to, or transcript files (docs/reference/transcript.md).
        rules: How votes become reward.
        reward: Rewards of your own to compare with the built-in ones, each as module:name.
        task: A task of your own, as module:name, to grade debates about its questions.
        json: Print one JSON object instead of tables.
    """
    if not paths:
        raise UserError("PATH: is missing; give a run's folder or a transcript file")
    debates = (debate for path in paths for debate in Run.any_debates(path, warn))
    grade = (open_questions(task, TaskRules()).grade, attrgetter("known")) if task else (regrade, gradable)
    result = rescore(debates, rules, grade[0], reward, grade[1])
    if not result.debates:
        raise UserError(
            f"{', '.join(map(str, paths))}: no debate is kept there; give a run that has made a step, or a transcript file"
        )
    if json:
        print(json_module.dumps(asdict(result) | {"verdict": verdict(result)}))
    else:
        from peergrad.terminal.tables import print_rescored  # brings rich, which --json does not need

        print_rescored(result)

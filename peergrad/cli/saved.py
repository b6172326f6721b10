"""Commands about what is on disk: ``score``, ``rescore``, ``distill``, ``compare``, ``report``, ``export``, ``models``."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import tyro

from peergrad.cli.main import Flag, Inline, say, warn
from peergrad.config import TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.question import Question
from peergrad.debate.quote import visible
from peergrad.debate.settings import is_import_path
from peergrad.learn.data import Center, Values, advantages
from peergrad.reward import rewards
from peergrad.reward.controls import Votes
from peergrad.reward.rewards import RewardRules, Scored
from peergrad.reward.streams import Consensus
from peergrad.runs.export import export as export_adapter
from peergrad.runs.files import json_bytes, write
from peergrad.runs.folder import Run
from peergrad.tasks.base import Grader
from peergrad.tasks.open import TaskConfig, gradable, open_questions, regrade

_COUNTS = ("self_votes", "malformed", "repeated", "contradictory", "missing", "parse_errors")


@dataclass(frozen=True, kw_only=True)
class SharedRules(RewardRules):
    """What is the same in all the rewards that are compared; in the others they differ."""

    reward: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = "streams"
    consensus: Annotated[Consensus | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    votes: Annotated[Votes, tyro.conf.Fixed, tyro.conf.Suppress] = "peer"
    truth_weight: Annotated[float | str, tyro.conf.Fixed, tyro.conf.Suppress] = 0.0
    outcome_bonus: Annotated[float | str, tyro.conf.Fixed, tyro.conf.Suppress] = 0.0


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """How debates are scored."""

    rules: RewardRules = field(default_factory=RewardRules)
    center: Center = "group"
    """What the baseline is a mean over: one debate, the whole batch, or one seat across the batch."""


def score_settings(args: Sequence[str]) -> ScoreConfig:
    """The rules that the flags begin with: those of the first run that is named, or the usual ones."""
    run = next((run for name in args if (run := Run(Path(name))).exists), None)
    if run is None:
        return ScoreConfig()
    learn = from_folder(TrainConfig(), run.path).learn
    rules = learn.reward
    if is_import_path(rules.reward):  # nothing is imported because a folder names it
        if "--reward" not in args:
            raise UserError(
                f"reward: the run in {run.path} has {rules.reward}; if you trust it, repeat --reward {rules.reward}"
            )
        rules = replace(rules, reward=RewardRules().reward)
    return ScoreConfig(rules=rules, center=learn.center)


def score(
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    settings: Annotated[ScoreConfig, Inline] = ScoreConfig(),  # noqa: B008 (frozen)
    json: Flag = False,
) -> None:
    """Score the debates of runs or transcript files: valid votes, rewards and advantages.

    Args:
        files: Transcript files (docs/reference/transcript.md), or folders that ``peergrad train`` wrote to, which are
            scored by their own rules. Together they are one batch.
        settings: How votes become reward.
        json: Print one JSON object instead of tables.
    """
    if not files:
        raise UserError("FILE: is missing; give at least one transcript file")
    from peergrad.tasks.base import truth_of

    truth = truth_of(regrade, gradable)
    debates = (debate for path in files for debate in Run.any_debates(path, warn))
    batch = [rewards.score(debate, settings.rules, truth(debate)) for debate in debates]
    centred = advantages(batch, center=settings.center)
    if json:
        print(json_module.dumps({"debates": [_as_object(*one) for one in zip(batch, centred, strict=True)]}))
    else:
        from peergrad.terminal.tables import print_scores  # brings rich, which --json does not need

        print_scores(batch, centred)


def _as_object(scored: Scored, advantages: Sequence[Values]) -> dict[str, Any]:
    """One debate's votes, a judge's last if they count, counts and streams. A unit without signal is null, and only a soft
    vote has a strength.
    """
    votes = [asdict(vote) | {"judged": vote.judged or (None, None)} for vote in scored.tally.all_votes]
    return {
        "id": scored.debate.id,
        "votes": [{n: value for n, value in vote.items() if n != "strength" or value != 1} for vote in votes],
        "counts": {name: getattr(scored.tally.counts, name) for name in _COUNTS},
        "streams": [
            {"name": stream.name, "unit": stream.unit, "values": stream.values, "advantages": values}
            for stream, values in zip(scored.streams, advantages, strict=True)
        ],
    }


def rescore(
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
    from peergrad.measure import rescore as measure

    if not paths:
        raise UserError("PATH: is missing; give a run's folder or a transcript file")
    debates = (debate for path in paths for debate in Run.any_debates(path, warn))
    grade = _grading(task)
    result = measure.rescore(debates, rules, grade[0], reward, grade[1])
    if not result.debates:
        raise UserError(
            f"{', '.join(map(str, paths))}: no debate is kept there; give a run that has made a step, or a transcript file"
        )
    if json:
        print(json_module.dumps(asdict(result) | {"verdict": measure.verdict(result)}))
    else:
        from peergrad.terminal.tables import print_rescored  # brings rich, which --json does not need

        print_rescored(result)


def distill(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    /,
    to: Path,
    right: Flag = False,
    task: str = "",
) -> None:
    """Make debates into direct answers: of each that somebody won, the question and the winner's final answer.

    ``peergrad train --warm-from DATA.jsonl --warm-epochs 3 --steps 0`` learns from them.

    Args:
        path: A folder that ``peergrad train`` wrote to, or a transcript file (docs/reference/transcript.md).
        to: The file to write, .jsonl: one object per line with question, answer and solution (docs/how-to/warm-start.md).
        right: Leave out answers that are wrong, where the right one is known.
        task: A task of your own, as module:name, to grade answers to its questions.
    """
    from peergrad.runs.lessons import distilled

    if to.suffix != ".jsonl" or to.exists():
        raise UserError(
            f"to: {to} {'is there already' if to.exists() else 'does not end in .jsonl'}; give a new .jsonl file"
        )
    answers = [distilled(debate, *_grading(task)) for debate in Run.any_debates(path, warn)]
    won = [row for row in answers if row]
    table = [row for row in won if not right or row["right"] is not False]
    if not table:
        raise UserError(f"{path}: gives nothing to learn: {len(won)} of {len(answers)} debates have a winner with an answer")
    write(to, b"".join(json_bytes(row) + b"\n" for row in table))
    say(f"{len(table)} answers of {len(answers)} debates, {len(won)} of them with a winner that gives one: {to}")


def _grading(task: str) -> tuple[Grader, Callable[[Question], bool]]:
    """How answers to saved questions are graded, and which can be: by a task of somebody's own, or by their datasets."""
    return (open_questions(TaskConfig(task=task)).grade, attrgetter("known")) if task else (regrade, gradable)


def compare(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")],
    /,
    json: Flag = False,
) -> None:
    """Compare two results of ``peergrad eval``, question by question.

    Args:
        first: The folder of a finished evaluation.
        second: Another one, about the same questions.
        json: Print one JSON object instead of a table.
    """
    from peergrad.measure.outcome import compared
    from peergrad.runs.results import read_result

    comparison = compared(read_result(first), read_result(second))
    if not comparison["questions"]:
        raise UserError(f"{second}: shares no question with {first}; compare evaluations of the same questions")
    if json:
        print(json_module.dumps(comparison))
        return
    from peergrad.terminal.console import Output
    from peergrad.terminal.tables import print_comparison

    print_comparison(Output(), (str(first), str(second)), comparison)


def report(run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /) -> None:
    """Write a page about a run: curves, and debates before and after.

    Args:
        run: The folder that ``peergrad train`` wrote to.
    """
    from peergrad.web.report import write_report

    print(write_report(Run.open(run, warn)))


def export(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /, to: Path, step: int | None = None
) -> None:
    """Copy a checkpoint as a PEFT adapter with a model card.

    Args:
        run: The folder that ``peergrad train`` wrote to.
        to: The folder to make.
        step: Which step's; unset, the newest.
    """
    print(export_adapter(Run.open(run, warn), to, step))


def models(get: str | None = None) -> None:
    """List the built-in models and what is in the cache.

    Args:
        get: Download and convert a model now: an alias, a hub id or a GGUF file. A later run then starts quickly.
    """
    from peergrad.engines.local.fetch import models  # needs no torch until something is converted

    if get is not None:
        say(f"{get} is ready in {models.resolve(get, say=say)}.")
        return
    print("Built in:")
    for model in models.MODELS.values():
        print(f"  {model.alias:<12} {model.title}, {model.licence}, {model.megabytes} MB to download")
    print(f"In the cache ({models.cache()}):")
    for held in models.cached():
        state = "" if held.problem is None else f", to be made again: {held.problem}"
        print(f"  {visible(held.name):<12} {held.bytes / 1e6:.0f} MB{visible(state)}")
    print("Any Hugging Face folder, hub id or GGUF file works too; --get NAME fetches and converts one now.")

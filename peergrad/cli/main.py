"""The command ``peergrad``.

Exit codes: 0 done, 1 the world failed (network, disk), training was stopped by a guard or a gate of the check fails, 2 the
input can't be used (nothing was written), 130 and 143 interrupted by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from peergrad import __version__
from peergrad.cli.serve import ServeConfig
from peergrad.cli.serve import serve as run_server
from peergrad.config import ApiConfig, DebatesConfig, EvalConfig, TrainConfig, preset
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.quote import visible
from peergrad.debate.transcript import read_file
from peergrad.learn.advantages import Center, advantages
from peergrad.reward.rewards import RewardRules, score
from peergrad.reward.streams import Unjudged
from peergrad.reward.tally import Ballots, SelfVotes
from peergrad.settings import changed, from_file, to_toml

app = tyro.extras.SubcommandApp()
_ROUNDS = re.compile(r"--rounds(?==|$)")  # the short name that people expect of `debate`
Presets = Literal["demo", "math", "math-easy", "math-hard", "open-ended", "classic"]


@app.command(name="score")
def score_files(
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    reward: str = "streams",
    consensus: Literal["auto", "all", "others"] = "auto",
    self_votes: SelfVotes = "drop",
    ballots: Ballots = "once",
    unjudged: Unjudged = "skip",
    center: Center = "group",
    format_penalty: bool = True,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Score the debates of transcript files: valid votes, rewards and advantages.

    Args:
        files: Transcript files, one debate per line (docs/reference/transcript.md). Together they are one batch.
        reward: One score per agent (win_rate, win_minus_loss), streams for generating, judging and form, or module:name.
        consensus: Whose votes make the consensus a judge is held to. Auto: all up to 3 agents, others from 4 on.
        self_votes: Votes that name their author: dropped, or kept for the consensus (never for the author's own score).
        ballots: One vote per pair and turn, or the literal rule: every line counts.
        unjudged: A turn nobody judged has no signal (skip), or by the literal formula -1.
        center: What the baseline is a mean over: one debate, the whole batch, or one seat across the batch.
        format_penalty: Punish unreadable turns and missing votes (streams only).
        json: Print one JSON object instead of tables.
    """
    if not files:
        raise UserError("FILE: is missing; give at least one transcript file")
    rules = RewardRules(
        reward=reward,
        consensus=None if consensus == "auto" else consensus,
        self_votes=self_votes,
        ballots=ballots,
        unjudged=unjudged,
        format_penalty=format_penalty,
    )
    batch = [score(debate, rules) for path in files for debate in read_file(path)]
    centred = advantages(batch, center=center)
    from peergrad.terminal import scores as show  # brings rich, which --json does not need

    if json:
        print(show.as_json(batch, centred))
    else:
        show.as_tables(batch, centred)


@app.command(name="rescore")
def rescore_debates(
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    /,
    self_votes: SelfVotes = "drop",
    ballots: Ballots = "once",
    unjudged: Unjudged = "skip",
    reward: tuple[str, ...] = (),
    lambda_gen: float = 1.0,
    lambda_judge: float = 1.0,
    format_penalty: bool = True,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Compare rewards on saved debates, without a model: which of them follows the truth?

    Args:
        paths: Folders that ``peergrad train`` wrote to, or transcript files (docs/reference/transcript.md).
        self_votes: Votes that name their author: dropped, or kept for the consensus (never for the author's own score).
        ballots: One vote per pair and turn, or the literal rule: every line counts.
        unjudged: A turn nobody judged has no signal (skip), or by the literal formula -1.
        reward: Rewards of your own to compare with the built-in ones, each as module:name.
        lambda_gen: Weight of the generator stream, where it is not alone.
        lambda_judge: Weight of the judge stream.
        format_penalty: Punish unreadable turns and missing votes (streams only).
        json: Print one JSON object instead of tables.
    """
    from peergrad.measure.rescore import rescore
    from peergrad.runs.folder import Run
    from peergrad.tasks.open import regrade
    from peergrad.terminal import rescore as show_rescore  # brings rich, as for score

    if not paths:
        raise UserError("PATH: is missing; give a run's folder or a transcript file")
    rules = RewardRules(
        self_votes=self_votes,
        ballots=ballots,
        unjudged=unjudged,
        lambda_gen=lambda_gen,
        lambda_judge=lambda_judge,
        format_penalty=format_penalty,
    )
    debates = (debate for path in paths for debate in Run.any_debates(path, _warn))
    found = rescore(debates, rules, regrade, reward)
    if not found.debates:
        raise UserError(
            f"{', '.join(map(str, paths))}: no debate is kept there; give a run that has made a step, or a transcript file"
        )
    if json:
        print(show_rescore.as_json(found))
    else:
        show_rescore.as_tables(found)


@app.command(name="models")
def list_models(get: str | None = None) -> None:
    """List the built-in models and what is in the cache.

    Args:
        get: Download and convert a model now: an alias, a hub id or a GGUF file. A later run then starts quickly.
    """
    from peergrad.engines.local.fetch import models  # needs no torch until something is converted

    if get is not None:
        models.prefetch(get, say=lambda sentence: print(visible(sentence), file=sys.stderr))
        return
    print("Built in:")
    for model in models.MODELS.values():
        print(f"  {model.alias:<12} {model.title}, {model.licence}, {model.megabytes} MB to download")
    print(f"In the cache ({models.cache()}):")
    for held in models.cached():
        state = "" if held.whole else f", to be made again: {held.wrong}"
        print(f"  {visible(held.name):<12} {held.bytes / 1e6:.0f} MB{visible(state)}")
    print("Any Hugging Face folder, hub id or GGUF file works too; --get NAME fetches and converts one now.")


def add_train(base: TrainConfig) -> None:
    """Add the command ``train``; its settings begin with those of the preset and the file that the person named."""

    @app.command(name="train")
    def train(  # pyright: ignore[reportUnusedFunction] (tyro uses it)
        settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = base,
        preset: Presets | None = None,
        config: Path | None = None,
        dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    ) -> None:
        """Train a model by self-play debate. The same command goes on with a run that was interrupted.

        Args:
            settings: Everything that can be set.
            preset: Settings to begin with; demo, unless a file is given.
            config: A TOML file with settings, which go before the preset's; what is given here goes before both.
            dry_run: Check all settings, print them and what a step costs, and load nothing.
        """
        from peergrad.cli import train as train_command  # brings rich

        if settings.keep.out is None:
            name = config.stem if config else preset or "demo"
            settings = changed(settings, {"out": Path("runs") / name}, "out")
        if dry_run:
            cost = train_command.estimate(settings)
            print(to_toml(settings))
            print(cost)
        else:
            sys.exit(train_command.train(settings))


def add_check(base: TrainConfig) -> None:
    """Add the command ``check``; its settings are those of the run that is planned."""

    @app.command(name="check")
    def check(  # pyright: ignore[reportUnusedFunction] (tyro uses it)
        settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = base,
        api: Annotated[ApiConfig, tyro.conf.arg(name="")] = ApiConfig(),  # noqa: B008 (frozen)
        preset: Presets | None = None,
        config: Path | None = None,
        questions: int = 20,
        json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    ) -> None:
        """See on a sample whether self-play can work here, before training: give the settings of the run you plan.

        The exit code is 1 if a gate fails.

        Args:
            settings: Everything that can be set.
            api: For a model behind an API, which can be checked, though not trained.
            preset: Settings to begin with; demo, unless a file is given.
            config: A TOML file with settings, which go before the preset's; what is given here goes before both.
            questions: How many questions are asked: more give narrower intervals.
            json: Print one JSON object instead of a table.
        """
        from peergrad.cli import check as check_command  # brings rich

        del preset, config  # read before: their settings are in ``settings``
        if questions < 2:
            raise UserError(f"questions: {questions} is not possible; give at least 2")
        sys.exit(check_command.check_settings(settings, api, questions, json))


def chosen_settings(args: list[str]) -> TrainConfig:
    """What the settings of ``train`` begin with, by ``--preset`` and ``--config``; the rest is read later."""
    given = _given(args, "--preset", "--config")
    config = preset(given["--preset"]) if "--preset" in given else TrainConfig() if "--config" in given else preset("demo")
    return from_file(config, Path(given["--config"])) if "--config" in given else config


def chosen_evaluation(args: list[str]) -> EvalConfig:
    """What the settings of ``eval`` begin with, by ``--model`` and ``--config``; the rest is read later."""
    from peergrad.cli.eval import settings_of

    given = _given(args, "--model", "--base-url", "--engine", "--config")
    config = (
        settings_of(given["--model"], given.get("--base-url"), given.get("--engine")) if "--model" in given else EvalConfig()
    )
    return from_file(config, Path(given["--config"])) if "--config" in given else config


def _given(args: list[str], *names: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            given[name] = value if equals else args[index + 1] if index + 1 < len(args) else ""
    return given


def add_eval(base: EvalConfig) -> None:
    """Add the command ``eval``; of a run, its settings begin with the run's own."""

    @app.command(name="eval")
    def eval_(  # pyright: ignore[reportUnusedFunction] (tyro uses it)
        settings: Annotated[EvalConfig, tyro.conf.arg(name="")] = base,
        config: Path | None = None,
        json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    ) -> None:
        """Measure what a model can do alone, in debate, and for the same tokens without debate, with intervals.

        The same command goes on with an evaluation that was interrupted.

        Args:
            settings: Everything that can be set. Of a run or its checkpoint (--model RUN), what is not given is the run's.
            config: A TOML file with settings; what is given here goes before it.
            json: Print the result as JSON instead of tables.
        """
        from peergrad.cli import eval as eval_command  # brings rich

        del config  # read before: its settings are in ``settings``
        eval_command.evaluate_model(settings, json)


def chosen_debates(args: list[str]) -> DebatesConfig:
    """What the settings of ``debate`` begin with, by ``--model`` and ``--config``; the rest is read later."""
    from peergrad.cli.debate import settings_of

    given = _given(args, "--model", "--base-url", "--engine", "--seat", "--config")
    config = settings_of(given.get("--model", "" if given else None), given.get("--base-url"), given.get("--engine"))
    return from_file(config, Path(given["--config"])) if "--config" in given else config


def add_debate(base: DebatesConfig) -> None:
    """Add the command ``debate``."""

    @app.command(name="debate")
    def debate(  # pyright: ignore[reportUnusedFunction] (tyro uses it)
        question: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="QUESTION")] = None,
        /,
        settings: Annotated[DebatesConfig, tyro.conf.arg(name=""), tyro.conf.UseAppendAction] = base,
        config: Path | None = None,
        json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    ) -> None:
        """Let models debate a question and vote on the answer, without training. Any model, here or behind an API.

        The same command goes on with debates that were interrupted.

        Args:
            question: What is debated; - reads one question a line from stdin, and so does a pipe where none is given.
            settings: Everything that can be set.
            config: A TOML file with settings; what is given here goes before it.
            json: Print one JSON object for each debate, as it ends; all else goes to stderr.
        """
        from peergrad.cli import debate as debate_command  # brings rich

        del config  # read before: its settings are in ``settings``
        debate_command.debate(question, settings, json)


@app.command(name="compare")
def compare(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")],
    /,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Compare two results of ``peergrad eval``, question by question.

    Args:
        first: The folder of a finished evaluation.
        second: Another one, about the same questions.
        json: Print one JSON object instead of a table.
    """
    from peergrad.cli import eval as eval_command  # brings rich

    eval_command.compare_results(first, second, json)


@app.command(name="report")
def report(run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /) -> None:
    """Write a page about a run: curves, and debates before and after.

    Args:
        run: The folder that ``peergrad train`` wrote to.
    """
    from peergrad.runs.folder import Run
    from peergrad.web.report import write_report

    print(write_report(Run.open(run, _warn)))


@app.command(name="export")
def export(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /, to: Path, step: int | None = None
) -> None:
    """Copy a checkpoint as a PEFT adapter with a model card.

    Args:
        run: The folder that ``peergrad train`` wrote to.
        to: The folder to make.
        step: Which step's; unset, the newest.
    """
    from peergrad.runs.export import export as copy
    from peergrad.runs.folder import Run

    print(copy(Run.open(run, _warn), to, step))


def _warn(sentence: str) -> None:
    print(f"warning: {visible(sentence)}", file=sys.stderr)


@app.command(name="serve")
def serve(settings: Annotated[ServeConfig, tyro.conf.arg(name="")] = ServeConfig()) -> None:  # noqa: B008 (frozen)
    """Serve a model to programs that train with the tinker client: the local engine behind its protocol.

    Args:
        settings: Everything that can be set.
    """
    run_server(settings)


@app.command(name="version")
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command line. A person's mistake is one sentence on stderr, never a traceback."""
    code = 0
    try:
        add_train(chosen_settings(sys.argv[2:]) if sys.argv[1:2] == ["train"] else TrainConfig())
        add_check(chosen_settings(sys.argv[2:]) if sys.argv[1:2] == ["check"] else TrainConfig())
        add_eval(chosen_evaluation(sys.argv[2:]) if sys.argv[1:2] == ["eval"] else EvalConfig())
        add_debate(chosen_debates(sys.argv[2:]) if sys.argv[1:2] == ["debate"] else DebatesConfig())
        args = [_ROUNDS.sub("--max-rounds", arg) if sys.argv[1:2] == ["debate"] else arg for arg in sys.argv[1:]]
        config: Any = (tyro.conf.OmitArgPrefixes,)
        app.cli(
            args=args, config=config, prog="peergrad", description=sys.modules["peergrad"].__doc__, use_underscores=False
        )
        sys.stdout.flush()
    except UserError as error:
        print(f"peergrad: {visible(str(error))}", file=sys.stderr)
        code = 2
    except EngineError as error:
        print(f"peergrad: {visible(str(error))}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does; keep Python from complaining about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)

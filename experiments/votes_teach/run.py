"""Play the arms of the experiment: train each with each seed, then measure it alone on held-out questions.

    python experiments/votes_teach/run.py --model MODEL --data DIR --out runs/votes_teach --arms peer,shuffled --seeds 0,1,2

``--data`` has gsm8k_train.jsonl.gz and gsm8k_test.jsonl.gz, and the files of the other tests (``TESTS``) that are to be
measured. Without it the datasets are fetched by name, and judging can't be measured. The model is loaded once. Every run and
evaluation resumes: give the same command again. Two of them share a GPU well: ``--set kv_gb=24 max_rows=512`` gives each a
part of its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peergrad.cli.main import train_settings
from peergrad.config import EvalConfig, TrainConfig
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.sampler import Batcher, Sampler
from peergrad.debate.settings import changed, flat
from peergrad.engines.base import EngineConfig, Setup, UpdateConfig
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from peergrad.engines.registry import LOCAL
from peergrad.runs import evaluation
from peergrad.runs.models import ModelRef
from peergrad.runs.training import train_run
from peergrad.runs.watch import Printing
from peergrad.tasks.open import open_questions
from peergrad.terminal.tables import result_text

ARMS = ("peer", "shuffled", "majority", "format", "truth", "parallel")
TESTS = {
    "gsm8k": ("gsm8k", "gsm8k_test.jsonl.gz"),
    "svamp": ("svamp", "svamp.jsonl.gz"),
    "aime": ("aime", "aime2024.jsonl"),
    "judge-gsm8k": ("judging", "judge_gsm8k_solutions.jsonl.gz"),
    "judge-llmbar": ("judging", "judge_llmbar.jsonl.gz"),
}
"""What is measured: the task, and its file in ``--data``. Judging is to say which of two answers is right."""


def task(name: str, data: Path | None, file: str) -> str:
    """A task as peergrad names it."""
    return f"{name}:{data / file}" if data else name


def known(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that a config has."""
    return {name: value for name, value in settings.items() if name in flat(config)}


def training(args: argparse.Namespace, arm: str, seed: int) -> TrainConfig:
    """The settings of an arm: its file, then what the command gives."""
    config = train_settings(["--config", str(Path(__file__).parent / f"{arm}.toml")])
    questions = {
        "task": task("gsm8k", args.data, "gsm8k_train.jsonl.gz"),
        "eval_task": task("gsm8k", args.data, TESTS["gsm8k"][1]),
    }
    given = {"model": args.model, "seed": seed, "out": args.out / f"{arm}-{seed}"} | questions
    given |= {"steps": args.steps} if args.steps else {}
    return changed(config, given | known(config, args.set), "--set")


def measuring(args: argparse.Namespace, name: str, test: str) -> EvalConfig:
    """The settings of an evaluation of a run, or of ``base``, on a test."""
    model = args.model if name == "base" else str(args.out / name)
    given = {"model": model, "task": task(TESTS[test][0], args.data, TESTS[test][1]), "mode": "direct", "max_tokens": 512}
    given |= {"questions": args.questions, "samples": args.samples, "sample_temperature": 1.0}
    config = changed(EvalConfig(), given | {"out": args.out / name / "evals" / test}, "run.py")
    return changed(config, known(config, args.set), "--set")


class Players:
    """The runs and evaluations of one command, all on one copy of the base model."""

    def __init__(self) -> None:
        self._base: Local | None = None

    def _loaded(self, setup: Setup) -> Local:
        self._base = self._base or LOCAL.open_trainer(setup)
        return self._base

    def policy(self, setup: Setup) -> Local:
        """A policy to be trained."""
        update = setup.update or UpdateConfig()
        return self._loaded(setup).new_policy(LoraRules(rank=update.rank, alpha=update.alpha), setup.seed)

    async def train(self, config: TrainConfig) -> None:
        await train_run(config, Printing(config.learn.steps), load=self.policy)

    async def measure(self, config: EvalConfig, engine: EngineConfig) -> None:
        plan = evaluation.plan(config, open_questions(config.task))
        async with contextlib.AsyncExitStack() as opened:

            async def sampler_of(ref: ModelRef) -> Sampler:
                model = self._loaded(Setup(engine=replace(engine, model=ref.base), update=UpdateConfig()))
                sampler = Batcher(await model.sampler_with(ref.adapter), **LOCAL.batching(engine))
                return await opened.enter_async_context(sampler)

            assert config.measure.out
            result = await evaluation.evaluate(plan, config.measure.out, Printing(0), result_text, sampler_of)
        print(result_text(result), flush=True)


async def play(args: argparse.Namespace) -> None:
    """Everything the command asks for, in the order of the seeds: what is cut short has whole comparisons."""
    runs = {f"{arm}-{seed}": training(args, arm, seed) for seed in args.seeds for arm in args.arms}
    names = [*(["base"] if args.base else []), *runs]
    measured = {name: [measuring(args, name, test) for test in args.tests] for name in names}
    players = Players()
    for name in names:
        print(f"== {name}", flush=True)
        if name in runs:
            await players.train(runs[name])
        for config in measured[name]:
            await players.measure(config, config.engine)


def names(text: str) -> list[str]:
    return text.split(",")


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as TOML would have it, or as a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return name, tomllib.loads(f"value = {value}")["value"]
    return name, value


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/votes_teach"))
    parser.add_argument("--arms", type=names, default=list(ARMS), help=", ".join(ARMS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--steps", type=int, help="instead of those of the arm's file")
    parser.add_argument("--tests", type=names, default=["gsm8k"], help=", ".join(TESTS))
    parser.add_argument("--questions", type=int, default=0, help="of each test; 0 is all")
    parser.add_argument("--samples", type=int, default=4, help="of each question, for avg@k and the majority vote")
    parser.add_argument("--no-base", dest="base", action="store_false", help="the model as it is was measured elsewhere")
    parser.add_argument("--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="other settings")
    args = parser.parse_args(given)
    for name, allowed in (("arms", ARMS), ("tests", TESTS)):
        if unknown := {*getattr(args, name)} - {*allowed}:
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is not known; there are {', '.join(allowed)}")
    needed = ["gsm8k_train.jsonl.gz", TESTS["gsm8k"][1], *(TESTS[test][1] for test in args.tests)]
    if args.data and (missing := [file for file in dict.fromkeys(needed) if not (args.data / file).exists()]):
        parser.error(f"--data: {args.data} has no {' and no '.join(missing)}")
    if not args.data and (by_file := [test for test in args.tests if TESTS[test][0] == "judging"]):
        parser.error(f"--tests: {', '.join(by_file)} is a file, which --data has")
    args.set = dict(args.set)
    every = {**flat(TrainConfig()), **flat(EvalConfig())}
    if unknown := args.set.keys() - every.keys():
        parser.error(f"--set: no setting is called {', '.join(sorted(unknown))}")
    return args


def main(given: Sequence[str]) -> int:
    args = arguments(given)
    try:
        asyncio.run(play(args))
    except (UserError, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

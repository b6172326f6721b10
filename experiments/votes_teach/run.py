"""Play the arms of the experiment: train each with each seed, then measure it alone on held-out questions.

    python experiments/votes_teach/run.py --model MODEL --data DIR --out runs/votes_teach --arms peer,shuffled --seeds 0,1,2

``--data`` has gsm8k_train.jsonl.gz and gsm8k_test.jsonl.gz, and svamp.jsonl.gz and aime2024.jsonl if these are to be
measured too. Without it the datasets are fetched by name. Every part resumes: give the same command again. What follows
``--`` goes to every training and evaluation (``-- --kv-gb 24 --max-rows 512``). The log of an arm is OUT/ARM-SEED.log.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ARMS = ("peer", "shuffled", "majority", "format", "truth", "parallel")
NEEDED = ("gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz")
TESTS = {"gsm8k": "gsm8k_test.jsonl.gz", "svamp": "svamp.jsonl.gz", "aime": "aime2024.jsonl"}


def task(name: str, data: Path | None, file: str) -> str | None:
    """A task as peergrad names it; ``None`` where its file is not there."""
    if data is None:
        return name
    return f"{name}:{data / file}" if (data / file).exists() else None


def commands(args: argparse.Namespace, extra: list[str]) -> dict[str, list[list[str]]]:
    """What is run for the model as it is and for each arm and seed, one after the other."""
    tests = {name: found for name, file in TESTS.items() if (found := task(name, args.data, file))}

    def measured(name: str, model: str) -> list[list[str]]:
        samples = ["--mode", "direct", "--questions", str(args.questions), "--samples", "4", "--sample-temperature", "1"]
        tokens = ["--max-tokens", "512", *extra]
        return [
            ["eval", "--model", model, "--task", test, *samples, *tokens, "--out", str(args.out / name / "evals" / of)]
            for of, test in tests.items()
        ]

    played = {"base": measured("base", args.model)} if args.base else {}
    for arm in args.arms.split(","):
        for seed in args.seeds.split(","):
            name = f"{arm}-{seed}"
            settings = ["--config", str(Path(__file__).parent / f"{arm}.toml"), "--model", args.model, "--seed", seed]
            questions = ["--task", task("gsm8k", args.data, "gsm8k_train.jsonl.gz"), "--eval-task", tests["gsm8k"]]
            steps = ["--steps", str(args.steps)] if args.steps else []
            training = ["train", *settings, *questions, *steps, *extra, "--out", str(args.out / name)]
            played[name] = [training, *measured(name, str(args.out / name))]
    return played


async def play(name: str, parts: list[list[str]], out: Path, at_once: asyncio.Semaphore) -> int:
    """Run the parts of an arm; the first that fails ends it."""
    async with at_once:
        for part in parts:
            print(f"{name}: {part[0]}", flush=True)
            with (out / f"{name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "peergrad", *part, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
                )
                if code := await process.wait():
                    print(f"{name}: {part[0]} ended with {code}; see {out / name}.log", flush=True)
                    return code
    return 0


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/votes_teach"))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, help="instead of those of the arm's file")
    parser.add_argument("--questions", type=int, default=0, help="of each test; 0 is all")
    parser.add_argument("--at-once", type=int, default=1, help="how many arms share the GPU")
    parser.add_argument("--no-base", dest="base", action="store_false", help="the model as it is was measured elsewhere")
    own, extra = sys.argv[1:], []
    if "--" in own:
        own, extra = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    if unknown := {*args.arms.split(",")} - {*ARMS}:
        parser.error(f"--arms: {', '.join(sorted(unknown))} is not known; there are {', '.join(ARMS)}")
    if args.data and (missing := [file for file in NEEDED if not (args.data / file).exists()]):
        parser.error(f"--data: {args.data} has no {' and no '.join(missing)}")
    args.out.mkdir(parents=True, exist_ok=True)
    at_once = asyncio.Semaphore(args.at_once)
    ended = await asyncio.gather(*(play(name, parts, args.out, at_once) for name, parts in commands(args, extra).items()))
    return max(ended, default=0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

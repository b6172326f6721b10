"""What ``make demo`` teaches, over seeds and machines, and how much of it is the majority's doing.

    python benchmarks/demo.py --seeds 0-9 --runs majority,majority-2threads,majority-unpacked,none --at-once 2

Trains the demo once for every seed and kind of run: ``majority``, as it is; ``none``, where form alone is rewarded; or
``peer`` and ``shuffled``, by the model's votes on others' answers and by the same dealt out anew. These three are played as
``ballot``; in ``none`` votes count for nothing. With one thread each unless it says ``-2threads``, and with matrices packed
by oneDNN, where this PyTorch has it, unless it says
``-unpacked``: sums of floating-point numbers then come out a little different, as on other machines. Each is a process and a
folder of its own. Printed is how many of the held-out sums a sampled answer alone gets right, and the likeliest one, before
and after. The same command resumes: what is finished is read, what was cut off goes on. A line of JSON a run, a table, and a
line of JSON last. What follows ``--`` is given to ``peergrad train``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.sampler import all_of
from peergrad.runs.folder import Run

Row = dict[str, Any]
UNPACKED = """
import peergrad.engines.local.model.decoder as decoder
from peergrad.cli.main import main
decoder.can_pack = lambda weights: False
main()
"""


def curve(lines: Sequence[dict[str, Any]], kind: str) -> list[tuple[int, float]]:
    """The share of held-out sums that are right over the steps: ``direct``, the likeliest words, or ``sampled``."""
    return [
        (line["step"], share)
        for line in lines
        if line["phase"] == "eval"
        for name, share in line.items()
        if name.startswith(f"eval/{kind}/") and name.endswith("/correct")
    ]


def row_of(folder: Path, seed: int, kind: str) -> Row | None:
    """What a run came to: the share of held-out sums that it answers alone over its steps; ``None`` until it is over."""
    run = Run(folder)
    lines = run.metrics() if folder.is_dir() else []
    likeliest = curve(lines, "direct")
    sampled = curve(lines, "sampled") or likeliest
    if not (folder / "report.html").exists() or len(sampled) < 2:
        return None
    trained = [line for line in lines if line["phase"] == "train"]
    accuracy = [line["votes/accuracy"] for line in trained if line.get("votes/accuracy") is not None]
    return {
        "seed": seed,
        "run": kind,
        "before": sampled[0][1],
        "after": sampled[-1][1],
        "likeliest": [likeliest[0][1], likeliest[-1][1]],
        "curve": sampled,
        "votes_right": round(float(np.mean(accuracy)), 3) if accuracy else None,
        "steps_s": round(sum(line["time/sample_s"] + line["time/train_s"] for line in trained)),
    }


async def trained(args: argparse.Namespace, seed: int, kind: str, free: asyncio.Semaphore) -> Row:
    """A run, played or resumed to its end unless it is there."""
    folder = args.out / f"{kind}-{seed}"
    votes, *how = kind.split("-")
    threads = next((part.removesuffix("threads") for part in how if part != "unpacked"), "1")
    async with free:
        if (row := row_of(folder, seed, kind)) is None:
            flags = ["train", "--preset", "demo", "--seed", seed, "--votes", votes, "--threads", threads, "--out", folder]
            args.out.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".log").open("ab") as log:
                started = ["-c", UNPACKED] if "unpacked" in how else ["-m", "peergrad"]
                ballots = [] if votes == "majority" else ["--protocol", "ballot", "--wording", "brief"]
                command = [sys.executable, *started, *map(str, flags), *ballots, *args.flags]
                environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait must not take another's core
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
                try:
                    code = await process.wait()
                finally:
                    if process.returncode is None:  # the sweep ends, and its runs with it; they resume
                        process.terminate()
            row = row_of(folder, seed, kind)
            if row is None:  # one that learned nothing ends with an error, too, and is a result
                raise EngineError(f"{kind}, seed {seed}, ended with {code}; see {log.name}")
    print(json.dumps(row), flush=True)
    return row


def table(rows: Sequence[Row]) -> str:
    """A line a seed, before and after for each kind of run; below them the means, and those of the likeliest answers."""
    kinds = list(dict.fromkeys(row["run"] for row in rows))
    by_seed: defaultdict[int, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_seed[row["seed"]][row["run"]] = row

    def cells(found: dict[str, Row]) -> list[str]:
        return [f"{found[k]['before']:.0%} → {found[k]['after']:.0%}" if k in found else "–" for k in kinds]

    def mean(kind: str, of: Callable[[Row], Sequence[float]]) -> Row:
        before, after = np.mean([of(row) for row in rows if row["run"] == kind], 0)
        return {"before": before, "after": after}

    sampled = {kind: mean(kind, lambda row: (row["before"], row["after"])) for kind in kinds}
    likeliest = {kind: mean(kind, lambda row: row["likeliest"]) for kind in kinds}
    lines = [["seed", *kinds], ["---"] * (len(kinds) + 1)]
    lines += [[str(seed), *cells(found)] for seed, found in sorted(by_seed.items())]
    lines += [["mean", *cells(sampled)], ["mean of the likeliest answers", *cells(likeliest)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def sweep(args: argparse.Namespace) -> list[Row]:
    free = asyncio.Semaphore(args.at_once)
    return await all_of([trained(args, seed, kind, free) for seed in args.seeds for kind in args.runs])


def seeds(text: str) -> list[int]:
    """Example: ``seeds("0-2,7") == [0, 1, 2, 7]``"""
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for low, _, high in ranges for seed in range(int(low), int(high or low) + 1)]


def kinds(text: str) -> list[str]:
    """Example: ``kinds("none,peer-2threads") == ["none", "peer-2threads"]``"""
    given = text.split(",")
    if wrong := [
        kind for kind in given if not re.fullmatch(r"(peer|shuffled|majority|none)(-\d+threads)?(-unpacked)?", kind)
    ]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not VOTES[-Nthreads][-unpacked]")
    return given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds, default=seeds("0-9"), help="such as 0-9 or 0,3,5")
    parser.add_argument(
        "--runs", type=kinds, default=["majority"], help="VOTES[-Nthreads][-unpacked], with commas between them"
    )
    parser.add_argument("--at-once", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/demo-sweep"))
    parser.add_argument("flags", nargs="*", help="after --: more flags of peergrad train, such as -- --steps 8")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        rows = asyncio.run(sweep(args))
    except (EngineError, UserError) as error:
        sys.exit(f"demo: {error}")
    print(table(rows))
    rose = {kind: sum(row["after"] > row["before"] for row in rows if row["run"] == kind) for kind in args.runs}
    result = {"benchmark": "demo", "seconds": round(time.monotonic() - started), "seeds": len(args.seeds), "rose": rose}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

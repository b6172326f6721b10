"""What ``make demo`` teaches, over seeds, and how much of it is the votes' doing.

    python benchmarks/demo.py --seeds 0-9 --at-once 2
    python benchmarks/demo.py --seeds 0-9 --votes peer,shuffled --out runs/with-control -- --center group

Trains the demo once for every seed and kind of votes (``peer``; the controls ``shuffled``, ``majority``, ``none``), each in
a process and a folder of its own, and prints how many of the held-out sums it answers alone, before and after. The same
command resumes: what is finished is read, what was cut off goes on. A line of JSON a run, a table, and a line of JSON last.
What follows ``--`` is given to ``peergrad train``: shuffled votes, for one, need advantages within a question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.sampler import all_of
from peergrad.runs.folder import Run

Row = dict[str, Any]


def row_of(folder: Path, seed: int, votes: str) -> Row | None:
    """What a run came to: the share of held-out sums that it answers alone over its steps; ``None`` until it is over."""
    run = Run(folder)
    lines = run.metrics() if folder.is_dir() else []
    alone = [
        (line["step"], share)
        for line in lines
        if line["phase"] == "eval"
        for name, share in line.items()
        if name.startswith("eval/direct/") and name.endswith("/correct")
    ]
    if not (folder / "report.html").exists() or len(alone) < 2:
        return None
    trained = [line for line in lines if line["phase"] == "train"]
    accuracy = [line["votes/accuracy"] for line in trained if line.get("votes/accuracy") is not None]
    return {
        "seed": seed,
        "votes": votes,
        "before": alone[0][1],
        "after": alone[-1][1],
        "curve": alone,
        "votes_right": round(float(np.mean(accuracy)), 3) if accuracy else None,
        "steps_s": round(sum(line["time/sample_s"] + line["time/train_s"] for line in trained)),
    }


async def trained(args: argparse.Namespace, seed: int, votes: str, free: asyncio.Semaphore) -> Row:
    """A run, played or resumed to its end unless it is there."""
    folder = args.out / f"{votes}-{seed}"
    async with free:
        if (row := row_of(folder, seed, votes)) is None:
            flags = ["--preset", "demo", "--seed", seed, "--votes", votes, "--out", folder, *args.flags]
            args.out.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".log").open("ab") as log:
                command = [sys.executable, "-m", "peergrad", "train", *map(str, flags)]
                environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait must not take another's core
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
                try:
                    code = await process.wait()
                finally:
                    if process.returncode is None:  # the sweep ends, and its runs with it; they resume
                        process.terminate()
            row = row_of(folder, seed, votes)
            if row is None:  # one that learned nothing ends with an error, too, and is a result
                raise EngineError(f"seed {seed} with {votes} votes ended with {code}; see {log.name}")
    print(json.dumps(row), flush=True)
    return row


def table(rows: Sequence[Row]) -> str:
    """A line a seed, before and after for each kind of votes; below them the means."""
    kinds = list(dict.fromkeys(row["votes"] for row in rows))
    by_seed: defaultdict[int, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_seed[row["seed"]][row["votes"]] = row

    def cells(found: dict[str, Row]) -> list[str]:
        return [f"{found[k]['before']:.0%} → {found[k]['after']:.0%}" if k in found else "–" for k in kinds]

    means = {
        kind: {end: float(np.mean([row[end] for row in rows if row["votes"] == kind])) for end in ("before", "after")}
        for kind in kinds
    }
    lines = [["seed", *kinds], ["---"] * (len(kinds) + 1)]
    lines += [[str(seed), *cells(found)] for seed, found in sorted(by_seed.items())] + [["mean", *cells(means)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def sweep(args: argparse.Namespace) -> list[Row]:
    free = asyncio.Semaphore(args.at_once)
    return await all_of([trained(args, seed, votes, free) for seed in args.seeds for votes in args.votes])


def seeds(text: str) -> list[int]:
    """Example: ``seeds("0-2,7") == [0, 1, 2, 7]``"""
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for low, _, high in ranges for seed in range(int(low), int(high or low) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds, default=seeds("0-9"), help="such as 0-9 or 0,3,5")
    parser.add_argument("--votes", type=lambda text: text.split(","), default=["peer"])
    parser.add_argument("--at-once", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/demo-sweep"))
    parser.add_argument("flags", nargs="*", help="after --: more flags of peergrad train, such as -- --threads 1")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        rows = asyncio.run(sweep(args))
    except (EngineError, UserError) as error:
        sys.exit(f"demo: {error}")
    print(table(rows))
    peers = [row for row in rows if row["votes"] == "peer"]
    result = {"benchmark": "demo", "seconds": round(time.monotonic() - started), "seeds": len(args.seeds)}
    print(json.dumps(result | {"rose": sum(row["after"] > row["before"] for row in peers), "peer_runs": len(peers)}))


if __name__ == "__main__":
    main()

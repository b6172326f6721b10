"""A million hostile replies and every worst-case input: the reader never raises and takes linear time (SPEC 1.7, 3.8).

Run: ``python benchmarks/read_hostile.py [--replies N] [--processes P]``. The last line is JSON; it fails if a reply
raised or broke a rule, if 1 MB of anything takes 100 ms or more to read, or if twice the text takes more than 2.5 times as
long to read or to quote.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hostile.fuzz import FAMILIES, Family, check, replies

CHUNK = 5_000
RUNS = 5
MB = 1_000_000
MOST_MS = 100
MOST_RATIO = 2.5


def read_chunk(chunk: tuple[int, int]) -> tuple[int, int, str]:
    """Check the replies of one seed: how many, how many raised or broke a rule, and the first of those."""
    seed, count = chunk
    faults, first = 0, ""
    for text in replies(seed, count):
        try:
            check(text)
        except Exception as error:
            faults += 1
            first = first or f"seed {seed}: {type(error).__name__}: {error}: {text!r}"
    return count, faults, first


def fuzz(total: int, processes: int) -> tuple[int, float]:
    """Faults among ``total`` replies, and replies per second, generating and all checks included."""
    chunks = [(at // CHUNK, min(CHUNK, total - at)) for at in range(0, total, CHUNK)]
    start, done, faults = time.perf_counter(), 0, 0
    with multiprocessing.Pool(processes) as pool:
        for count, bad, first in pool.imap_unordered(read_chunk, chunks):
            done, faults = done + count, faults + bad
            if first:
                print(ascii(first), file=sys.stderr)
            if done % (10 * CHUNK) == 0 or done == total:
                rate = done / (time.perf_counter() - start)
                print(f"{done:,} of {total:,} replies, {faults} faults, {rate:,.0f}/s", file=sys.stderr, flush=True)
    return faults, total / (time.perf_counter() - start)


def milliseconds(family: Family) -> tuple[float, float]:
    """The least time at 1 MB and at 2 MB, run in turns so that a slow moment of the machine hits both."""
    texts = family.text(MB), family.text(2 * MB)
    least = [float("inf"), float("inf")]
    for _ in range(RUNS):
        for index, text in enumerate(texts):
            start = time.perf_counter()
            family.run(text)
            least[index] = min(least[index], (time.perf_counter() - start) * 1e3)
    return least[0], least[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()

    # Timed first and alone: the fuzz keeps every core busy.
    times: dict[str, tuple[float, float]] = {}
    for index, family in enumerate(FAMILIES, 1):
        times[family.name] = milliseconds(family)
        if index % 10 == 0 or index == len(FAMILIES):
            print(f"{index} of {len(FAMILIES)} families timed", file=sys.stderr, flush=True)
    # Under two milliseconds a ratio says more about the clock than about the text.
    ratios = {name: two / max(one, 2.0) for name, (one, two) in times.items()}
    for name in sorted(times, key=lambda name: -times[name][0])[:20]:
        print(f"{times[name][0]:8.1f} ms at 1 MB, x{ratios[name]:.2f} at 2 MB  {name!a}", file=sys.stderr)
    read = {name: one for name, (one, _) in times.items() if not name.startswith(("quote", "harmless"))}
    slowest = max(read, key=lambda name: read[name])
    quoted = max(one for name, (one, _) in times.items() if name not in read)

    faults, rate = fuzz(args.replies, args.processes)
    result = {
        "benchmark": "read_hostile",
        "replies": args.replies,
        "exceptions": faults,
        "replies_per_s": round(rate),
        "worst_1mb_ms": round(read[slowest], 1),
        "worst_family": slowest,
        "worst_ratio_2x": round(max(ratios.values()), 2),
        "worst_quote_1mb_ms": round(quoted, 1),
        "families": len(FAMILIES),
    }
    print(json.dumps(result))
    return int(faults > 0 or read[slowest] >= MOST_MS or max(ratios.values()) > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())

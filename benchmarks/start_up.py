"""How long commands take to begin, against an interpreter that imports numpy: medians, one after the other.

``python benchmarks/start_up.py [RUNS]``. Scoring must stay under half a second on an idle machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

TRANSCRIPT = Path(__file__).parent.parent / "tests" / "golden" / "debates.jsonl"
COMMANDS = {
    "python, numpy": ["-c", "import numpy"],
    "import peergrad": ["-c", "import peergrad"],
    "peergrad version": ["-m", "peergrad", "version"],
    "peergrad score": ["-m", "peergrad", "score", str(TRANSCRIPT), "--json"],
    "peergrad train --help": ["-m", "peergrad", "train", "--help"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    took = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            took[name].append(seconds(command))
    floor = statistics.median(took["python, numpy"])
    for name, times in took.items():
        print(f"{name:24}{statistics.median(times):7.3f} s {statistics.median(times) / floor:6.2f} times the floor")


if __name__ == "__main__":
    main()

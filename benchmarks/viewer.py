"""How fast ``peergrad view`` is with a large run: 10,000 debates, 3 GB of transcripts, prompts and tokens kept.

A real server in a process of its own is asked over HTTP: its first page while nothing is indexed yet, and after that the
table of debates, debates, and searches for words that are rare, common or not there. Limits: the first page 1 s; once all is
indexed a debate 200 ms, a search 3 s; 500 MB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.rescore import Debaters
from peergrad import Batcher, Parallel, Question, dump, play_all
from peergrad.config import TrainConfig
from peergrad.runs.folder import Progress, Run

PROTOCOL = Parallel(agents=5, max_rounds=3, max_tokens=2048)
TEMPLATES, PER_STEP = 24, 32
LIMITS = {"first_page_s": 1.0, "debate_s": 0.2, "search_s": 3.0, "memory_mb": 500.0}


async def write_run(folder: Path, debates: int, megabytes: float) -> None:
    """A run as training writes it: a few debates really played, and copies under other names with words of their own."""
    run = Run(folder)
    run.begin(TrainConfig(), {"model": "benchmark", "task": "sums"})
    questions = [Question(f"q{i}", f"What is {i} + {42 - i}?", "42", "boxed", "sums") for i in range(TEMPLATES)]
    words = 40
    while True:  # as long as it takes for the size that is asked for
        async with Batcher(Debaters(PROTOCOL.agents, solution=2 * words, evaluation=words)) as batcher:
            played = await play_all(PROTOCOL, questions, batcher, prefix="step-0/")
        lines = [dump(debate) for debate in played.debates]
        size = sum(map(len, lines)) / len(lines)
        wanted = megabytes * 1e6 / debates
        if size >= wanted * 0.95 or words > 4000:
            break
        words = max(words + 1, int(words * wanted / size))
    for step, first in enumerate(range(0, debates, PER_STEP), 1):
        with (folder / "debates" / f"step_{step:06}.jsonl").open("w") as file:
            for index in range(first, min(first + PER_STEP, debates)):
                line = lines[index % len(lines)].replace('"id": "step-0/', f'"id": "step-{step}/{index}-', 1)
                line = line.replace("</evaluation>", f" remark{index:06}</evaluation>") if index % 100 == 7 else line
                file.write(line + "\n")
        share = random.Random(step).random()
        run.log(
            Progress(step),
            "train",
            {"replies/readable": share, "optim/loss": 1 - share, "debates/done": PER_STEP, "alarms": []},
        )


class Viewer:
    """``peergrad view`` in a process of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        root = Path(__file__).parent.parent
        env = os.environ | {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(cache)}
        command = [sys.executable, "-m", "peergrad", "view", str(folder), "--no-open"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout
        address = urllib.parse.urlsplit(self.process.stdout.readline().strip())
        self.url, self.token = f"http://{address.netloc}", urllib.parse.parse_qs(address.query)["token"][0]

    def get(self, key: str, **query: Any) -> tuple[float, dict[str, Any]]:
        """How long an answer takes, and the answer."""
        asked = f"{self.url}/api/{key}?{urllib.parse.urlencode(query)}"
        start = time.perf_counter()
        request = urllib.request.Request(asked, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            body = answer.read()
        return time.perf_counter() - start, json.loads(body)

    @property
    def memory_mb(self) -> float:
        """The most it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(folder: Path, cache: Path) -> dict[str, Any]:
    started = time.perf_counter()
    viewer = Viewer(folder, cache)
    found: dict[str, Any] = {"start_s": time.perf_counter() - started}
    try:
        found["first_page_s"], sources = viewer.get("sources")
        id = sources["sources"][0]["id"]
        found["source_s"] = viewer.get(f"source/{id}")[0]
        slowest = 0.0
        while viewer.get("sources")[1]["sources"][0]["indexed"] < 1:
            slowest = max(slowest, viewer.get(f"debates/{id}")[0])
            time.sleep(0.5)
        found |= {"indexing_s": time.perf_counter() - started, "table_while_indexing_s": slowest}
        found["table_s"], table = viewer.get(f"debates/{id}", sort="-chars", flags="winner_wrong")
        total, rng = table["total"], random.Random(0)
        parts = [part["name"] for part in viewer.get(f"source/{id}")[1]["parts"]]
        times = [viewer.get(f"debate/{id}/{rng.choice(parts[:-1])}/{rng.randrange(PER_STEP)}")[0] for _ in range(20)]
        found["debate_s"] = max(times)
        searches = {
            word: viewer.get(f"debates/{id}", q=word) for word in ("remark000107", "remark", "the", "not to be found")
        }
        found["search_s"] = max(took for took, _ in searches.values())
        found["matched"] = {word: answer["matched"] for word, (_, answer) in searches.items()}
        found |= {"debates": total, "memory_mb": viewer.memory_mb}
    finally:
        viewer.process.terminate()
        viewer.process.wait(60)
    again = time.perf_counter()
    viewer = Viewer(folder, cache)
    try:
        while viewer.get("sources")[1]["sources"][0]["indexed"] < 1:
            time.sleep(0.05)
        found["start_again_s"] = time.perf_counter() - again
    finally:
        viewer.process.terminate()
        viewer.process.wait(60)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--debates", type=int, default=10_000)
    parser.add_argument("--megabytes", type=float, default=3_000)
    parser.add_argument("--keep", type=Path, help="write the run here and leave it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary) / "run"
        if not folder.exists():
            asyncio.run(write_run(folder, args.debates, args.megabytes))
        size = sum(path.stat().st_size for path in folder.glob("debates/*")) / 1e6
        found = measure(folder, Path(temporary) / "cache")
        index = sum(path.stat().st_size for path in (Path(temporary) / "cache").rglob("*.sqlite*")) / 1e6
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
    print(
        json.dumps({"benchmark": "viewer", "megabytes": round(size), "index_mb": round(index), **rounded, "limits": LIMITS})
    )
    return int(any(found[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())

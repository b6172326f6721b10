"""What voters know: how likely a Yes to their own final value and to another's is, and whose votes are right.

    python experiments/votes_teach/voters.py experiments/votes_teach/results/peer-0/debates/step_000001.jsonl.gz

Reads debates by soft verdicts, as a run keeps them (``debates/step_*.jsonl``); tokens may be left out of them.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peergrad.debate.transcript import load
from peergrad.debate.types import Debate
from peergrad.measure.counts import turn_grades, vote_counts
from peergrad.measure.statistics import ratio
from peergrad.reward.rewards import score
from peergrad.tasks.base import Grade
from peergrad.tasks.open import regrade

_YES = re.compile(r"Yes (\d\.\d+)")


def read(path: Path) -> list[Debate]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return [load(line) for line in text.splitlines()]


def yes(debates: Sequence[Debate], graded: Sequence[Sequence[Grade]]) -> dict[str, list[float]]:
    """How likely a Yes is, by whose value is asked about and whether it is right."""
    found: dict[str, list[float]] = defaultdict(list)
    for debate, grades in zip(debates, graded, strict=True):
        answers = {turn.agent: grade for turn, grade in zip(debate.turns, grades, strict=True) if turn.asked_to_answer}
        for turn in debate.turns:
            for line, (agent, *_) in zip(turn.text.splitlines(), turn.candidates, strict=False):
                asked, own, likely = answers[agent], answers[turn.agent], _YES.search(line)
                if likely and asked.answer is not None:
                    whose = "the voter's own" if asked.answer == own.answer else "another"
                    found[f"{whose}, and {'right' if asked.correct else 'wrong'}"].append(float(likely[1]))
    return found


def main(paths: Sequence[str]) -> int:
    for path in paths:
        debates = read(Path(path))
        graded = turn_grades(debates, regrade)
        print(f"{path}: {len(debates)} debates\n\n| the value asked about | mean Yes | of |\n|---|---|---|")
        for name, likely in sorted(yes(debates, graded).items(), reverse=True):
            print(f"| {name} | {np.mean(likely):.2f} | {len(likely):,} |")
        counts = [vote_counts(score(debate), grades) for debate, grades in zip(debates, graded, strict=True)]
        for name in ("votes/accuracy", "votes/accuracy_beyond_own"):
            parts, wholes = zip(*(one.get(name, (0.0, 0.0)) for one in counts), strict=True)
            if share := ratio(parts, wholes):
                of = f"{sum(wholes):.0f} votes on {sum(map(bool, wholes))} questions"
                print(f"\n{name}: {share.value:.0%} ({share.low:.0%} to {share.high:.0%}), {of}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

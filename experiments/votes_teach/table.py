"""The table and the figure of the experiment, from run folders alone.

    python experiments/votes_teach/table.py runs/votes_teach --figure votes_teach.svg

Prints Markdown. Intervals are 95 %, by Student's t: questions are paired and scatter, and so do the seeds of an arm that has
several. What one seed says of an arm is said of that run: how its seeds would scatter is not known. Two runs of the same
seed begin with the same weights and see the same questions: arms with several seeds in common are compared by these pairs,
too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peergrad.measure.statistics import student_t

ORDER = ("base", "truth", "majority", "peer", "shuffled", "format", "parallel")
COLOURS = {
    "truth": "#888888",
    "majority": "#0072b2",
    "peer": "#d55e00",
    "shuffled": "#009e73",
    "format": "#cc79a7",
    "parallel": "#e69f00",
}
Values = dict[str, dict[str, np.ndarray]]  # by arm and seed, the value of each question
Steps = list[dict[str, Any]]


def arm_of(folder: Path) -> str:
    """The arm of a folder ARM-SEED."""
    return re.sub(r"-\d+$", "", folder.name)


def folders(out: Path) -> list[Path]:
    """The folders of base and arms, in the order of the table."""
    known = [folder for folder in out.iterdir() if folder.is_dir() and arm_of(folder) in ORDER]
    return sorted(known, key=lambda folder: (ORDER.index(arm_of(folder)), folder.name))


def values(out: Path, test: str, name: str) -> Values:
    """What each question of a test came to, for those that all arms were asked."""
    results = {
        folder: json.loads(path.read_text())
        for folder in folders(out)
        if (path := folder / "evals" / test / "result.json").exists()
    }
    shared = set.intersection(*({*result["questions"]} for result in results.values())) if results else set()
    by_arm: Values = defaultdict(dict)
    for folder, result in results.items():
        of = dict(zip(result["questions"], result["values"].get(name, ()), strict=False))
        if of:
            seed = folder.name.removeprefix(arm_of(folder))
            by_arm[arm_of(folder)][seed] = np.array([of[question] for question in sorted(shared)], float)
    return by_arm


def measured(out: Path, test: str) -> list[str]:
    """What was measured: greedy answers, then the mean and the majority of several. The majority of one is that one."""
    paths = out.glob(f"*/evals/{test}/result.json")
    names = {name for path in paths for name in json.loads(path.read_text())["values"]} - {"direct/cons@1"}
    return ["direct/correct", *sorted(name for name in names if re.fullmatch(r"direct/(avg|cons)@\d+", name))]


def change(ours: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> str:
    """The difference of two arms in points, with its interval (Welch and Satterthwaite)."""
    by_question = np.mean([*ours.values()], 0) - np.mean([*others.values()], 0)
    return interval(by_question, *(np.mean([*arm.values()], 1) for arm in (ours, others) if len(arm) > 1))


def change_in_pairs(ours: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> str:
    """The same over the seeds that both arms have, which have to be several."""
    pairs = [ours[seed] - others[seed] for seed in ours if seed in others]
    return interval(np.mean(pairs, 0), np.mean(pairs, 1)) if len(pairs) > 1 else ""


def interval(by_question: np.ndarray, *seeds: np.ndarray) -> str:
    """The mean of differences in points, with the interval that follows from how questions and seeds scatter."""
    parts = [(values.var(ddof=1) / len(values), len(values) - 1) for values in (by_question, *seeds)]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / free for part, free in parts) if variance else 1
    half = student_t(int(freedom)) * variance**0.5
    low, middle, high = (100 * (by_question.mean() + side * half) for side in (-1, 0, 1))
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def accuracy_rows(of: Values, against: Sequence[str]) -> dict[str, list[str]]:
    """By arm its mean, and its differences from others with their intervals."""
    if not of:
        return {}
    rows: dict[str, list[str]] = {}
    for arm, seeds in of.items():
        shares = [100 * seed.mean() for seed in seeds.values()]
        rows[arm] = [", ".join(f"{share:.1f}" for share in shares), f"{np.mean(shares):.1f}"]
        others = [(arm != other and of.get(other)) or {} for other in against]
        rows[arm] += [change(seeds, other) if other else "" for other in others]
        rows[arm].append(change_in_pairs(seeds, others[-1]))
    return rows


def steps_of(folder: Path) -> Steps:
    """The lines of a run's metrics."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def first_and_last(steps: Steps, name: str) -> str:
    """A metric of training: the mean of its first and of its last three steps."""
    known = [line[name] for line in steps if line.get("phase") == "train" and line.get(name) is not None]
    return f"{np.mean(known[:3]):.3g} → {np.mean(known[-3:]):.3g}" if known else ""


def curve(steps: Steps) -> list[tuple[int, float]]:
    """Right answers alone on held-out questions, by step."""
    name = "eval/direct/gsm8k/correct"
    return [(line["step"], 100 * line[name]) for line in steps if line.get(name) is not None]


def markdown(titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table."""
    lines = [titles, ["---"] * len(titles), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figure(curves: Mapping[str, list[list[tuple[int, float]]]]) -> str:
    """Accuracy over steps: a line for each run, the mean of an arm at each step marked."""
    points = [point for runs in curves.values() for run in runs for point in run]
    last, low, high = max(x for x, _ in points), min(y for _, y in points) - 1, max(y for _, y in points) + 1

    def place(x: float, y: float) -> str:
        return f"{60 + 480 * x / max(last, 1):.1f},{310 - 270 * (y - low) / (high - low):.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 360" font-family="sans-serif" font-size="13">',
        "<title>Right answers alone on held-out questions of GSM8K, by step of training</title>",
        '<rect width="680" height="360" fill="white"/>',
    ]
    for tick in range(int(low // 5 + 1) * 5, int(high) + 1, 5):
        x, y = place(0, tick).split(",")
        parts.append(f'<path d="M{x} {y}H540" stroke="#ddd"/><text x="52" y="{y}" dy="4" text-anchor="end">{tick} %</text>')
    for tick in sorted({x for x, _ in points}):
        parts.append(f'<text x="{place(tick, low).split(",")[0]}" y="330" text-anchor="middle">{tick}</text>')
    parts.append('<text x="300" y="352" text-anchor="middle">step</text>')
    for index, (arm, runs) in enumerate(curves.items()):
        colour = COLOURS[arm]
        for run in runs:
            line = " ".join(place(*point) for point in run)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>')
        for step in sorted({x for run in runs for x, _ in run}):
            mean = float(np.mean([y for run in runs for x, y in run if x == step]))
            x, y = place(step, mean).split(",")
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{arm}, step {step}: {mean:.1f}</title></circle>'
            )
        parts.append(f'<circle cx="560" cy="{50 + 22 * index}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="572" y="{54 + 22 * index}">{arm} ({len(runs)})</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    tests = sorted({path.parent.name for path in args.out.glob("*/evals/*/result.json")})
    for test in tests:
        for name in measured(args.out, test):
            if rows := accuracy_rows(values(args.out, test, name), ("base", "shuffled")):
                title = "greedy" if name == "direct/correct" else name.removeprefix("direct/")
                titles = ["arm", "by seed", f"{test}, {title}", "against base", "against shuffled", "in pairs of seeds"]
                print(markdown(titles, rows), end="\n\n")
    runs = {folder: steps for folder in folders(args.out) if (steps := steps_of(folder))}
    shown = {
        "right in self-play": "train_gsm8k/correct",
        "votes right": "votes/accuracy",
        "voter held neither": "votes/accuracy_beyond_own",
        "votes copied": "votes/copied",
        "without signal": "debates/without_signal",
        "cut off": "replies/truncated",
        "tokens": "env/all/ac_tokens_per_turn",
        "entropy": "optim/entropy",
    }
    rows = {folder.name: [first_and_last(steps, name) for name in shown.values()] for folder, steps in runs.items()}
    if rows:
        print(markdown(["run, first → last three steps", *shown], rows), end="\n\n")
    curves: dict[str, list[list[tuple[int, float]]]] = defaultdict(list)
    for folder, steps in runs.items():
        if known := curve(steps):
            curves[arm_of(folder)].append(known)
    if args.figure and curves:
        args.figure.write_text(figure(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a model's votes on answers are worth: the ways to ask for a ballot, measured against the truth.

    python benchmarks/judging.py --model MODEL --task gsm8k:gsm8k_train.jsonl.gz --questions 200 --answers 8 --out table.json

Every question is answered several times with the plain prompt at temperature 1. Then every author is a voter: it is asked
for a ballot on up to four other answers under letters, rotated so that over all voters every answer stands at every place
equally often. It sees its own answer, as what it said before in the same dialogue, or does not. ``soft`` forms ask for no
text: the vote is the probability of each option as the next word.

The score of an answer is the mean of its votes against others, from -1 to 1. ``over`` is the share of pairs of a right and a
wrong answer to one question that the score orders correctly (ties half; chance is 50 %), ``pooled`` the same with scores
averaged over answers of the same final value. ``--out`` is written after every form: rows, answers, some ballots word by
word. If it exists, its answers are judged, and rows are added.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ballot_forms import FORMS, SHOWN, Answer, Form, Points, asked_about, messages, rotated
from peergrad import Batcher, play_all
from peergrad.debate.errors import EngineError
from peergrad.debate.protocols import Direct
from peergrad.debate.types import Ask, Ids, Message, Question, Reply
from peergrad.engines.local.engine import Local
from peergrad.engines.local.train.packing import micro_batches, packed_attention, prefix_trees
from peergrad.learn.datums import Datum
from peergrad.measure.statistics import ratio
from peergrad.tasks.base import grade_all
from peergrad.tasks.open import TaskRules, open_task

PACKED_TOKENS, EXAMPLES = 32768, 12
Answers = Sequence[Sequence[Answer]]  # by question
Scores = Sequence[Sequence[float]]
Pair = tuple[int, int, int, int]  # question, voter, and two answers, the lower first


@dataclass(frozen=True)
class Ballot:
    """What a voter thinks of the answers it was shown, by place; None: its reply can't be read."""

    question: int
    voter: int
    shown: tuple[int, ...]
    points: Points | None


@torch.no_grad()
def choose(local: Local, prompts: Sequence[Ids], options: Sequence[str]) -> np.ndarray:
    """How likely each option is as the next word after each prompt, against the other options.

    The samplers have no public way to ask this; it is computed with the trainer's packed forward pass, where prompts that
    begin alike share what they begin with.
    """
    decoder = local.decoder
    firsts = [int(local.chat.tokens((Message("user", "."),), option, 1.0).ids_T[0]) for option in options]
    if len(set(firsts)) < len(firsts):
        raise EngineError(f"the options {options} begin with the same token")
    chosen = np.zeros((len(prompts), len(options)))
    data = [Datum("", 0, (), ids, ids, *[np.zeros(len(ids), np.float32)] * 4) for ids in prompts]
    for trees in micro_batches(prefix_trees(data), PACKED_TOKENS):
        nodes = [node for tree in trees for node in tree.walk()]
        decoder.grow_rotations(max(node.end for node in nodes))
        ids = np.concatenate([prompts[node.sequence][node.start : node.end] for node in nodes]).astype(np.int64)
        positions = np.concatenate([np.arange(node.start, node.end) for node in nodes])
        ends = np.cumsum([node.end - node.start for node in nodes]) - 1
        leaves = [place for place, node in enumerate(nodes) if not node.children]
        ids_T, positions_T, last = (torch.from_numpy(a).to(decoder.device) for a in (ids, positions, ends[leaves]))
        hidden = decoder.hidden(ids_T, positions_T, packed_attention(trees, decoder), None)
        scores = decoder.logits(hidden[last])[:, firsts].softmax(-1)
        chosen[[nodes[place].sequence for place in leaves]] = scores.cpu().numpy()
    return chosen


async def ballots(
    local: Local, form: Form, name: str, questions: Sequence[Question], answers: Answers, own: bool
) -> tuple[list[Ballot], dict[str, float], list[dict[str, Any]]]:
    """A ballot of every voter on every question, what they took, and some of them word by word."""
    plan: list[tuple[int, int, tuple[int, ...]]] = []
    asks: list[Ask] = []
    for q, (asked, group) in enumerate(zip(questions, answers, strict=True)):
        for voter, shown in enumerate(rotated(len(group), SHOWN, asked.id)):
            for part in asked_about(form, shown):
                words = messages(form, asked, group, part, group[voter] if own else None)
                plan.append((q, voter, part))
                asks.append(Ask(f"{name}/{own}/{asked.id}", voter, len(plan), 0, words, (), form.tokens))
    start, took = time.perf_counter(), {"asks": float(len(asks))}
    if form.read:
        replies = await local.base_sampler().sample(asks)
        texts = [reply.text if isinstance(reply, Reply) else "" for reply in replies]
        points = [form.read(text, len(part)) for text, (_, _, part) in zip(texts, plan, strict=True)]
        tokens = [reply.tokens for reply in replies if isinstance(reply, Reply) and reply.tokens]
        took["sampled"] = float(sum(len(t.ids_T) for t in tokens))
        took["prompt_tokens"] = float(sum(len(t.prompt_T) for t in tokens))
    else:
        with ThreadPoolExecutor() as threads:
            prompts = list(threads.map(lambda ask: local.chat.prompt(ask.messages), asks))
        likely = await asyncio.to_thread(choose, local, prompts, form.options)
        points = [
            tuple(row[: 1 if form.asks == "each" else len(part)].tolist())
            for row, (_, _, part) in zip(likely, plan, strict=True)
        ]
        texts = [json.dumps(row) for row in np.round(likely, 4).tolist()]
        took |= {"prompt_tokens": float(sum(map(len, prompts))), "sampled": 0.0}
    took["seconds"] = time.perf_counter() - start
    every = max(1, len(asks) // EXAMPLES)
    examples = [
        {
            "prompt": "\n---\n".join(message.text for message in asks[i].messages),
            "reply": texts[i],
            "points": points[i],
            "right": [answers[plan[i][0]][answer].right for answer in plan[i][2]],
        }
        for i in range(every // 2, len(asks), every)
    ]
    cast = [Ballot(*where, mark) for where, mark in zip(plan, points, strict=True)]
    return together(cast) if form.asks == "each" else cast, took, examples


def together(single: Sequence[Ballot]) -> list[Ballot]:
    """Ballots on one answer each, as one ballot of each voter; its places mean nothing."""
    by_voter: dict[tuple[int, int], list[Ballot]] = defaultdict(list)
    for ballot in single:
        by_voter[ballot.question, ballot.voter].append(ballot)
    return [
        Ballot(*key, tuple(b.shown[0] for b in group), tuple(b.points[0] for b in group if b.points))
        for key, group in by_voter.items()
    ]


def votes(cast: Sequence[Ballot], soft: bool) -> dict[Pair, float]:
    """Of each pair that a voter judged how far the first is preferred, -1 to 1: the mean of the orders it was asked in."""
    by_pair: dict[Pair, list[float]] = defaultdict(list)
    for ballot in cast:
        if ballot.points:
            for (a, x), (b, y) in combinations(zip(ballot.shown, ballot.points, strict=True), 2):
                value = x - y if soft else float(np.sign(x - y))
                key = (ballot.question, ballot.voter, min(a, b), max(a, b))
                by_pair[key].append(value if a < b else -value)
    return {key: sum(values) / len(values) for key, values in by_pair.items()}


def borda(by_pair: dict[Pair, float], answers: Answers) -> list[list[float]]:
    """Of every answer the mean of its votes against others; 0 without one."""
    values: list[list[list[float]]] = [[[] for _ in group] for group in answers]
    for (q, _, a, b), value in by_pair.items():
        values[q][a].append(value)
        values[q][b].append(-value)
    return [[sum(of) / len(of) if of else 0.0 for of in group] for group in values]


def pooled(scores: Sequence[float], group: Sequence[Answer]) -> list[float]:
    """Scores averaged over answers of the same final value; one without a value stands alone."""
    keys = [i if answer.value is None else answer.value for i, answer in enumerate(group)]
    same = [[j for j, other in enumerate(keys) if other == key] for key in keys]
    return [sum(scores[j] for j in equal) / len(equal) for equal in same]


def over(scores: Scores, answers: Answers) -> list[float] | None:
    """The share of pairs of a right and a wrong answer that scores order correctly, ties half, and its interval."""
    top, bottom = [], []
    for marks, group in zip(scores, answers, strict=True):
        gaps = [marks[i] - marks[j] for i, a in enumerate(group) for j, b in enumerate(group) if a.right and not b.right]
        top.append(sum(1.0 if gap > 1e-9 else 0.5 if gap > -1e-9 else 0.0 for gap in gaps))
        bottom.append(float(len(gaps)))
    share = ratio(np.array(top), np.array(bottom))
    return share and [share.value, share.low, share.high]


def best(scores: Scores, answers: Answers) -> float:
    """How often the answer with the highest score is right, ties shared."""
    tops = [
        [a.right for a, mark in zip(g, marks, strict=True) if mark > max(marks) - 1e-9]
        for marks, g in zip(scores, answers, strict=True)
    ]
    return float(np.mean([np.mean(top) for top in tops]))


def measures(scores: Scores, answers: Answers) -> dict[str, Any]:
    """What scores say about answers."""
    pool = [pooled(marks, group) for marks, group in zip(scores, answers, strict=True)]
    marks, lengths = (
        np.concatenate([np.array(row, float) - np.mean(row) for row in table])
        for table in (scores, [[len(a.text) for a in group] for group in answers])
    )
    spread = float(np.linalg.norm(marks) * np.linalg.norm(lengths))
    return {
        "over": over(scores, answers),
        "pooled": over(pool, answers),
        "best": best(scores, answers),
        "best_pooled": best(pool, answers),
        "length": float(marks @ lengths) / spread if spread else 0.0,
    }


def row(cast: Sequence[Ballot], answers: Answers, soft: bool) -> dict[str, Any]:
    """A line of the table."""
    by_pair = votes(cast, soft)
    asked = {(b.question, b.voter, *sorted(pair)) for b in cast for pair in combinations(b.shown, 2)}
    mixed = [key for key in asked if answers[key[0]][key[2]].right != answers[key[0]][key[3]].right]
    signs = [
        (by_pair.get(key, 0.0) > 0) == answers[key[0]][key[2]].right for key in mixed if abs(by_pair.get(key, 0.0)) > 1e-9
    ]
    places: dict[int, list[float]] = defaultdict(list)
    for ballot in cast:
        for place, x in enumerate(ballot.points or ()):
            places[place].append(sum(x - y if soft else float(np.sign(x - y)) for y in ballot.points or ()))
    return {
        "valid": sum(b.points is not None for b in cast) / len(cast),
        "pairs": len(mixed),
        "decided": len(signs) / max(1, len(mixed)),
        "right_of_decided": sum(signs) / max(1, len(signs)),
        "places": [float(np.mean(values)) for _, values in sorted(places.items())],
    } | measures(borda(by_pair, answers), answers)


def references(questions: Sequence[Question], answers: Answers) -> list[dict[str, Any]]:
    """Scores that take no ballot: agreement with the other answers, how likely the model finds its words, and brevity.

    "same as own": ballots of voters who only compare final values with their own; "same as shown": with those shown.
    """
    same: dict[bool, list[Ballot]] = {True: [], False: []}
    for q, (question, group) in enumerate(zip(questions, answers, strict=True)):
        for voter, shown in enumerate(rotated(len(group), SHOWN, question.id)):
            values = [group[i].value for i in shown]
            own = [float(value is not None and value == group[voter].value) for value in values]
            same[True].append(Ballot(q, voter, shown, tuple(own)))
            same[False].append(Ballot(q, voter, shown, tuple(float(v is not None) * values.count(v) for v in values)))
    counts = [Counter(a.value for a in group if a.value is not None) for group in answers]
    tables = {
        "(agreement)": [
            [(c[a.value] - 1) / len(g) if a.value is not None else -1.0 for a in g]
            for c, g in zip(counts, answers, strict=True)
        ],
        "(likelihood)": [[a.logprob for a in group] for group in answers],
        "(shorter)": [[-float(len(a.text)) for a in group] for group in answers],
        "(has a value)": [[float(a.value is not None) for a in group] for group in answers],
    }
    rows = [{"form": name, "own": None} | measures(scores, answers) for name, scores in tables.items()]
    names = {True: "(same as own)", False: "(same as shown)"}
    return rows + [{"form": names[own], "own": own} | row(cast, answers, soft=False) for own, cast in same.items()]


async def answered(
    local: Local, task: Any, questions: Sequence[Question], agents: int, max_tokens: int
) -> list[list[Answer]]:
    protocol = Direct(agents=agents, max_tokens=max_tokens, temperature=1.0)
    async with Batcher(local.base_sampler(), max_asks=len(questions) * agents) as sampler:
        played = (await play_all(protocol, questions, sampler)).usable(most=0.0)
    turns = [turn for debate in played.debates for turn in debate.turns]
    pairs = [(debate.question, turn.text) for debate in played.debates for turn in debate.turns]
    likely = [float(turn.tokens.logprobs_T.mean()) if turn.tokens else 0.0 for turn in turns]
    flat = [
        Answer(turn.text, grade.correct, grade.answer, logprob, turn.truncated)
        for turn, grade, logprob in zip(turns, grade_all(task.grade, pairs), likely, strict=True)
    ]
    return [flat[i : i + agents] for i in range(0, len(flat), agents)]


def described(line: dict[str, Any]) -> str:
    """A row for people."""

    def percent(value: Any) -> str:
        if value is None or isinstance(value, float):
            return "-" if value is None else f"{100 * value:.1f}"
        return "{:.1f} ({:.0f}–{:.0f})".format(*(100 * part for part in value))

    own = {None: "", True: "own in view", False: "own hidden"}[line["own"]]
    parts = [
        f"{name} {percent(line.get(name))}"
        for name in ("valid", "decided", "right_of_decided", "over", "pooled", "best", "best_pooled")
    ]
    places = "/".join(f"{place:+.2f}" for place in line.get("places", []))
    sampled, read = line.get("sampled", 0) / 1e3, line.get("prompt_tokens", 0) / 1e6
    cost = f"{sampled:.0f}k sampled {read:.1f}M read {line.get('seconds', 0):.0f} s"
    return f"{line['form']:18} {own:12} {'  '.join(parts)}  length {line['length']:+.2f}  places {places}  {cost}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--ballot-tokens", type=int, default=768, help="the longest ballot, of forms that ask for reasons")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--own", choices=("both", "hidden", "in-view"), default="both")
    parser.add_argument("--out", type=Path, default=Path("judging.json"))
    parser.add_argument("--kv-gb", type=float)
    parser.add_argument("--max-rows", type=int)
    args = parser.parse_args()
    if unknown := set(args.forms.split(",")) - FORMS.keys():
        parser.error(f"--forms: {', '.join(sorted(unknown))} is not known; there are {', '.join(FORMS)}")
    sizes = {name: value for name, value in (("kv_gb", args.kv_gb), ("max_rows", args.max_rows)) if value}
    local = Local.load_model(args.model, train_tokens=0, say=lambda text: print(text, flush=True), **sizes)
    task, _ = open_task(args.task, TaskRules())
    questions = [task[index] for index in range(args.questions)]
    start = time.perf_counter()
    if args.out.exists():
        table = json.loads(args.out.read_text())
        answers = [[Answer(**answer) for answer in group] for group in table["answers"][: args.questions]]
    else:
        answers = await answered(local, task, questions, args.answers, args.max_tokens)
        truth = [[float(a.right) for a in group] for group in answers]
        table = {
            "model": args.model,
            "task": args.task,
            "questions": len(questions),
            "right": float(np.mean(truth)),
            "cut_off": float(np.mean([a.truncated for group in answers for a in group])),
            "pass": float(np.mean([max(row) for row in truth])),
            "answer_seconds": time.perf_counter() - start,
            "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "rows": references(questions, answers),
            "answers": [[asdict(answer) for answer in group] for group in answers],
        }
    print(json.dumps({name: value for name, value in table.items() if name not in ("answers", "rows")}))
    print("\n".join(map(described, table["rows"])), flush=True)
    for name in args.forms.split(","):
        for own in {"both": (False, True), "hidden": (False,), "in-view": (True,)}[args.own]:
            form = replace(FORMS[name], tokens=min(FORMS[name].tokens, args.ballot_tokens))
            cast, took, examples = await ballots(local, form, name, questions, answers, own)
            line = (
                {"form": name, "own": own, "questions": len(questions)} | row(cast, answers, soft=form.read is None) | took
            )
            table["rows"].append(line | {"examples": examples})
            args.out.write_text(json.dumps(table))
            print(described(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

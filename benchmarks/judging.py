"""What a model's votes on answers are worth: every protocol and every form of ballot, measured against the truth.

    python benchmarks/judging.py --model MODEL --task gsm8k:gsm8k_train.jsonl.gz --questions 200 --answers 8 --out table.json

Every question is answered several times by itself. All forms of the ballot protocol then judge the same answers, with the
voter's own answer in view and hidden; ``parallel`` and ``sequential`` debate the same questions, 5 agents, 2 rounds.
``--only`` picks rows, or protocols, by name: ``--only parallel,soft-hidden``; ``--forms`` picks forms of ballot.

The score of an answer is the ``borda`` reward, from -1 to 1. *Right over wrong* is the share of pairs of a right and a wrong
answer to one question that the score orders correctly (ties half; chance is 50 %), *pooled* the same where answers of equal
final value share their score. It is about the answers that voters were shown; in ``parallel`` those of the first round.
*Decided* and *right of decided* are of single votes on such pairs.

Rows in brackets take no votes of a model: how many answers agree, voters that only compare final values with their own,
how likely the model finds its own words, and brevity.

``--out`` is written after every row, and beside it the debates of the row (``table.ROW.jsonl``; ``table.alone.jsonl`` has
the answers, with their tokens). A row whose debates are there is measured again, not played again: the same command resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from peergrad import Batcher, Parallel, Played, RewardRules, Sequential, dump, read_file, score
from peergrad.debate.ballot import Ballot, BallotForm
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.prompts import LETTERS, Texts, read_texts
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.sampler import Sampler, all_of, answered
from peergrad.debate.types import Debate, Reply, Turn
from peergrad.engines.base import EngineConfig, Setup
from peergrad.engines.registry import engine_of, open_engine
from peergrad.measure.counts import Counts, final_grades, form_counts, share_right, shares, total, turn_grades, vote_is_right
from peergrad.measure.statistics import Interval, correlation, difference, mean, ratio
from peergrad.reward.rewards import Scored, score_votes
from peergrad.reward.tally import last_seen, vote_due
from peergrad.runs.files import json_bytes, write
from peergrad.tasks.base import Grade, Grader
from peergrad.tasks.open import TaskConfig, open_task

Row = dict[str, Any]
Alone = Mapping[str, float | None]  # by question the share of answers that are right without a debate
FORMS: tuple[str, ...] = get_args(BallotForm)
COLUMNS = (
    "first_round right against_alone majority pass readable cut_off valid complete copied decided right_of_decided "
    "right_over_wrong pooled best_voted best_pooled"
)
COSTS = ("seconds", "dropped", "machine", "date")  # known when a row is played, and kept when it is measured again


@dataclass(frozen=True)
class Judged:
    """The answers to a question that are scored: by how much, whether each is right (NaN: not known), how long it is."""

    scores: np.ndarray
    right: np.ndarray
    lengths: np.ndarray


def right_over_wrong(judged: Sequence[Judged]) -> Interval | None:
    """The share of pairs of a right and a wrong answer that scores order correctly, ties half."""
    gaps = [q.scores[q.right == 1][:, None] - q.scores[q.right == 0] for q in judged]
    wins = [float((gap > 1e-9).sum() + (abs(gap) <= 1e-9).sum() / 2) for gap in gaps]
    return ratio(wins, [float(gap.size) for gap in gaps])


def best_voted(judged: Sequence[Judged]) -> Interval | None:
    """How often the answer with the highest score is right, ties shared."""
    return mean([float((q.right[q.scores > q.scores.max() - 1e-9] == 1).mean()) for q in judged])


def with_length(judged: Sequence[Judged]) -> Interval | None:
    """How scores correlate with the length of answers, within questions."""
    centred = [(q.scores - q.scores.mean(), q.lengths - q.lengths.mean()) for q in judged]
    xy, xx, yy = zip(*((float(x @ y), float(x @ x), float(y @ y)) for x, y in centred), strict=True)
    return correlation(xy, xx, yy)


def score_row(judged: Sequence[Judged]) -> Row:
    """What scores say about answers."""
    names = {"right_over_wrong": right_over_wrong, "best_voted": best_voted, "with_length": with_length}
    return {name: of(judged) for name, of in names.items()}


def shown_to(debate: Debate, turn: Turn) -> list[list[int]]:
    """The turns that a voter was to compare, by the place it was shown them at; none where no vote was due."""
    if not vote_due(debate, turn):
        return []
    agents = {other.agent for other in debate.turns[turn.since : turn.seen]} - {turn.agent}
    rotated = sorted(agents, key=lambda agent: (agent - turn.agent) % debate.agents)  # as debates quote them
    places = turn.candidates or [(agent,) for agent in rotated]
    return [[index for agent in place if (index := last_seen(debate, turn, agent)) is not None] for place in places]


def final_scores(scored: Scored, right: Sequence[bool | None]) -> Judged:
    """The score of one answer of each agent: the last that voters were shown, or else its last; 0 without a vote."""
    debate = scored.debate
    last = {turn.agent: index for index, turn in enumerate(debate.turns) if turn.asked_to_answer}
    shown = [index for turn in debate.turns for place in shown_to(debate, turn) for index in place]
    picked = list((last | {debate.turns[index].agent: index for index in shown}).values())
    return Judged(
        np.array([scored.streams[0].values[index] or 0.0 for index in picked]),
        np.array([right[index] for index in picked], float),
        np.array([len(debate.turns[index].solution or "") for index in picked]),
    )


def ballot_counts(scored: Scored, right: Sequence[bool | None], places: dict[int, list[float]]) -> Counts:
    """What is counted in the ballots of a debate. ``places`` gets the net wins of each place in each ballot with votes."""
    debate, turns, form, counts = scored.debate, own_turns(scored.debate), form_counts(scored), Counter[str]()
    for index, turn in enumerate(debate.turns):
        shown = shown_to(debate, turn)
        votes = {frozenset(vote.judged): vote for vote in scored.tally.votes if vote.turn == index and vote.judged}
        counts["due"] += bool(shown)
        counts["complete"] += bool(shown) and not turn.parsed.error and scored.tally.unvoted[index] < 1e-9
        for place, judged in enumerate(shown if votes else ()):
            agents = {debate.turns[i].agent for i in judged}
            wins = sum(vote.value(agent) for vote in votes.values() for agent in agents & {vote.a, vote.b})
            places[place].append(wins / len(agents))
        for a, b in [(a, b) for x, y in combinations(shown, 2) for a in x for b in y]:
            if {right[a], right[b]} == {True, False}:
                vote = votes.get(frozenset((a, b)))
                value = vote.value(debate.turns[a if right[a] else b].agent) if vote else 0.0
                counts.update(mixed=1, decided=int(value != 0), for_right=int(value > 0))
    counts.update(turns=len(turns), cut_off=sum(turn.truncated for turn in turns))
    counts["readable"] = sum(turn.parsed.error is None for turn in turns)
    parts = {"readable": "turns", "cut_off": "turns", "complete": "due", "decided": "mixed"}
    return {name: (float(counts[name]), float(counts[whole])) for name, whole in parts.items()} | {
        "right_of_decided": (float(counts["for_right"]), float(counts["decided"])),
        "valid": form["votes/due_turns_with_vote"],
        "copied": form.get("votes/copied", (0.0, 0.0)),
    }


def own_turns(debate: Debate) -> Sequence[Turn]:
    """The turns that were played for a row: ballots are on answers that were there."""
    return debate.turns[debate.agents :] if isinstance(debate.protocol, Ballot) else debate.turns


def measured(debates: Sequence[Debate], grade: Grader, alone: Alone | None = None) -> Row:
    """A row of the table."""
    grades = turn_grades(debates, grade)
    graded, rights = list(zip(debates, grades, strict=True)), [tuple(grade.right for grade in of) for of in grades]
    final, used = [final_grades(*one) for one in graded], [turn.used for debate in debates for turn in own_turns(debate)]
    right = np.array(list(map(share_right, final)), float)
    places: dict[int, list[float]] = defaultdict(list)
    scored = [score(debate, RewardRules(reward="borda", pool_equal=False)) for debate in debates]
    row: Row = {
        "questions": len(debates),
        "first_round": mean(np.array([share_right(final_grades(*one, 1)) for one in graded], float)),
        "right": mean(right),
        "against_alone": difference(right, np.array([alone[debate.id] for debate in debates], float)) if alone else None,
        "majority": mean(list(map(vote_is_right, final))),
        "pass": float(np.mean([any(grade.correct for grade in answers) for answers in final])),
        "sampled": sum(usage.sampled for usage in used if usage),
        "read": sum(usage.prompt for usage in used if usage),
    } | shares(total(map(partial(ballot_counts, places=places), scored, rights)))
    if any(one.tally.votes for one in scored):
        pooled = [score_votes(one.debate, one.tally, RewardRules(reward="borda")) for one in scored]
        plain, pool = (list(map(final_scores, table, rights)) for table in (scored, pooled))
        row |= score_row(plain) | {"pooled": right_over_wrong(pool), "best_pooled": best_voted(pool)}
        row["places"] = [float(np.mean(wins)) for _, wins in sorted(places.items())]
    return row


def references(answers: Sequence[Debate], grade: Grader, alone: Alone) -> dict[str, Row]:
    """Rows for scores that take no votes of a model."""
    graded = list(zip(answers, turn_grades(answers, grade), strict=True))

    def equal(grades: Sequence[Grade], agent: int) -> list[bool]:
        return [other.answer is not None and other.answer == grades[agent].answer for other in grades]

    def row(value: Callable[[Turn, list[bool]], float]) -> Row:
        scores = [[value(turn, equal(grades, i)) for i, turn in enumerate(debate.turns)] for debate, grades in graded]
        lengths = [np.array([len(turn.text) for turn in debate.turns]) for debate in answers]
        rights = [np.array([grade.right for grade in grades], float) for _, grades in graded]
        return score_row(list(map(Judged, map(np.array, scores), rights, lengths)))

    def same_as_own(debate: Debate, grades: Sequence[Grade]) -> Debate:
        debate = replace(debate, protocol=Ballot(agents=debate.agents, ballot_form="verdicts"))
        wave = debate.protocol.wave(debate)
        said = [["right" if equal(grades, ask.agent)[other] else "wrong" for (other,) in ask.candidates] for ask in wave]
        return debate.extend(wave, [Reply("\n".join(map("{}: {}".format, LETTERS, words))) for words in said])

    return {
        "(agreement)": row(lambda _, equal: float(sum(equal))),
        "(same as own)": measured([same_as_own(*one) for one in graded], grade, alone),
        "(likelihood)": row(lambda turn, _: float(turn.tokens.logprobs_T.mean()) if turn.tokens else 0.0),
        "(shorter)": row(lambda turn, _: -float(len(turn.text))),
    }


async def played(debates: Sequence[Debate], sampler: Sampler) -> Played:
    """Debates from where they are to their end, all at once. One that the engine failed is dropped."""
    dropped: dict[str, str] = {}

    async def one(debate: Debate) -> Debate | None:
        while wave := debate.protocol.wave(debate):
            answers = await answered(sampler, wave)
            replies = [answer for answer in answers if isinstance(answer, Reply)]
            if len(replies) < len(wave):
                dropped[debate.id] = str(next(answer for answer in answers if isinstance(answer, EngineError)))
                return None
            debate = debate.extend(wave, replies)
        return debate

    start = time.monotonic()
    ended = await all_of([one(debate) for debate in debates])
    return Played(tuple(debate for debate in ended if debate), dropped, time.monotonic() - start).usable()


def protocols(agents: int, max_tokens: int, forms: Sequence[Any], prompts: Texts = ()) -> dict[str, BaseProtocol]:
    """The protocols by the names of their rows."""
    ballot = partial(Ballot, agents=agents, max_tokens=max_tokens, prompts=prompts)
    own = {"in-view": True, "hidden": False}
    ballots = {f"{form}-{name}": ballot(ballot_form=form, own_in_view=own[name]) for form in forms for name in own}
    rounds: dict[str, Any] = {"agents": 5, "max_rounds": 2, "max_tokens": max_tokens, "prompts": prompts}
    return {**ballots, "parallel": Parallel(**rounds), "sequential": Sequential(**rounds)}


def percent(value: float | list[float] | None) -> str:
    """A share, or one with its interval, for people."""
    if isinstance(value, list):
        return "{:.1f} ({:.0f} to {:.0f})".format(*(100 * x for x in value))
    return "–" if value is None else f"{100 * value:.1f}"


def markdown(rows: Mapping[str, Row]) -> str:
    """The table, with the columns that some row has."""
    columns = [key for key in COLUMNS.split() if any(row.get(key) is not None for row in rows.values())]
    titles = [key.replace("_", " ") for key in ["row", *columns, "net_wins_by_place", "with_length", "sampled", "read", "s"]]
    lines = [titles, ["---"] * len(titles)]
    for name, row in rows.items():
        places = " / ".join(f"{wins:+.2f}" for wins in row.get("places", ())) or "–"
        length = f"{row['with_length'][0]:+.2f}" if row.get("with_length") else "–"
        cost = f"{row.get('sampled', 0) / 1e3:.0f}k", f"{row.get('read', 0) / 1e6:.1f}M", f"{row.get('seconds', 0):.0f}"
        lines.append([name, *(percent(row.get(key)) for key in columns), places, length, *cost])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machine() -> str:
    """What rows are played on. Torch is asked only if the engine has loaded it."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else platform.machine()
    return f"{gpu}, torch {torch.__version__}" if torch else gpu


async def measure(args: argparse.Namespace, rows: Mapping[str, BaseProtocol]) -> None:
    """Play and measure the rows that were chosen, and write the table after each."""
    settings = {name: getattr(args, name) for name in ("engine", "model", "task", "questions", "answers", "max_tokens")}
    table: Row = {"command": " ".join(sys.argv), "settings": settings, "rows": {}}
    if args.out.exists():
        table = json.loads(args.out.read_text())
        if table["settings"] != settings:
            raise UserError(f"{args.out}: was measured with {table['settings']}; give another --out")
    task, _ = open_task(TaskConfig(task=args.task))
    if args.questions > len(task):
        raise UserError(f"--questions: {args.task} has {len(task)}")
    write(args.out, json_bytes(table, indent=1))  # says whose debates they are, should this end before the first row
    config = EngineConfig(engine=args.engine, model=args.model, kv_gb=args.kv_gb, max_rows=args.max_rows)
    model = cache(lambda: open_engine(Setup(engine=config, say=lambda text: print(text, flush=True))))

    def add(name: str, row: Row) -> None:
        row = {key: [x.value, x.low, x.high] if isinstance(x, Interval) else x for key, x in row.items()}
        costs = {key: value for key, value in table["rows"].get(name, {}).items() if key in COSTS}
        table["rows"][name] = costs | row
        write(args.out, json_bytes(table, indent=1))
        print(name, *(f"{key} {percent(row.get(key))}" for key in ("right", "right_over_wrong")), flush=True)

    async def debates_of(name: str, begun: Sequence[Debate]) -> tuple[list[Debate], Row]:
        path, costs = args.out.with_suffix(f".{name}.jsonl"), {}
        if not path.exists():
            async with Batcher(await model().sampler_with(None), **engine_of(config).batching(config)) as sampler:
                result = await played(begun, sampler)
            write(path, "".join(dump(debate, thin=name != "alone") + "\n" for debate in result.debates).encode())
            costs = {"seconds": result.seconds, "dropped": result.dropped, "machine": machine(), "date": str(date.today())}
        return list(read_file(path)), costs

    direct = Direct(agents=args.answers, max_tokens=args.max_tokens, temperature=1.0)
    answers, costs = await debates_of("alone", [Debate(task[i].id, task[i], direct) for i in range(args.questions)])
    add("alone", measured(answers, task.grade) | costs)
    alone = {debate.id: share_right(of) for debate, of in zip(answers, turn_grades(answers, task.grade), strict=True)}
    for name, row in references(answers, task.grade, alone).items():
        add(name, row)
    for name, protocol in rows.items():
        begun = [replace(d, protocol=protocol, turns=d.turns if isinstance(protocol, Ballot) else ()) for d in answers]
        debates, costs = await debates_of(name, begun)
        add(name, measured(debates, task.grade, alone) | costs)
    print(markdown(table["rows"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--task", required=True)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--forms", default=",".join(FORMS), help="forms of ballot, separated by commas")
    parser.add_argument("--prompts", type=Path, help="a folder of texts for the rows played now, as in peergrad check")
    parser.add_argument("--only", default="ballot,parallel,sequential", help="protocols or rows, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("judging.json"))
    parser.add_argument("--kv-gb", type=float)
    parser.add_argument("--max-rows", type=int)
    args = parser.parse_args()
    forms, only = args.forms.split(","), {*args.only.split(",")}
    if unknown := {*forms} - {*FORMS}:
        parser.error(f"--forms: {', '.join(sorted(unknown))} is not known; there are {', '.join(FORMS)}")
    rows = protocols(args.answers, args.max_tokens, forms, read_texts(args.prompts) if args.prompts else ())
    if unknown := only - {"ballot", *rows}:
        parser.error(f"--only: {', '.join(sorted(unknown))} is not known; there are ballot, {', '.join(rows)}")
    try:
        asyncio.run(measure(args, {name: row for name, row in rows.items() if {name, row.name} & only}))
    except (UserError, EngineError) as error:
        sys.exit(f"judging: {error}")


if __name__ == "__main__":
    main()

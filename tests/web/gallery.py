"""Folders for the viewer to show: two runs, two evaluations and a transcript, all of debates that were really played.

The speakers are a script that is better the later the step, with slips of every kind. Everything else is peergrad: prompts,
reading, votes, metrics, alarms and results.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path

from peergrad.config import EvalConfig, changed, preset
from peergrad.debate.ballot import Ballot
from peergrad.debate.play import Played, play
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.sampler import Likely
from peergrad.debate.transcript import dump
from peergrad.debate.types import Ask, Reply, Tokens
from peergrad.learn.data import advantages
from peergrad.learn.train import Step
from peergrad.measure.alarms import alarms
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.reward.rewards import score
from peergrad.runs.evaluation import evaluate, plan
from peergrad.runs.folder import Progress, Run
from peergrad.runs.watch import Watcher
from peergrad.tasks.base import Task
from peergrad.tasks.open import TaskConfig, open_questions

_PLOTS = [
    "Tom buys {a} boxes of {b} pens and loses {c} pens. How many pens are left?",
    "A bus has {a} rows of {b} seats, and {c} seats are taken. How many are free?",
    "For {a} days Mia reads {b} pages a day of a book, then skips back {c} pages. On which page is she?",
    "A baker fills {a} trays with {b} rolls each and burns {c}. How many can be sold?",
]


def questions(count: int) -> list[dict[str, str]]:
    """So many word problems, as lines of a task."""
    rows: list[dict[str, str]] = []
    for index in range(count):
        draw = random.Random(index)
        a, b, c = draw.randint(3, 9), draw.randint(4, 12), draw.randint(2, 9)
        rows.append({"question": _PLOTS[index % 4].format(a=a, b=b, c=c), "answer": str(a * b - c)})
    return rows


class Speakers:
    """Answers asks with a skill from 0 to 1; ``readable`` is how often it keeps to the form."""

    def __init__(self, skill: float, readable: float = 0.95, seed: str = "") -> None:
        self.skill, self.readable, self.seed = skill, readable, seed

    async def sample(self, asks: Sequence[Ask]) -> list[Reply]:
        return [self._reply(ask) for ask in asks]

    async def choose(self, asks: Sequence[Ask], options: Sequence[str]) -> list[Likely]:
        """Yes to the right value, the surer the greater the skill."""
        return [self._likely(ask, options) for ask in asks]

    def _likely(self, ask: Ask, options: Sequence[str]) -> Likely:
        asked = ask.messages[-1].text
        draw = random.Random(f"{self.seed} {ask.debate} {ask.agent} {asked}")
        a, b, c = _numbers("\n".join(message.text for message in ask.messages))
        right = f"Is {a * b - c} the" in asked
        share = min(0.98, max(0.02, 0.5 + (0.5 * self.skill if right else -0.5 * self.skill) + draw.uniform(-0.3, 0.3)))
        return Likely((share, *[(1 - share) / (len(options) - 1)] * (len(options) - 1)), 40)

    def _reply(self, ask: Ask) -> Reply:
        draw = random.Random(f"{self.seed} {ask.debate} {ask.agent} {ask.turn}")
        asked = "\n".join(message.text for message in ask.messages)
        a, b, c = _numbers(asked)
        others = dict(re.findall(r"Agent (\d+) said in round \d+:\n\| solution:(?:.*\n\|)*? .*?boxed\{(-?\d+)\}", asked))
        answer = a * b - c if draw.random() < self.skill else draw.choice([a * b, a + b - c, a * b + c])
        if ask.seen and others and draw.random() < 0.5:  # goes with the most frequent answer it was shown
            given = list(others.values())
            answer = int(max(given, key=given.count))
        text = self._said(ask, draw, answer, others, (a, b, c))
        return Reply(text, False, _tokens(text, len(asked.split()), draw, ask.temperature))

    def _said(
        self, ask: Ask, draw: random.Random, answer: int, others: dict[str, str], numbers: tuple[int, int, int]
    ) -> str:
        a, b, c = numbers
        work = f"First {a} × {b} = {a * b}.\nThen the change of {c}.\nSo \\boxed{{{answer}}}"
        if draw.random() > self.readable:
            return draw.choice(
                [f"I am sure it is {answer}", f"<solution>\n{work}\n<comparison>Agent 0 >> Agent 1", "hm " * 12]
            )
        if not ask.contract or not ask.seen:
            return f"<solution>\n{work}\n</solution>\n<evaluation>\nN/A\n</evaluation>\n<comparison>\nN/A\n</comparison>"
        right = str(a * b - c)
        views = [
            f"Agent {agent} is right: {given}." if given == right else f"Agent {agent} gets {given}, but {c} are gone."
            for agent, given in others.items()
        ]
        lines: list[str] = []
        for x, y in re.findall(r"^Agent (\d+) \? Agent (\d+)$", ask.messages[-1].text, re.MULTILINE):
            better = (others.get(x) == right) - (others.get(y) == right)
            sign = "=" if not better else ">" if better > 0 else "<"
            lines.append(f"Agent {x} {sign if draw.random() < 0.3 + 0.7 * self.skill else draw.choice('<>=')} Agent {y}")
        if draw.random() < 0.1:
            lines.append(f"Agent {ask.agent} > Agent {(ask.agent + 1) % 3}")  # for itself, which does not count
        sections = (("solution", work), ("evaluation", " ".join(views) or "N/A"), ("comparison", "\n".join(lines) or "N/A"))
        return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in sections)


def _numbers(asked: str) -> tuple[int, int, int]:
    for row in questions(64):
        if row["question"] in asked:
            first, second, third = map(int, re.findall(r"\d+", row["question"]))
            return first, second, third
    return 1, 1, 1


def _tokens(text: str, read: int, draw: random.Random, temperature: float) -> Tokens:
    """A token for each word, with how likely a model might have found it."""
    pieces = re.findall(r"\s*\S+|\s+$", text)
    starts, at = list[int](), 0
    for piece in pieces:
        starts.append(at)
        at += len(piece.encode())
    return Tokens.of(
        list(range(read)), list(range(len(pieces))), [-draw.expovariate(3) for _ in pieces], starts, temperature
    )


def write_run(path: Path, task: Task, *, steps: int, batch: int = 6, collapse: Sequence[int] = (), seed: str = "") -> Run:
    """A run of so many steps; in those of ``collapse`` most replies can't be read."""
    run = Run(path)
    config = changed(preset("math"), {"steps": steps, "batch": batch, "lr": 4e-5, "max_rounds": 3, "agents": 3}, "gallery")
    facts = {"created": "2026-11-18T10:00:00+00:00", "versions": {"peergrad": "0.8.0", "torch": "2.13.0"}, "seed": 0}
    run.begin(config, facts | {"model": "a script, no model", "task": task.name, "questions": len(task)})
    rules, history = config.debate.build(), list[dict[str, object]]()
    _evaluate(run, rules, task, 0, 0.35, seed)
    for step in range(1, steps + 1):
        speakers = Speakers(0.35 + 0.5 * step / steps, 0.15 if step in collapse else 0.8 + 0.15 * step / steps, seed)
        asked = [task[1 + (step * 5 + index) % (len(task) - 1)] for index in range(batch - 1)] + [task[0]]
        debates = tuple(asyncio.run(play(rules, one, speakers, id=f"step-{step}/{one.id}")) for one in asked)
        dropped = {f"step-{step}/q9": "the engine failed it: connection reset"} if step == 3 else {}
        run.save_debates(f"step_{step:06}", Played(debates, dropped))
        scored = tuple(score(debate, config.learn.reward) for debate in debates)
        made = Step(step - 1, 4e-5, Played(debates, dropped), scored, tuple(advantages(list(scored))), (), None, 4.0)
        more: dict[str, object] = {
            "lr": 4e-5,
            "optim/loss": 0.4 / step,
            "optim/grad_norm": 1 + 0.5 / step,
            "optim/updates": 1,
            "debates/done": len(debates),
        }
        more |= {"optim/skipped": float(step == 5), "optim/entropy": 1.1 - 0.02 * step, "tokens/sampled": 2400.0 + 9 * step}
        more |= {
            "tokens/trained": 3100.0,
            "time/sample_s": 21.0,
            "time/train_s": 17.0,
            "optim/kl_sample_train_v1": 1e-4 * step,
        }
        line = dict(measure(DebateBatch.of(scored, task, f"train_{task.name}"))) | more
        history.append(line)
        run.log(Progress(step), "train", line | {"alarms": [alarm.name for alarm in alarms(history, made)]})
    _evaluate(run, rules, task, steps, 0.85, seed)
    for at in (1, steps):
        asyncio.run(run.checkpoint(Progress(at), _save))
    return run


async def _save(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes(bytes(40_000))


def _evaluate(run: Run, rules: BaseProtocol, task: Task, at: int, skill: float, seed: str) -> None:
    asked = [task[index] for index in range(6)]
    debates = tuple(asyncio.run(play(rules, one, Speakers(skill, seed=seed), id=f"eval-{at}/{one.id}")) for one in asked)
    run.save_debates(f"eval_{at:06}", Played(debates, {}))
    measured = measure(DebateBatch.of([score(debate) for debate in debates], task, f"eval/debate/{task.name}"))
    run.log(Progress(at), "eval", {name: value for name, value in measured.items() if name.startswith("eval/")})


def write_eval(path: Path, task: Task, skill: float, parrot: str) -> None:
    """An evaluation, with its result, of speakers with that skill."""
    settings = {
        "model": parrot,
        "task": "word-problems",
        "questions": 12,
        "agents": 3,
        "max_rounds": 2,
        "protocol": "parallel",
    }
    config = changed(EvalConfig(), settings, "gallery")

    async def speakers(_: object) -> Speakers:
        return Speakers(skill, seed=path.name)

    asyncio.run(evaluate(plan(config, task), path, Watcher(), lambda _: "", speakers))


def write_soft(path: Path, task: Task) -> None:
    """Debates whose voters are asked for no words: how likely they find each value."""
    speakers = Speakers(0.6, readable=1.0, seed="soft")
    rules = Ballot(agents=4, shown=3)
    debates = [asyncio.run(play(rules, task[index], speakers, id=f"soft/{task[index].id}")) for index in range(6)]
    path.parent.mkdir()
    path.write_text("".join(dump(debate) + "\n" for debate in debates))


def word_problems(folder: Path) -> Task:
    """The word problems, as somebody's own file."""
    path = folder / "word-problems.jsonl"
    path.write_text("".join(f'{{"question": "{row["question"]}", "answer": "{row["answer"]}"}}\n' for row in questions(24)))
    return open_questions(TaskConfig(task=str(path)))


def write_gallery(folder: Path, parrot: str) -> None:
    """Everything, under ``runs/``, ``evals/`` and ``debates/``."""
    task = word_problems(folder)
    write_run(folder / "runs" / "peer-votes", task, steps=16, collapse=range(9, 14))
    write_run(folder / "runs" / "no-judge", task, steps=16, seed="b")
    write_eval(folder / "evals" / "before", task, 0.4, parrot)
    write_eval(folder / "evals" / "after", task, 0.8, parrot)
    write_soft(folder / "debates" / "soft-votes.jsonl", task)

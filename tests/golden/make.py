"""The golden transcripts: debates with every prompt, and their scores under every rule.

``python -m tests.golden.make`` writes them anew. Do so only for a change that is meant to change prompts or numbers, and
put the difference into the commit message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

from peergrad import Parallel, Question, Scripted, Sequential, advantages, dump, play, read_file, score
from peergrad.reward.rewards import RewardRules
from tests.helpers import full, short

HERE = Path(__file__).parent
TRANSCRIPTS = HERE / "debates.jsonl"
WORKED = HERE / "worked.jsonl"
SCORES = HERE / "scores.json"

MATH = Question("pens", "Tom buys 3 boxes of 4 pens and loses 2 pens. How many pens are left?", "10", "boxed", "demo")
OPEN = Question("plant", "How do I keep a cactus alive?")

PARALLEL_5 = [
    *(short(solution=f"\\boxed{{{answer}}}") for answer in (10, 12, 10, 14)),
    "I think it is ten.",
    short("Agent 2 > Agent 1 > Agent 3", "\\boxed{10}", "Agent 1 forgot the lost pens."),
    short("- **Agent 0** = **Agent 2**\n- Agent 0 > Agent 3\n- Agent 0 > Agent 4", "\\boxed{10}", "I was wrong."),
    short("Agent 0 > Agent 1\nAgent 0 > Agent 1\nAgent 2 > Agent 1\nAgent 3 < Agent 0", "\\boxed{10}"),
    short("Agent 1 > Agent 0\nAgent 0 > Agent 1\nAgent 9 > Agent 1\nAgent 0 >> Agent 4", "\\boxed{14}"),
    "```xml\n" + short("Agent 0 > Agent 3, Agent 2 > Agent 3", "\\boxed{10}") + "\n```",
]
PARALLEL_3 = [
    *(short(solution=text) for text in ("Water it rarely.", "Water it daily.", "Give it sun. 🌵")),
    short("Agent 2 > Agent 1", "Sun, and water it rarely.", "Daily water drowns it.\nAgent 2 is right."),
    short("Agent 0 = Agent 2", "Rarely.", "I was wrong. <solution>never</solution>"),
    short("Agent 0 > Agent 1", "Sun and little water.", "Agent 0 says nothing of light."),
    short("Agent 2 > Agent 1", "Sun, rare water."),
    short("N/A", "Sun, rare water.", "All agree."),
    "<think>" + short("Agent 1 > Agent 0", "draft") + "</think>" + short("Agent 0 > Agent 1", "Sun, rare water."),
]
SEQUENTIAL_3 = [
    full("N/A", "\\boxed{12}", "N/A"),
    full("N/A", "\\boxed{10}", "Agent 0 forgot the lost pens."),
    full("Agent 1 > Agent 0", "\\boxed{10}", "Agent 1 is right."),
    full("Agent 1 = Agent 2", "\\boxed{10}", "Both are right.", "YES"),
    full("Agent 0 = Agent 2", "\\boxed{10}", "All are right.", "YES"),
    full("Agent 0 = Agent 1\nAgent 2 > Agent 0", "\\boxed{10}", "All are right.", "YES"),
]
SEQUENTIAL_BAD = [full("N/A", "\\boxed{12}"), full("N/A", "\\boxed{10}"), full("Agent 1 > Agent 0", consensus="MAYBE")]

DEBATES = {
    "parallel-5x2": (Parallel(agents=5, max_rounds=2), MATH, PARALLEL_5),
    "parallel-3x3": (Parallel(agents=3, max_rounds=3), OPEN, PARALLEL_3),
    "sequential-3x2": (Sequential(agents=3, max_rounds=3), MATH, SEQUENTIAL_3),
    "sequential-window": (Sequential(agents=3, max_rounds=3, history_rounds=1, max_chars_per_field=12), MATH, SEQUENTIAL_3),
    "sequential-bad": (Sequential(agents=3, max_rounds=3), MATH, SEQUENTIAL_BAD),
}

RULES = {
    " ".join((reward, self_votes, ballots, *extra)): RewardRules(
        reward=reward,
        self_votes=self_votes,
        ballots=ballots,
        **dict(zip(("consensus", "unjudged"), extra, strict=False)),
    )
    for reward, self_votes, ballots in itertools.product(
        ("win_rate", "win_minus_loss", "streams"), ("drop", "keep"), ("once", "literal")
    )
    for extra in (itertools.product(("all", "others"), ("skip", "literal")) if reward == "streams" else [()])
}


def transcripts() -> str:
    """The debates played now, prompts included; byte tokens left out, they would say the same again."""

    async def one(name: str) -> str:
        protocol, question, replies = DEBATES[name]
        engine = Scripted(lambda ask: replies[ask.turn], tokens=False)
        return dump(await play(protocol, question, engine, id=name))

    return "".join(asyncio.run(one(name)) + "\n" for name in DEBATES)


def scores() -> dict[str, dict[str, object]]:
    """Values and group-centred advantages of every golden debate under every rule, rounded."""
    debates = [*read_file(WORKED), *read_file(TRANSCRIPTS)]
    return {
        debate.id: {
            name: {
                stream.name: {"values": _rounded(stream.values), "advantages": _rounded(values)}
                for scored in [score(debate, rules)]
                for stream, values in zip(scored.streams, advantages([scored])[0], strict=True)
            }
            for name, rules in RULES.items()
        }
        for debate in debates
    }


def _rounded(values: tuple[float | None, ...]) -> list[float | None]:
    return [None if value is None else round(value, 9) + 0.0 for value in values]


def as_text(golden: dict[str, dict[str, object]]) -> str:
    """One line per debate and rule, so that a change shows as the lines it changes."""
    blocks = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(rule)}: {json.dumps(value)}" for rule, value in by_rule.items())
        for name, by_rule in golden.items()
    ]
    return "{" + "\n},\n".join(blocks) + "\n}}\n"


if __name__ == "__main__":
    TRANSCRIPTS.write_text(transcripts(), encoding="utf-8")
    SCORES.write_text(as_text(scores()), encoding="utf-8")

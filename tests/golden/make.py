"""The golden transcripts: debates with every prompt, and their scores under every rule.

``python -m tests.golden.make`` writes them anew. Do so only for a change that is meant to change prompts or numbers, and
put the difference into the commit message.

``before.jsonl`` and ``before_scores.json`` were written before there were tolerant reading, rotation, graded form
and voices, and are never written again: they must go on meaning what they did.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from peergrad import Parallel, Question, Sequential, advantages, dump, play, read_file, score
from peergrad.debate.ballot import Ballot
from peergrad.debate.types import Ask
from peergrad.reward.rewards import RewardRules
from tests.helpers import Choosing, full, short

HERE = Path(__file__).parent
TRANSCRIPTS = HERE / "debates.jsonl"
WORKED = HERE / "worked.jsonl"
SCORES = HERE / "scores.json"
BEFORE = HERE / "before.jsonl"
BEFORE_SCORES = HERE / "before_scores.json"

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
TOLERATED_3 = [
    "Three boxes of four are 12. \\boxed{12}",
    "<solution>12 - 2 = \\boxed{10}<evaluation>N/A</evaluation>",
    "",
    "So \\boxed{10}\n<evaluation>Agent 1 is right.\n<comparison>\nAgent 1 &gt; Agent 2\n",
    short("Agent 0 = Agent 2", "\\boxed{10}"),
    "<comparison>Agent 1 > Agent 0</comparison><solution>\\boxed{10}</solution>",
]

_ANSWERS = [f"I get \\boxed{{{answer}}}." for answer in (10, 12, 10, 14, "10.0")]
_BALLOTS = [
    "A: Looks fine.\nB: Adds wrongly.\n\n**A: right**\n**B: wrong**\n**C: right**",
    "Answer A\nForgets the lost pens.\n\nA: wrong\nB: right\nC: wrong",
    "I can't tell.",
    "A: wrong\nA: right\nB: right\nC - incorrect",
    "### C\nNothing is subtracted.\n\nB: right, C: wrong\nC: wrong",
]
BALLOT_WORDS = [*_ANSWERS, *_BALLOTS, *_ANSWERS[::-1], *_BALLOTS[::-1]]
BALLOT_PAIRS = [*_ANSWERS, "A > B\nA = C\nC < B", "A > B > C", "A > A\nA > D", "B > A\nA > B", "- A = B"]
BALLOT_SOFT = _ANSWERS


def likely(ask: Ask, options: Sequence[str]) -> list[float]:
    """Who sees the right value finds the first option likelier, the more the higher its seat."""
    share = 0.5 + 0.125 * ask.agent * (1 if "10" in ask.messages[-1].text else -1)
    return [share, *[(1 - share) / (len(options) - 1)] * (len(options) - 1)]


DEBATES = {
    "parallel-5x2": (Parallel(agents=5, max_rounds=2), MATH, PARALLEL_5),
    "parallel-3x3": (Parallel(agents=3, max_rounds=3), OPEN, PARALLEL_3),
    "sequential-3x2": (Sequential(agents=3, max_rounds=3), MATH, SEQUENTIAL_3),
    "sequential-window": (Sequential(agents=3, max_rounds=3, history_rounds=1, max_chars_per_field=12), MATH, SEQUENTIAL_3),
    "sequential-bad": (Sequential(agents=3, max_rounds=3, reading="strict"), MATH, SEQUENTIAL_BAD),
    "parallel-strict": (Parallel(agents=5, max_rounds=2, reading="strict", order_shown="seat"), MATH, PARALLEL_5),
    "parallel-tolerated": (Parallel(agents=3, max_rounds=2), MATH, TOLERATED_3),
    "ballot-words": (Ballot(agents=5, shown=3, ballot_form="verdicts", revise=True), MATH, BALLOT_WORDS),
    "ballot-merged": (
        Ballot(agents=5, shown=3, ballot_form="pairs", merge_equal=True, own_in_view=False),
        MATH,
        BALLOT_PAIRS,
    ),
    "ballot-soft": (Ballot(agents=5, shown=3), MATH, BALLOT_SOFT),
    "ballot-soft-pairs": (Ballot(agents=5, shown=3, ballot_form="soft"), OPEN, ["In the sun."] * 5),
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
BEFORE_RULES = {name: replace(rules, form="literal", voices="votes") for name, rules in RULES.items()}
RULES |= {
    f"{reward} literal votes": RewardRules(reward=reward, form="literal", voices="votes")
    for reward in ("win_rate", "streams")
}
RULES |= {f"borda {'pooled' if pool else 'single'}": RewardRules(reward="borda", pool_equal=pool) for pool in (True, False)}


def transcripts() -> str:
    """The debates played now, prompts included; byte tokens left out, they would say the same again."""

    async def one(name: str) -> str:
        protocol, question, replies = DEBATES[name]
        engine = Choosing(lambda ask: replies[ask.turn], likely, tokens=False)
        return dump(await play(protocol, question, engine, id=name))

    return "".join(asyncio.run(one(name)) + "\n" for name in DEBATES)


def scores(file: Path = TRANSCRIPTS, by: Mapping[str, RewardRules] = RULES) -> dict[str, dict[str, object]]:
    """Values and group-centred advantages of every golden debate under every rule, rounded."""
    debates = [*read_file(WORKED), *read_file(file)]
    return {
        debate.id: {
            name: {
                stream.name: {"values": _rounded(stream.values), "advantages": _rounded(values)}
                for scored in [score(debate, rules)]
                for stream, values in zip(scored.streams, advantages([scored])[0], strict=True)
            }
            for name, rules in by.items()
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

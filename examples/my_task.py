"""A task of one's own: small programming puzzles, graded by running what the model wrote.

    peergrad train --preset demo-parallel --task my_task:Puzzles --warm-steps 0 --eval-questions 1 --eval-debates 1 --batch 2
    peergrad debate --task my_task:Puzzles                                # both in the folder of this file

A program may loop, take all memory, or exit, so it runs in the pool, whose processes are killed. It gives outputs alone,
compared here: no program can say of itself that it is right. But it may read and write your files: use a container.
"""

from __future__ import annotations

import json
import re
from typing import Any

from peergrad import Question
from peergrad.debate.question import Style
from peergrad.tasks.base import UNANSWERED, Grade
from peergrad.tasks.pool import Pool

PUZZLES = (
    ("that doubles a number", [[1], 2], [[-3], -6]),
    ("that adds up the digits of a whole number", [[7], 7], [[1234], 10]),
    ("that says whether a text reads the same backwards", [["level"], True], [["lever"], False]),
)
CODE = Style(
    "code",
    "Give one Python function f in solution, in a ```python block.",
)
BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
POOL = Pool("my_task:outputs", deadline_s=2.0, memory=1 << 28)


def outputs(program: str, inputs: list[list[Any]]) -> list[Any]:
    """What the program's function gives for each input."""
    space: dict[str, Any] = {}
    exec(program, space)
    return [space["f"](*arguments) for arguments in inputs]


class Puzzles:
    name = "puzzles"
    known = True

    def __len__(self) -> int:
        return len(PUZZLES)

    def __getitem__(self, index: int) -> Question:
        what, *tests = PUZZLES[index]
        return Question(f"puzzle-{index}", f"Write a Python function f {what}.", style=CODE, payload=tests)

    def grade(self, question: Question, solution: str) -> Grade:
        blocks = BLOCK.findall(solution)
        if not blocks:
            return UNANSWERED
        got = POOL.call(blocks[-1], [arguments for arguments, _ in question.payload])
        return Grade(got == [wanted for _, wanted in question.payload], json.dumps(got))

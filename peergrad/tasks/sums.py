"""A number of two digits plus one of one digit: what a model of 135M parameters can do now and then, and learn to do better.

It answers in a line, without a box. The form is shown on sums of single digits alone, so that no lesson holds what is asked.
"""

from __future__ import annotations

import random
from typing import Literal

from peergrad.debate.question import NUMBER, Question
from peergrad.tasks.arithmetic import grade_sum
from peergrad.tasks.base import Questions


def sums(seed: int = 0, split: Literal["train", "eval"] = "train") -> Questions:
    """All sums of a split, in an order of the seed's own. A fifth of them, the same whatever the seed, is to evaluate on."""
    pairs = [(a, b) for a in range(10, 100) for b in range(1, 10)]
    held_out = {*random.Random("sums").sample(pairs, len(pairs) // 5)}
    chosen = [pair for pair in pairs if (pair in held_out) == (split == "eval")]
    random.Random(f"{seed} {split}").shuffle(chosen)
    asked = [Question(f"{split}-{a}+{b}", f"What is {a} + {b}?", str(a + b), NUMBER, "sums") for a, b in chosen]
    return Questions("sums", asked, grade_sum)


def single_digits(seed: int) -> list[Question]:
    """Sums of single digits, each with its answer in the form that is to be learned."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    random.Random(f"{seed} lessons").shuffle(pairs)
    return [
        Question(f"form-{a}+{b}", f"What is {a} + {b}?", str(a + b), NUMBER, "sums", solution=f"{a} + {b} = {a + b}")
        for a, b in pairs
    ]

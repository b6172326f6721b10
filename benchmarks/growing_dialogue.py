"""What growing dialogues save (SPEC 3.7): tokens to prefill and to train on, against prompts rendered anew each turn.

The same debates are counted twice. Growing: a prompt extends the last one, so a sampler that keeps its cache prefills only
what is new, and an agent's turns are one datum. Rendered anew: nothing is reused, every turn is a datum with its whole
prompt; or only the start up to the question is reused. Lengths: 180 tokens of solution, 100 of evaluation, a token being
four bytes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.chunks import Chunks
from peergrad import Debate, Parallel, Question, credit, datums, play

QUESTION = Question("q", "A farmer has 17 sheep and buys 25 more; 4 run away. How many are left? " * 4, style="boxed")


def growing(debate: Debate) -> dict[str, int]:
    data = datums(debate, credit(debate, (), ()))
    sampled = sum(len(turn.tokens.ids_T) for turn in debate.turns if turn.tokens)
    trained = sum(len(datum) + 1 for datum in data)
    # What is in a datum and was not sampled was prefilled, once.
    return {"prefill": trained - sampled, "trained": trained}


def rendered_anew(debate: Debate) -> dict[str, int]:
    prompts = sum(len(turn.tokens.prompt_T) for turn in debate.turns if turn.tokens)
    sampled = sum(len(turn.tokens.ids_T) for turn in debate.turns if turn.tokens)
    return {"prefill": prompts, "trained": prompts + sampled}


def shared_start(debate: Debate) -> dict[str, int]:
    """Rendered anew by a template that rewrites what the agent said: a cache still serves system prompt and question."""
    anew = rendered_anew(debate)
    first = [len(turn.tokens.prompt_T) for turn in debate.turns[: debate.agents] if turn.tokens]
    again = len(debate.turns) // debate.agents - 1
    return {"prefill": anew["prefill"] - again * sum(first), "trained": anew["trained"]}


def main() -> None:
    result: dict[str, object] = {"benchmark": "growing_dialogue"}
    for agents in (3, 5):
        debate = asyncio.run(play(Parallel(agents=agents, max_rounds=3), QUESTION, Chunks(agents)))
        new, old, shared = growing(debate), rendered_anew(debate), shared_start(debate)
        result[f"{agents}x3"] = {
            "growing": new,
            "rendered_anew": old,
            "ratio": round(sum(old.values()) / sum(new.values()), 2),
            "shared_start": shared,
            "ratio_shared_start": round(sum(shared.values()) / sum(new.values()), 2),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""A judge: somebody who does not debate, is shown how a debate ended, and votes once.

It sees the debaters' final solutions and nothing else of the debate: no votes, no characters, no models. Its reply is the
debate's verdict. It is no turn: debaters never see it, and rewards count it only by ``judge_weight`` (SPEC 4.16).
"""

from __future__ import annotations

from peergrad.debate import contract, prompts
from peergrad.debate.types import Ask, Contract, Debate, Parsed

JUDGE = Contract(("evaluation", "comparison"))
_TEMPERATURE = 0.0


def judge_asks(debate: Debate, max_tokens: int) -> list[Ask]:
    """What the judge of a debate that is over is asked; nothing if there are no two solutions to compare.

    It holds the seat after the last debater's, so that ``Seats`` can put any model there.
    """
    ends = {agent: debate.final_turn(agent) for agent in range(debate.agents)}
    solutions = {agent: debate.turns[at].solution or "" for agent, at in ends.items() if at is not None}
    if len(solutions) < 2 or debate.verdict:
        return []
    return [
        Ask(
            debate=debate.id,
            agent=debate.protocol.agents,
            turn=len(debate.turns),
            seen=len(debate.turns),
            messages=prompts.judge_messages(debate.question, solutions, debate.protocol.prompts),
            stop=(JUDGE.stop,),
            max_tokens=max_tokens,
            temperature=_TEMPERATURE,
            contract=JUDGE,
        )
    ]


def read_verdict(text: str, truncated: bool = False) -> Parsed:
    """Read a judge's reply: an evaluation and votes. Never raises."""
    return contract.read(text, JUDGE, truncated=truncated)

"""A debate from question to training data, without a model: four scripted agents, two rounds.

Everything but the replies is what a training run does. Run it with ``python examples/scripted_debate.py``.
"""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peergrad import Parallel, Question, Scripted, advantages, credit, datums, play, score
from peergrad.debate.quote import visible
from peergrad.terminal.tables import print_scores

QUESTION = Question("pens", "Tom buys 3 boxes of 4 pens and loses 2 pens. How many pens are left?", style="boxed")

# What each agent says: (solution, evaluation, comparison), first in round 1, then in round 2.
SAID = [
    [
        (r"3 * 4 = 12, and 12 - 2 = 10. \boxed{10}", "N/A", "N/A"),
        (r"3 boxes, 4 pens, 2 lost: 3 + 4 - 2 = 5. \boxed{5}", "N/A", "N/A"),
        (r"3 * 4 = 12 pens. \boxed{12}", "N/A", "N/A"),
        (r"12 pens less 2 is \boxed{10}", "N/A", "N/A"),
    ],
    [
        (
            r"I keep 12 - 2 = 10. \boxed{10}",
            "Agent 1 adds where it should multiply. Agent 2 forgets the lost pens.",
            "Agent 3 > Agent 2 > Agent 1",
        ),
        (
            r"Boxes times pens: 12, minus 2. \boxed{10}",
            "I was wrong. Agents 0 and 3 are right, Agent 2 is not.",
            "Agent 0 = Agent 3\nAgent 0 > Agent 2\nAgent 3 > Agent 2\nAgent 3 > Agent 2",
        ),
        (
            r"The question says bought. \boxed{12}",
            "Agent 0 takes away pens that were already paid for.",
            "Agent 1 > Agent 0\nAgent 2 > Agent 3",
        ),
        (r"\boxed{10}", "Agent 0 and I agree.", "Agent 0 > Agent 1, Agent 0 > Agent 2"),
    ],
]


def script(agent: int, turn: int) -> str:
    solution, evaluation, comparison = SAID[turn // 4][agent]
    return (
        f"<solution>\n{solution}\n</solution>\n<evaluation>\n{evaluation}\n</evaluation>\n"
        f"<comparison>\n{comparison}\n</comparison>"
    )


def main() -> None:
    console = Console(highlight=False)
    protocol = Parallel(agents=4, max_rounds=2)
    debate = asyncio.run(play(protocol, QUESTION, Scripted(lambda ask: script(ask.agent, ask.turn))))

    console.print(Text(f"\n{QUESTION.text}\n", style="bold"))
    for index, turn in enumerate(debate.turns):
        if index % debate.agents == 0:
            console.rule(f"round {turn.round + 1}", style="dim")
        persona = protocol.persona(turn.agent)
        console.print(Text(f"Agent {turn.agent}, {persona.name} (T={persona.temperature})", style="cyan"))
        for name in ("solution", "evaluation", "comparison"):
            text = turn.section(name).replace("\n", ", ")
            console.print(Text(f"  {name:<11} {visible(text)}"))
    console.print()

    scored = score(debate)
    centred = advantages([scored])[0]
    print_scores([scored], [centred])

    per_token = credit(debate, scored.streams, centred)
    table = Table("agent", "turns", "tokens", "sampled", "trained up", "trained down", title="Training sequences", box=None)
    table.title_justify = "left"
    for datum in datums(debate, per_token):
        up, down = (datum.advantages_T > 0).sum(), (datum.advantages_T < 0).sum()
        turns = ", ".join(map(str, datum.turns))
        table.add_row(str(datum.agent), turns, str(len(datum)), f"{datum.mask_T.sum():.0f}", str(up), str(down))
    console.print()
    console.print(table)

    console.print("\nCredit of each token of two turns: green is made likelier, red less likely, plain is left alone.")
    for index in (4, 6):
        turn = debate.turns[index]
        console.print(Text(f"\nturn {index}, Agent {turn.agent}", style="cyan"))
        shown = Text()
        for byte, value in zip(turn.text, per_token[index], strict=False):  # plain ASCII: a token is a character
            shown.append(byte, style="green" if value > 0 else "red" if value < 0 else "")
        console.print(shown)


if __name__ == "__main__":
    main()

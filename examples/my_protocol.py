"""A protocol of one's own: everybody answers alone, then everybody votes on the others' answers, and on nothing else.

    peergrad train --preset demo-parallel --protocol my_protocol:Panel --heat 0.8      # in the folder of this file
    peergrad debate "Why is the sky dark at night?" --protocol my_protocol:Panel

or ``with_protocol(preset("demo-parallel"), Panel(heat=0.8))`` in Python. Every field of the dataclass is a setting and a flag.
"""

from __future__ import annotations

from dataclasses import dataclass

from peergrad import Ask, BaseProtocol, Contract, Debate, Message, UserError
from peergrad.debate import prompts

BALLOT = Contract(("evaluation", "comparison"))


@dataclass(frozen=True, kw_only=True)
class Panel(BaseProtocol):
    """Answer, then a round in which only votes are asked for."""

    heat: float = 1.0
    """The temperature of the answers; votes are at 1."""

    def __post_init__(self) -> None:
        BaseProtocol.__post_init__(self)
        if self.heat < 0:
            raise UserError(f"heat: {self.heat} is not possible; give 0 or more")

    def wave(self, debate: Debate) -> list[Ask]:
        round_, agents = self.speakers(debate)
        if round_ == 0:  # no contract: the whole reply is the answer
            messages = [Message("user", prompts.question(debate.question))]
            return [
                self.ask(debate, agent, messages, round=0, shown=(0, 0), place=place, temperature=self.heat)
                for place, agent in enumerate(agents)
            ]
        if round_ > 1 or self.agents < 3:  # a vote compares two others
            return []
        how = {"round": 1, "shown": (0, self.agents), "contract": BALLOT}
        return [
            self.ask(debate, agent, self._ballot(debate, agent), place=place, **how) for place, agent in enumerate(agents)
        ]

    def _ballot(self, debate: Debate, agent: int) -> tuple[Message, ...]:
        """The others' answers, quoted so that none of their words can pass for an instruction."""
        others = {turn.agent: turn.text for turn in debate.turns[: self.agents] if turn.agent != agent}
        return prompts.judge_messages(debate.question, others)

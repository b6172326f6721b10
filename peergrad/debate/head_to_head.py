"""Two models' answers to one question, judged blind in both orders (SPEC 9.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peergrad.debate.ballot import Ballot
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct
from peergrad.debate.types import Ask, Debate, Parsed

VoteForm = Literal["soft", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadToHead(BaseProtocol):
    """Seats 0 and 1 answer alone, by the prompt of direct answering. Then both, and a judge in seat 2 if there is one, say
    which answer is better, once in each order and without being told whose answers they are.
    """

    agents: int = 2
    vote_form: VoteForm = "soft"
    """How seats 0 and 1 vote: by how likely they are to say a letter, or in words."""
    judge_form: VoteForm = "words"

    @property
    def rounds(self) -> int:
        return 3

    def wave(self, debate: Debate) -> list[Ask]:
        if not debate.turns:
            return Direct(agents=2, max_tokens=self.max_tokens, prompts=self.prompts).wave(debate)
        if debate.rounds > 1:
            return []
        orders = (((0,), (1,)), ((1,), (0,)))
        return [
            self._ballot(voter).ballot_ask(
                debate, voter, candidates, round=order + 1, answered_in=0, place=order * self.agents + voter
            )
            for order, candidates in enumerate(orders)
            for voter in range(self.agents)
        ]

    def read(self, ask: Ask, text: str, truncated: bool = False) -> Parsed:
        return Parsed() if ask.contract is None else self._ballot(ask.agent).read(ask, text, truncated)

    def _ballot(self, voter: int) -> Ballot:
        form = self.vote_form if voter < 2 else self.judge_form
        return Ballot(
            max_tokens=self.max_tokens,
            temperature=0.0,
            ballot_form="soft-choice" if form == "soft" else "pairs",
            own_in_view=False,
            prompts=self.prompts,
        )

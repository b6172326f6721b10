"""What was spent, and the budget that ends it."""

from __future__ import annotations

import math
import operator
from dataclasses import astuple, dataclass

from peergrad.debate.errors import UserError
from peergrad.debate.types import Usage


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests that were answered, the tokens they took as their servers counted them, what these cost, and the time."""

    requests: int = 0
    prompt: int = 0
    sampled: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt + self.sampled

    def plus(self, other: Spent) -> Spent:
        return Spent(*map(operator.add, astuple(self), astuple(other)))

    def less(self, other: Spent) -> Spent:
        return Spent(*map(operator.sub, astuple(self), astuple(other)))


class Meter:
    """Counts what is spent, for one engine or several that share a budget.

    No request is begun once the budget is spent; those under way are finished, so a little more may be spent.

    Example: ``Meter(budget_usd=2.5)``
    """

    def __init__(self, *, budget_tokens: int | None = None, budget_usd: float | None = None) -> None:
        for name, value in (("budget_tokens", budget_tokens), ("budget_usd", budget_usd)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UserError(f"{name}: {value} is not possible; give more than 0, or leave it out for no limit")
        self.budget_tokens, self.budget_usd = budget_tokens, budget_usd
        self.spent = Spent()

    def add(self, usage: Usage | None, price_in: float, price_out: float) -> None:
        """One more request was answered. Prices are per million tokens."""
        tokens = usage or Usage(0, 0)
        usd = (tokens.prompt * price_in + tokens.sampled * price_out) / 1e6
        self.spent = self.spent.plus(Spent(1, tokens.prompt, tokens.sampled, usd))

    @property
    def halted(self) -> str | None:
        """Why nothing more may be spent, or ``None``."""
        if self.budget_tokens is not None and self.spent.tokens >= self.budget_tokens:
            return f"the budget of {self.budget_tokens} tokens is spent; raise budget_tokens to resume"
        if self.budget_usd is not None and self.spent.usd >= self.budget_usd:
            return f"the budget of ${self.budget_usd:g} is spent; raise budget_usd to resume"
        return None

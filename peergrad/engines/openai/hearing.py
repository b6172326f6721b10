"""Telling a listener of a reply while it comes in."""

from __future__ import annotations

from collections.abc import Callable

from peergrad.debate.types import Ask, only_text
from peergrad.engines.openai.replies import cut
from peergrad.engines.openai.secrets import Secrets

# (ask, the next piece of its reply; None: forget what you heard of it, it begins anew)
Hear = Callable[[Ask, str | None], None]


class Hearing:
    """One ask's listener. When the reply is there, the pieces since the last ``None`` are its text, no more, no less."""

    def __init__(self, ask: Ask, hear: Hear, secrets: Secrets) -> None:
        self._ask, self._hear, self._secrets = ask, hear, secrets
        self._told = ""

    def more(self, text: str) -> None:
        """The reply so far. What comes after a stop text, or may turn out to be a secret, is not told."""
        text = self._secrets.hide(text[: len(text) - self._secrets.begun(text)])
        self._tell(only_text(cut(text, self._ask.stop) or text))

    def over(self, text: str) -> None:
        """The whole reply."""
        if not text.startswith(self._told):
            self.again()
        self._tell(text)

    def again(self) -> None:
        """It was not to be; another attempt is made."""
        if self._told:
            self._hear(self._ask, None)
            self._told = ""

    def _tell(self, text: str) -> None:
        if len(text) > len(self._told):
            self._hear(self._ask, text[len(self._told) :])
            self._told = text

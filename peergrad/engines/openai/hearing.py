"""Telling a listener of a reply while it comes in."""

from __future__ import annotations

from collections.abc import Callable

from peergrad.debate.types import Ask, only_text
from peergrad.engines.openai.replies import cut
from peergrad.engines.shared.secrets import Secrets

# (ask, the next piece of its reply; None: forget what you heard of it, it begins anew)
Hear = Callable[[Ask, str | None], None]


class Deaf(Exception):  # noqa: N818 (not the server's fault)
    """The listener failed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("the listener failed")
        self.cause = cause


class Hearing:
    """One ask's listener. When the reply is there, the pieces since the last ``None`` are its text, no more, no less."""

    def __init__(self, ask: Ask, hear: Hear, secrets: Secrets) -> None:
        self._ask, self._hear, self._secrets = ask, hear, secrets
        self._reach = max(map(len, ask.stop), default=1) - 1  # how far back a stop text may have begun
        self._told: list[str] = []
        self._held = ""  # may turn out to be a secret
        self._tail = ""  # the end of what was told
        self._stopped = False

    def more(self, piece: str) -> None:
        """The next words of the reply. What comes after a stop text, or may turn out to be a secret, is not told."""
        if self._stopped or not piece:
            return
        text = self._secrets.hide(self._held + piece)
        end = len(text) - self._secrets.begun(text)
        text, self._held = text[:end], text[end:]
        seen = self._tail + text
        until_stop = cut(seen, self._ask.stop)
        self._stopped = until_stop is not None
        self._tell((until_stop or seen)[len(self._tail) :])
        self._tail = seen[max(0, len(seen) - self._reach) :]

    def over(self, text: str) -> None:
        """The whole reply."""
        if not text.startswith("".join(self._told)):
            self.again()
        self._tell(text[len("".join(self._told)) :])

    def again(self) -> None:
        """It was not to be; another attempt is made."""
        told, self._told = self._told, []
        self._held, self._tail, self._stopped = "", "", False
        if told:
            self._call(None)

    def _tell(self, text: str) -> None:
        if text:
            self._told.append(only_text(text))
            self._call(self._told[-1])

    def _call(self, piece: str | None) -> None:
        try:
            self._hear(self._ask, piece)
        except Exception as error:
            raise Deaf(error) from None

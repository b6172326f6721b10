"""Telling a listener of a reply while it comes in."""

from __future__ import annotations

from peergrad.debate.types import Ask, only_text
from peergrad.engines.base import OnText
from peergrad.engines.openai.completions import cut
from peergrad.engines.shared.secrets import Secrets


class ListenerError(Exception):
    """The listener failed, not the server."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("the listener failed")
        self.cause = cause


class ReplyStream:
    """The reply to one ask, on its way to a listener. In the end the pieces since the last ``None`` are exactly its text."""

    def __init__(self, ask: Ask, on_text: OnText, secrets: Secrets) -> None:
        self._ask, self._on_text, self._secrets = ask, on_text, secrets
        self._reach = max(map(len, ask.stop), default=1) - 1  # how far back a stop text may have begun
        self._sent: list[str] = []
        self._held = ""  # may turn out to be a secret
        self._tail = ""  # the end of what was sent
        self._stopped = False

    def add(self, piece: str) -> None:
        """Pass the next piece on, but for what comes after a stop text and what may turn out to be a secret."""
        if self._stopped or not piece:
            return
        text = self._secrets.hide(self._held + piece)
        end = len(text) - self._secrets.begun(text)
        text, self._held = text[:end], text[end:]
        seen = self._tail + text
        until_stop = cut(seen, self._ask.stop)
        self._stopped = until_stop is not None
        self._send((until_stop or seen)[len(self._tail) :])
        self._tail = seen[max(0, len(seen) - self._reach) :]

    def finish(self, text: str) -> None:
        """The whole reply is there."""
        if not text.startswith("".join(self._sent)):
            self.restart()
        self._send(text[len("".join(self._sent)) :])

    def restart(self) -> None:
        """Another attempt is made: what was sent is void."""
        sent, self._sent = self._sent, []
        self._held, self._tail, self._stopped = "", "", False
        if sent:
            self._call(None)

    def _send(self, text: str) -> None:
        if text:
            self._sent.append(only_text(text))
            self._call(self._sent[-1])

    def _call(self, piece: str | None) -> None:
        try:
            self._on_text(self._ask, piece)
        except Exception as error:
            raise ListenerError(error) from None

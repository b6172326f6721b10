"""Who is there. The id of all that belongs to a session begins with the session's own and a hyphen."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from peergrad.serve.refusals import Busy, Missing

_SILENT_S = 300.0  # a session that is not heard of for so long has ended; clients say every ten seconds that they live
_STALE_S = 30.0  # and if its room is needed, after so long
_MOST = 256


@dataclass(slots=True)
class _Session:
    key: str | None
    heard: float


class Sessions:
    """Those that live. ``let_go`` is told of each that ends."""

    def __init__(self, let_go: Callable[[str], None]) -> None:
        self._let_go = let_go
        self._alive: dict[str, _Session] = {}
        self._keys: dict[str, str] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._alive

    def begin(self, key: str | None) -> str:
        """A new session; while it lives, the same key begins the same one."""
        if key and key in self._keys:
            self.hear(self._keys[key])
            return self._keys[key]
        if len(self._alive) >= _MOST:
            self.make_room()
        if len(self._alive) >= _MOST:
            raise Busy(f"there are {_MOST} sessions; end some")
        id = secrets.token_hex(8)
        self._alive[id] = _Session(key, time.monotonic())
        if key:
            self._keys[key] = id
        return id

    def hear(self, id: str) -> None:
        """A session lives. ``Missing``: it has ended."""
        if id not in self._alive:
            raise Missing(f"there is no session {id!r}; it has ended, or the server was started anew")
        self._alive[id].heard = time.monotonic()

    def hear_of(self, thing: str) -> None:
        """Somebody asks for something by its id: the session it belongs to lives, if it has not ended."""
        if session := self._alive.get(thing.partition("-")[0]):
            session.heard = time.monotonic()

    def end(self, id: str) -> None:
        """Let go of all that a session has in memory. Checkpoints stay."""
        if session := self._alive.pop(id, None):
            if session.key:
                del self._keys[session.key]
            self._let_go(id)

    def sweep(self) -> None:
        """End those not heard of for long."""
        self._end_silent(_SILENT_S)

    def make_room(self) -> None:
        """End those not heard of lately."""
        self._end_silent(_STALE_S)

    def _end_silent(self, seconds: float) -> None:
        now = time.monotonic()
        for id in [id for id, session in self._alive.items() if now - session.heard > seconds]:
            self.end(id)

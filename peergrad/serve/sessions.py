"""Sessions of clients. Ids of what belongs to a session begin with the session's id and a hyphen."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from peergrad.serve.errors import BusyError, NotFoundError

_IDLE_S = 300.0  # clients send a heartbeat every ten seconds
_IDLE_UNDER_PRESSURE_S = 30.0
_MAX_SESSIONS = 256


@dataclass(slots=True)
class _Session:
    idempotency_key: str | None
    last_seen: float


class Sessions:
    """Sessions that are alive. ``on_end`` is called with the id of each session that ends."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._alive: dict[str, _Session] = {}
        self._by_key: dict[str, str] = {}

    def create(self, idempotency_key: str | None) -> str:
        """The id of a new session, or of the living one that was created with the same key."""
        if idempotency_key and idempotency_key in self._by_key:
            self.touch(self._by_key[idempotency_key])
            return self._by_key[idempotency_key]
        if len(self._alive) >= _MAX_SESSIONS:
            self.end_idle(under_pressure=True)
        if len(self._alive) >= _MAX_SESSIONS:
            raise BusyError(f"there are {_MAX_SESSIONS} sessions; end some")
        id = secrets.token_hex(8)
        self._alive[id] = _Session(idempotency_key, time.monotonic())
        if idempotency_key:
            self._by_key[idempotency_key] = id
        return id

    def touch(self, id: str) -> None:
        """Note that a session is in use. Raises ``NotFoundError`` if it has ended."""
        if id not in self._alive:
            raise NotFoundError(f"there is no session {id!r}; it has ended, or the server was restarted")
        self._alive[id].last_seen = time.monotonic()

    def touch_owner(self, id: str) -> None:
        """Note that the session to which this request, model or sampler belongs is in use, if it is alive."""
        if session := self._alive.get(id.partition("-")[0]):
            session.last_seen = time.monotonic()

    def end(self, id: str) -> None:
        """Free all that a session has in memory. Its checkpoints stay."""
        if session := self._alive.pop(id, None):
            if session.idempotency_key:
                del self._by_key[session.idempotency_key]
            self._on_end(id)

    def end_idle(self, *, under_pressure: bool = False) -> None:
        """End sessions that are idle; under pressure, also those that have been idle for a shorter time."""
        deadline = time.monotonic() - (_IDLE_UNDER_PRESSURE_S if under_pressure else _IDLE_S)
        for id in [id for id, session in self._alive.items() if session.last_seen < deadline]:
            self.end(id)

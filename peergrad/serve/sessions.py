"""Sessions of clients. Ids of what belongs to a session begin with the session's id and a hyphen."""

from __future__ import annotations

import asyncio
import secrets
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peergrad.serve.results import BusyError, Futures, NotFoundError

if TYPE_CHECKING:
    from peergrad.serve.policies import Policy
    from peergrad.serve.samplers import Weights

_IDLE_S = 300.0  # clients send a heartbeat every ten seconds
_IDLE_UNDER_PRESSURE_S = 30.0
_MAX_SESSIONS = 256


@dataclass(eq=False, slots=True)
class Session:
    """A client's session and what it has in memory."""

    id: str
    idempotency_key: str | None
    last_seen: float = field(default_factory=time.monotonic)
    policies: dict[str, Policy] = field(default_factory=dict)
    samplers: dict[str, Weights] = field(default_factory=dict)
    sampling: weakref.WeakSet[asyncio.Task[None]] = field(default_factory=weakref.WeakSet)


class Sessions:
    """Sessions that are alive."""

    def __init__(self, futures: Futures) -> None:
        self._futures = futures
        self.alive: dict[str, Session] = {}

    def create(self, idempotency_key: str | None) -> str:
        """The id of a new session, or of the living one that was created with the same key."""
        for session in self.alive.values():
            if idempotency_key and session.idempotency_key == idempotency_key:
                return self.find(session.id).id
        if len(self.alive) >= _MAX_SESSIONS:
            self.end_idle(under_pressure=True)
        if len(self.alive) >= _MAX_SESSIONS:
            raise BusyError(f"there are {_MAX_SESSIONS} sessions; end some")
        id = secrets.token_hex(8)
        self.alive[id] = Session(id, idempotency_key)
        return id

    def find(self, id: str) -> Session:
        """A session, which is in use. Raises ``NotFoundError`` if it has ended."""
        session = self.owner(id)
        if session is None:
            raise NotFoundError(f"there is no session {id!r}; it has ended, or the server was restarted")
        return session

    def owner(self, id: str) -> Session | None:
        """The session to which this request, model or sampler belongs, if it is alive. It is in use."""
        session = self.alive.get(id.partition("-")[0])
        if session is not None:
            session.last_seen = time.monotonic()
        return session

    def end(self, id: str) -> None:
        """Free all that a session has in memory. Its checkpoints stay."""
        if session := self.alive.pop(id, None):
            for policy in session.policies.values():
                policy.close()
            for task in list(session.sampling):
                task.cancel()
            self._futures.end_session(id)

    def end_idle(self, *, under_pressure: bool = False) -> None:
        """End sessions that are idle; under pressure, also those that have been idle for a shorter time."""
        deadline = time.monotonic() - (_IDLE_UNDER_PRESSURE_S if under_pressure else _IDLE_S)
        for id in [id for id, session in self.alive.items() if session.last_seen < deadline]:
            self.end(id)

"""Sessions of clients, and futures of their requests. Ids of what belongs to a session begin with its id and a hyphen."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peergrad.debate.errors import EngineError, UserError
from peergrad.serve.messages import BusyError, GoneError, NotFoundError, Result

if TYPE_CHECKING:
    from peergrad.serve.policies import Policy
    from peergrad.serve.samplers import Weights

_IDLE_S = 300.0  # clients send a heartbeat every ten seconds
_IDLE_UNDER_PRESSURE_S = 30.0
_MAX_SESSIONS = 256
# Results are kept for clients that lost the response and ask again, within these limits.
_MAX_RESULTS, _MAX_RESULT_BYTES, _RESULT_TTL_S = 20_000, 512 * 2**20, 3600.0
_MAX_EXPIRED_IDS = 200_000

log = logging.getLogger(__name__)


class Futures:
    """Futures by request id: the work is done once, and its result can be fetched several times."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[Result]] = {}
        self._results: OrderedDict[str, tuple[float, Result]] = OrderedDict()
        self._expired: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._result_bytes = 0

    def __contains__(self, id: str) -> bool:
        return id in self._pending or id in self._results or id in self._expired

    @property
    def pending(self) -> int:
        return len(self._pending)

    def create(self, id: str) -> None:
        """Create a future; ``run`` or ``fail`` resolves it."""
        self._pending[id] = asyncio.get_running_loop().create_future()

    def start(self, id: str, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[None]:
        """Create a future and begin its work."""
        self.create(id)
        task = asyncio.create_task(self.run(id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, id: str, work: Callable[[], Awaitable[Result]]) -> None:
        """Do the work and resolve the future with its result or its error."""
        try:
            result = await work()
        except UserError as error:
            result = Result.json(error=str(error), category="user")
        except EngineError as error:
            result = Result.json(error=str(error), category="server")
        except Exception as error:
            log.exception("request %s failed", id)
            result = Result.json(error=f"{type(error).__name__}: {error}", category="server")
        self._resolve(id, result)

    async def result(self, id: str, timeout_s: float) -> Result | None:
        """The result of a request; None if it is not done within ``timeout_s``."""
        if id in self._results:
            return self._results[id][1]
        if id in self._expired:
            raise GoneError(f"the result of {id!r} is kept no longer")
        if id not in self._pending:
            raise NotFoundError(f"there is no request {id!r}; the server was restarted")
        future = self._pending[id]
        await asyncio.wait({future}, timeout=timeout_s)
        return future.result() if future.done() else None

    def fail(self, id: str, reason: str) -> None:
        """Resolve a request with an error, whether or not it had a future."""
        self._resolve(id, Result.json(error=reason, category="user"))

    def end_session(self, session: str) -> None:
        """Fail all pending requests of a session."""
        for id in [id for id in self._pending if id.startswith(f"{session}-")]:
            self.fail(id, "the session has ended")

    def _resolve(self, id: str, result: Result) -> None:
        if id in self._results or id in self._expired:  # it was failed while its work was under way
            return
        if future := self._pending.pop(id, None):
            future.set_result(result)
        self._results[id] = (time.monotonic(), result)
        self._result_bytes += len(result.body)
        self.expire()

    def expire(self) -> None:
        """Drop results that are too old, and the oldest if there are too many."""
        while self._results:
            id, (resolved, result) = next(iter(self._results.items()))
            full = len(self._results) > _MAX_RESULTS or self._result_bytes > _MAX_RESULT_BYTES
            if time.monotonic() - resolved <= _RESULT_TTL_S and not (full and len(self._results) > 1):
                return
            del self._results[id]
            self._result_bytes -= len(result.body)
            self._expired[id] = None
            if len(self._expired) > _MAX_EXPIRED_IDS:
                self._expired.popitem(last=False)


@dataclass(eq=False, slots=True)
class Session:
    """A client's session and what it has in memory."""

    id: str
    idempotency_key: str | None
    client: str  # its address
    last_seen: float = field(default_factory=time.monotonic)
    policies: dict[str, Policy] = field(default_factory=dict)
    samplers: dict[str, Weights] = field(default_factory=dict)
    sampling: weakref.WeakSet[asyncio.Task[None]] = field(default_factory=weakref.WeakSet)


class Sessions:
    """Sessions that are alive, and the futures of all."""

    def __init__(self) -> None:
        self.futures = Futures()
        self.alive: dict[str, Session] = {}

    def create(self, idempotency_key: str | None, client: str) -> str:
        """The id of a new session of a client, or of the living one that was created with the same key."""
        for session in self.alive.values():
            if idempotency_key and session.idempotency_key == idempotency_key:
                return self.find(session.id).id
        if len(self.alive) >= _MAX_SESSIONS:
            self.end_idle(under_pressure=True)
        if len(self.alive) >= _MAX_SESSIONS:
            self._make_room(client)
        id = secrets.token_hex(8)
        self.alive[id] = Session(id, idempotency_key, client)
        return id

    def _make_room(self, client: str) -> None:
        """End a session of the client that has the most: one that holds nothing or, for another client, no policy."""
        most = Counter(session.client for session in self.alive.values()).most_common(1)[0][0]
        idle = [s for s in self.alive.values() if s.client == most and not s.policies]
        idle = [s for s in idle if most != client or not s.samplers]
        if not idle:
            raise BusyError(f"there are {_MAX_SESSIONS} sessions; end some")
        self.end(min(idle, key=lambda session: session.last_seen).id)

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
            self.futures.end_session(id)

    def end_idle(self, *, under_pressure: bool = False) -> None:
        """End sessions that are idle; under pressure, also those that have been idle for a shorter time."""
        deadline = time.monotonic() - (_IDLE_UNDER_PRESSURE_S if under_pressure else _IDLE_S)
        for id in [id for id, session in self.alive.items() if session.last_seen < deadline]:
            self.end(id)

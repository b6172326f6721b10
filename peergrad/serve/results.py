"""Results of requests, as JSON or as protobuf messages of the tinker package; their futures; errors by HTTP status."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import Completion
from peergrad.engines.local.train.backward import Gradient

PROTOBUF = "application/x-protobuf"
# Results are kept for clients that lost the response and ask again, within these limits.
_MAX_RESULTS, _MAX_RESULT_BYTES, _RESULT_TTL_S = 20_000, 512 * 2**20, 3600.0
_MAX_EXPIRED_IDS = 200_000

log = logging.getLogger(__name__)


class NotFoundError(UserError):
    """404: there is no such session, model, sampler, checkpoint or request."""


class GoneError(UserError):
    """410: it existed and was removed."""


class BusyError(Exception):
    """429: the server is at a limit; clients retry."""


@dataclass(frozen=True, slots=True)
class Result:
    """A response: its body, media type and HTTP status."""

    body: bytes
    media: str = "application/json"
    status: int = 200

    @staticmethod
    def json(**fields: Any) -> Result:
        return Result(json.dumps(fields).encode())


class Futures:
    """Futures by request id: the work is done once, and its result can be fetched several times.

    The id of a request begins with the id of its session.
    """

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


def gradient_result(gradient: Gradient) -> Result:
    """The loss and the log-probabilities of the targets."""
    offsets = np.cumsum([0, *(4 * len(logprobs_T) for logprobs_T in gradient.logprobs)], dtype=np.int64)
    column = pb.BatchedTensor(
        data=np.concatenate(gradient.logprobs).astype("<f4").tobytes(),
        offsets=offsets.astype("<i8").tobytes(),
        dtype=pb.DTYPE_FLOAT32,
    )
    record = pb.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": column}, num_datums=len(gradient.logprobs))
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record])
    output.metrics["loss:sum"] = gradient.loss
    return Result(output.SerializeToString(), PROTOBUF)


def sample_result(completions: Sequence[Completion], prompt_T: Ids, logprobs_T: Floats | None) -> Result:
    """The completions, and the log-probabilities of the prompt's last tokens if they were asked for."""
    response = pb.SampleResponse()
    for completion in completions:
        response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if completion.ended else pb.STOP_REASON_LENGTH,
            tokens=np.array(completion.ids, "<i4").tobytes(),
            logprobs=np.array(completion.logprobs, "<f4").tobytes(),
        )
    if logprobs_T is not None:
        padded_T = np.full(len(prompt_T), np.nan, "<f4")
        padded_T[len(prompt_T) - len(logprobs_T) :] = logprobs_T
        response.prompt_logprobs = padded_T.tobytes()
    return Result(response.SerializeToString(), PROTOBUF)

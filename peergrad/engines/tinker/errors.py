"""The exceptions for what a service refuses, and for what its client raises."""

from __future__ import annotations

import re
from collections.abc import Callable

import tinker
from tinker.types import RequestErrorCategory

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.engines.tinker.address import KEY_ENV

RESUMES = "the same command goes on"


class NotFound(Halted):
    """The service does not know what it is asked about."""


def error_for(host: str, error: Exception, what: str, quoted: Callable[[str], str]) -> Exception:
    """The sentence for whatever the client raised while waiting for ``what``. Servers' words are quoted, never trusted."""
    reason = quoted(str(error).split(" for self.request_id")[0]) or type(error).__name__
    if isinstance(error, tinker.APIStatusError):
        body = error.body
        detail = body.get("detail") if isinstance(body, dict) else None
        return status_error(host, error.status_code, quoted(str(detail or error)), what)
    if isinstance(error, tinker.RequestFailedError) and error.category is RequestErrorCategory.User:
        return EngineError(f"{host} refuses {what} ({reason})")
    if isinstance(error, tinker.APIConnectionError):
        return Halted(f"{host} can't be reached ({reason}), while waiting for {what}; {RESUMES}")
    if isinstance(error, ValueError) and (status := re.search(r"status (\d{3})", str(error))):
        return status_error(host, int(status[1]), reason, what)  # how the client says that a result is not to be had
    kind = "" if isinstance(error, tinker.TinkerError) else f"{type(error).__name__}: "
    return EngineError(f"{host}: {what} failed ({kind}{reason}); {RESUMES}")


def status_error(host: str, status: int, reason: str, what: str) -> Exception:
    """The sentence for a status that is no success."""
    if status == 401:
        return UserError(f"{KEY_ENV}: {host} does not accept the key (401); put the right one into the environment")
    if status == 402:
        return Halted(f"{host}: the account has no credit left (402: {reason}); {RESUMES}")
    if status == 403:
        return UserError(f"{KEY_ENV}: {host} does not allow this key {what} (403: {reason})")
    if status == 404:
        return NotFound(f"{host}: {what}: it does not know (any more) what is asked for (404: {reason}); {RESUMES}")
    if status == 429:
        return EngineError(f"{host} is too busy for {what} (429: {reason}); {RESUMES}")
    if status < 500:
        return EngineError(f"{host} refuses {what} ({status}: {reason})")
    return EngineError(f"{host}: {what} failed ({status}: {reason}); {RESUMES}")

"""What a service's refusals mean to a person."""

from __future__ import annotations

import re
from collections.abc import Callable

import tinker
from tinker.types import RequestErrorCategory

from peergrad.debate.errors import EngineError, Halted, UserError
from peergrad.engines.tinker.rules import KEY_ENV

LATER = "the same command goes on"


class Unknown(Halted):
    """The service does not know what it is asked about."""


def meant(host: str, error: Exception, what: str, quoted: Callable[[str], str]) -> Exception:
    """The sentence for whatever the client raised while waiting for ``what``. Servers' words are quoted, never trusted."""
    said = quoted(str(error).split(" for self.request_id")[0]) or type(error).__name__
    if isinstance(error, tinker.APIStatusError):
        body = error.body
        detail = body.get("detail") if isinstance(body, dict) else None
        return refused(host, error.status_code, quoted(str(detail or error)), what)
    if isinstance(error, tinker.RequestFailedError) and error.category is RequestErrorCategory.User:
        return EngineError(f"{host} refuses {what} ({said})")
    if isinstance(error, tinker.APIConnectionError):
        return Halted(f"{host} can't be reached ({said}), while waiting for {what}; {LATER}")
    if isinstance(error, ValueError) and (status := re.search(r"status (\d{3})", str(error))):
        return refused(host, int(status[1]), said, what)  # how the client says that a result is not to be had
    kind = "" if isinstance(error, tinker.TinkerError) else f"{type(error).__name__}: "
    return EngineError(f"{host}: {what} failed ({kind}{said}); {LATER}")


def refused(host: str, status: int, said: str, what: str) -> Exception:
    """The sentence for a status that is no success."""
    if status == 401:
        return UserError(f"{KEY_ENV}: {host} does not accept the key (401); put the right one into the environment")
    if status == 402:
        return Halted(f"{host}: the account has no credit left (402: {said}); {LATER}")
    if status == 403:
        return UserError(f"{KEY_ENV}: {host} does not allow this key {what} (403: {said})")
    if status == 404:
        return Unknown(f"{host}: {what}: it does not know (any more) what is asked for (404: {said}); {LATER}")
    if status == 429:
        return EngineError(f"{host} is too busy for {what} (429: {said}); {LATER}")
    if status < 500:
        return EngineError(f"{host} refuses {what} ({status}: {said})")
    return EngineError(f"{host}: {what} failed ({status}: {said}); {LATER}")

"""What a failed request means: try again, ask otherwise, give up this ask, or stop the run."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from peergrad.debate.errors import EngineError, Halted, UserError

_AGAIN = (408, 409, 423, 425, 429)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context[ _](?:length|window|size)|maximum (?:context|prompt|sequence)|max_model_len|"
    r"(?:prompt|input|request)[\w ]{0,20} too (?:long|large)|exceed_context",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"insufficient[_ ](?:quota|credit|balance|funds)|billing_hard_limit|exceeded your current quota", re.IGNORECASE
)
_FLAGGED = re.compile(r"content[_ ]?(?:filter|policy)|moderation|flagged", re.IGNORECASE)


class Again(Exception):  # noqa: N818 (what to do about it)
    """The same request may succeed later; after so many seconds, where the server said."""

    def __init__(self, why: str, after_s: float | None = None, *, unreachable: bool = False) -> None:
        super().__init__(why)
        self.after_s, self.unreachable = after_s, unreachable


class Refused(Exception):  # noqa: N818
    """The server does not take the request as it is."""

    def __init__(self, why: str, param: str | None, everything: str) -> None:
        super().__init__(why)
        self.param, self.everything = param, everything


class Complained(Exception):  # noqa: N818
    """A server complained in the place of an answer."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.words)
        self.complaint = complaint


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a server said instead of an answer."""

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def instead(error: object) -> Complaint:
        """An error where an answer should be, in a body with a good status or in a stream."""
        code = cast("Mapping[str, Any]", error).get("code") if isinstance(error, Mapping) else None
        return Complaint(code if isinstance(code, int) and 400 <= code < 600 else 502, error)

    @property
    def fields(self) -> Mapping[str, Any]:
        body = self.body
        if isinstance(body, Mapping) and isinstance(error := cast("Mapping[str, Any]", body).get("error"), Mapping):
            body = cast("object", error)
        return cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {}

    @property
    def words(self) -> str:
        """Its message, or all of it."""
        message = self.fields.get("message")
        return message if isinstance(message, str) and message else self.everything

    @property
    def everything(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body, ensure_ascii=False, default=str)


def judged(complaint: Complaint, server: str, key_env: str, quoted: Callable[[str], str]) -> Exception:
    """What to make of a complaint. ``server`` names model and host; ``quoted`` makes a server's words fit for a sentence."""
    status, everything = complaint.status, complaint.everything
    said = f"{status}: {quoted(complaint.words)}"
    if status == 402 or _NO_CREDIT.search(everything):
        return Halted(f"{server}: the account has no credit left ({said})")
    if status in _AGAIN or status >= 500:
        return Again(f"{server} answered {said}", after(complaint.headers))
    if status == 401:
        return UserError(f"{key_env}: {server} does not accept the key ({status}); put the right one into the environment")
    if status == 404:
        return UserError(f"model: there is no {server} ({said}); correct the model's name or base_url")
    if 300 <= status < 400:
        return UserError(f"base_url: {server} sends elsewhere{_target(complaint.headers)} ({status}); give that address")
    if status == 413 or _TOO_LONG.search(everything):
        return EngineError(f"{server}: the dialogue does not fit the model's context ({said})")
    if _FLAGGED.search(everything):
        return EngineError(f"{server} refuses this prompt ({said})")
    if status == 403:
        return UserError(f"{key_env}: the key has no access to {server} ({said})")
    param = complaint.fields.get("param")
    return Refused(said, param if isinstance(param, str) else None, everything)


def after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How many seconds a server asks to wait: Retry-After as seconds or as a date, or retry-after-ms."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _target(headers: Mapping[str, str]) -> str:
    """Where a redirection leads: scheme, host and path, nothing that could be a secret."""
    try:
        parts = urlsplit(headers.get("location", ""))
        return f", to {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}" if parts.hostname else ""
    except ValueError:
        return ""

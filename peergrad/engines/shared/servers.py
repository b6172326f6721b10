"""Servers: their addresses and keys, and how secrets are kept out of what people see and keep: sentences, logs, replies."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import quote, quote_plus, urlsplit

from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.engines.base import EngineConfig, UpdateConfig

TINKER_KEY = "TINKER_API_KEY"
TINKER_HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
HIDDEN = "[hidden]"
_LIKELY = (  # what looks like a secret in a server's words, whosever it is
    (re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\bsk-[\w-]{6,}"), HIDDEN),
    (re.compile(r"://[^/\s@]*@"), f"://{HIDDEN}@"),
    (re.compile(r"([?&;][\w-]*(?:key|token|secret|sig|password|auth)[\w-]*=)[^&\s\"'<>]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(r"((?:authorization|api[-_]?key|cookie)[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;}]+)", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
)
_LOGGERS = ("httpx2", "httpcore2")
_SHORTEST = 8  # shorter "keys" are placeholders such as EMPTY, and hiding them would hide words
_QUOTED = 300  # characters of a server's words in a sentence


def check_address(url: str, where: str) -> None:
    """Refuse an address that is none, or that carries a secret."""
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port
    except ValueError:
        parts, name = None, None
    if "@" in url:
        raise UserError(f"{where}: has a user name or password in it; leave it out and put the key into the environment")
    if parts is None or parts.scheme not in ("http", "https") or not name or re.search(r"[\s\x00-\x20]", url):
        raise UserError(f"{where}: is no address of a server; give one such as http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise UserError(f"{where}: ends in ?… or #…; leave that out and put the key into the environment")


def service_address(base_url: str | None, variable: str, default: str, environ: Mapping[str, str]) -> str:
    """Where a service is: at ``base_url``, or else where an environment variable says, or else at its usual address."""
    for url, where in ((base_url, "base_url"), (environ.get(variable, "").strip(), variable)):
        if url:
            check_address(url, where)
            return url
    return default


def service_key(variable: str, url: str, environ: Mapping[str, str], form: str, hint: str, *, required: bool) -> str | None:
    """The key of a service, which an environment variable holds; None if there is none and none is required."""
    value = environ.get(variable, "").strip()
    if value and not re.fullmatch(form, value):
        raise UserError(f"{variable}: holds no key{hint}")
    if not value and required:
        raise UserError(f"{variable}: is not set; put the key of {host(url)} into it")
    return value or None


def host(url: str) -> str:
    """Host and port of an address, for sentences."""
    return urlsplit(url).netloc


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is one of this machine that no other can reach."""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def tinker_address(base_url: str | None = None) -> str:
    """Where the Tinker service is: at ``base_url``, or else at TINKER_BASE_URL, or else the hosted one."""
    return service_address(base_url, "TINKER_BASE_URL", TINKER_HOSTED, os.environ).rstrip("/")


def tinker_key(url: str) -> str:
    """The key of a Tinker service. A server on this machine may need none, but the client insists on one."""
    hint, required = "; one begins with tml- and has no spaces in it", not is_loopback(urlsplit(url).hostname or "")
    return service_key(TINKER_KEY, url, os.environ, r"(tml-|eyJ)[\x21-\x7e]+", hint, required=required) or "tml-none"


def check_tinker(engine: EngineConfig, update: UpdateConfig) -> None:
    """Refuse what no Tinker service can do, before one is asked."""
    if update.alpha != UpdateConfig.alpha:
        raise UserError(f"alpha: {update.alpha} is not possible with engine tinker; services have {UpdateConfig.alpha:g}")
    tinker_key(tinker_address(engine.base_url))


class Secrets:
    """The secrets of one engine. Values too short to be one are passed over."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
        written = sorted({way for value in self._values for way in _ways(value)}, key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, written)), re.IGNORECASE) if written else None
        self._filtered: list[logging.Logger] = []

    def scrub(self, text: str) -> str:
        """A sentence without secrets: these, however they are written, and whatever looks like one."""
        text = self.exact(text)
        for pattern, instead in _LIKELY:
            text = pattern.sub(instead, text)
        return text

    def exact(self, text: str) -> str:
        """A sentence without these secrets, however they are written."""
        return self._written.sub(HIDDEN, text) if self._written else text

    def quoted(self, text: str) -> str:
        """A server's words as part of a sentence: one line, without secrets, not long."""
        clean = visible(self.scrub(text[:20_000])).strip()
        return clean if len(clean) <= _QUOTED else clean[: _QUOTED - 1] + "…"

    def hide(self, text: str) -> str:
        """A reply without these secrets. Nothing else in it is touched."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def secret_start(self, text: str) -> int:
        """How many characters at the end of a reply that is still coming may be the beginning of a secret."""
        starts = (value[:size] for value in self._values for size in range(1, len(value)))
        return max((len(start) for start in starts if text.endswith(start)), default=0)

    def guard_logs(self) -> None:
        """Scrub what the client of servers and its transport log, at every level, until ``leave_logs``."""
        for name in (*_LOGGERS, *logging.root.manager.loggerDict):
            if name.split(".")[0] in _LOGGERS and logging.getLogger(name) not in self._filtered:
                logging.getLogger(name).addFilter(self._scrub_record)
                self._filtered.append(logging.getLogger(name))

    def leave_logs(self) -> None:
        for logger in self._filtered:
            logger.removeFilter(self._scrub_record)
        self._filtered.clear()

    def _scrub_record(self, record: logging.LogRecord) -> bool:
        """A filter of log records. That of a logger does not see its children's records: each logger needs it."""
        try:
            message = record.getMessage()
        except Exception:  # badly written by whoever logs it: logging would print it as it is
            message = str(record.msg)
        record.msg, record.args = self.scrub(message), None
        if record.exc_info:
            record.exc_text = self.scrub(logging.Formatter().formatException(record.exc_info))
        return True


def _ways(value: str) -> set[str]:
    """A secret as servers and libraries write it: plain, escaped, in an address, in base64."""
    plain = {value, json.dumps(value)[1:-1], repr(value)[1:-1]}
    return plain | {quote(value, safe=""), quote_plus(value), base64.b64encode(value.encode()).decode().rstrip("=")}

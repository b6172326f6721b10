"""Addresses of servers and their keys, those of a Tinker service among them. No sentence repeats what may be a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from peergrad.debate.errors import UserError
from peergrad.engines.base import EngineConfig, UpdateConfig

TINKER_KEY = "TINKER_API_KEY"
TINKER_HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"


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

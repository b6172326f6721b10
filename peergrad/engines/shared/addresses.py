"""Addresses of servers, and the environment variables that hold their keys. No sentence repeats what may be a secret."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from peergrad.debate.errors import UserError


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


def check_variable(name: str) -> None:
    """Refuse what is no environment variable's name: it may be the key itself."""
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise UserError(
            "key_env: is no name of an environment variable (capitals, digits and _); give the name, never the key itself"
        )


def host(url: str) -> str:
    """Host and port of an address, for sentences."""
    return urlsplit(url).netloc


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is one of this machine that no other can reach."""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False

"""Where an API is, and its key, which comes from the environment alone."""

from __future__ import annotations

from collections.abc import Mapping

from peergrad.debate.errors import UserError
from peergrad.engines.config import ApiConfig
from peergrad.engines.shared.addresses import check_address, host

OPENAI = "https://api.openai.com/v1"


def address(base_url: str | None, environ: Mapping[str, str]) -> str:
    """Where the server is: at ``base_url``, or else at OPENAI_BASE_URL, or else OpenAI's own."""
    for url, where in ((base_url, "base_url"), (environ.get("OPENAI_BASE_URL", "").strip(), "OPENAI_BASE_URL")):
        if url:
            check_address(url, where)
            return url
    return OPENAI


def key(name: str, url: str, environ: Mapping[str, str]) -> str | None:
    """The key in a variable, or ``None`` for a server that may need none."""
    value = environ.get(name, "").strip()
    if value and not (value.isascii() and value.isprintable() and " " not in value):
        raise UserError(f"{name}: holds no key: there are spaces, line ends or odd characters in it")
    if not value and (name != ApiConfig.key_env or host(url) == host(OPENAI)):
        raise UserError(f"{name}: is not set; put the key of {host(url)} into it")
    return value or None

"""Where a Tinker service is, its key, and what it can't do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from peergrad.debate.errors import UserError
from peergrad.engines.base import EngineConfig, UpdateConfig
from peergrad.engines.shared.addresses import is_loopback, service_address, service_key

KEY_ENV = "TINKER_API_KEY"
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
CHECKPOINT = "tinker.json"  # the file in a run's checkpoint that says where the service keeps it


def address(base_url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Where the service is: at ``base_url``, or else at TINKER_BASE_URL, or else the hosted one."""
    return service_address(base_url, "TINKER_BASE_URL", HOSTED, environ).rstrip("/")


def key(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The key. A server on this machine may need none, but the client insists on one."""
    hint, required = "; one begins with tml- and has no spaces in it", not is_loopback(urlsplit(url).hostname or "")
    return service_key(KEY_ENV, url, environ, r"(tml-|eyJ)[\x21-\x7e]+", hint, required=required) or "tml-none"


def check_settings(engine: EngineConfig, update: UpdateConfig) -> None:
    """Refuse what no service can do, before one is asked."""
    if update.alpha != UpdateConfig.alpha:
        raise UserError(f"alpha: {update.alpha} is not possible with engine tinker; services have {UpdateConfig.alpha:g}")
    key(address(engine.base_url))

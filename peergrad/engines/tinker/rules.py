"""The settings of the Tinker engine, and what they name: an address and a key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from peergrad.debate.errors import UserError
from peergrad.engines.shared.addresses import check_address, is_loopback

KEY_ENV = "TINKER_API_KEY"
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
CHECKPOINT = "tinker.json"  # the file in a run's checkpoint that says where the service keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerRules:
    """Which model of which service is trained, and how. The key is no setting: it comes from the environment alone."""

    model: str
    """The base model, as the service knows it; its tokenizer is got by the same name."""
    base_url: str | None = None
    """Where the service is; None: TINKER_BASE_URL, or else the hosted one."""
    rank: int = 32
    """Rank of the LoRA adapter."""
    seed: int = 0
    """Of the adapter's first weights, and of everything that is sampled."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are scaled down to it."""
    deadline_s: float = 1800.0
    """The longest that anything is waited for."""


def address(base_url: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Where the service is."""
    for url, where in ((base_url, "base_url"), (environ.get("TINKER_BASE_URL", "").strip(), "TINKER_BASE_URL")):
        if url:
            check_address(url, where)
            return url.rstrip("/")
    return HOSTED


def key(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The key. A server on this machine may need none, but the client insists on one."""
    found = environ.get(KEY_ENV, "").strip()
    if not found and is_loopback(urlsplit(url).hostname or ""):
        return "tml-none"
    if not found:
        raise UserError(f"{KEY_ENV}: is not set; put the key of {urlsplit(url).netloc} into it")
    if not re.fullmatch(r"(tml-|eyJ)[\x21-\x7e]+", found):
        raise UserError(f"{KEY_ENV}: holds no key; one begins with tml- and has no spaces in it")
    return found

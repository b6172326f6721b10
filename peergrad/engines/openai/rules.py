"""The settings of the API engine, and what they name: an address and a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peergrad.debate.errors import UserError
from peergrad.engines.shared.addresses import check_address, check_variable, host

OPENAI = "https://api.openai.com/v1"

Stops = Literal["exact", "trusted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRules:
    """Which model of which server is asked, and how. The key is no setting: it comes from the environment alone."""

    model: str
    """The model's name, as the server knows it."""
    base_url: str | None = None
    """Where the server is, as in http://localhost:8000/v1; None takes OPENAI_BASE_URL, or else OpenAI's own."""
    key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. A server given by base_url may need none."""
    max_concurrent: int = 16
    """Asks under way at the same time, those that wait to be tried again included."""
    timeout_s: float = 300.0
    """How long one request may take, from first to last byte."""
    deadline_s: float = 900.0
    """How long one ask may take with all its retries, from its first request on."""
    retries: int = 6
    """How often a request is tried again that failed by no fault of its own."""
    stops: Stops = "exact"
    """What to do with a server that cuts stop texts off without saying so: exact sends it none and cuts the reply here;
    trusted takes any end within the last section for its closing tag, and saves what a model says after it."""
    send_temperature: bool = True
    """False for models that take none but their own; agents then differ by their words only."""
    tokens: bool = False
    """Keep token ids and log-probabilities. The server must give those of the distribution it samples from: vLLM started
    with --logprobs-mode processed_logprobs."""
    price_in: float = 0.0
    """US dollars per million tokens of prompt."""
    price_out: float = 0.0
    """US dollars per million tokens sampled."""
    seed: int = 0
    """Another seed asks for other replies, of servers that take one."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise UserError("model: is empty; give the name the server knows it by")
        check_variable(self.key_env)
        for name, least in (("max_concurrent", 1), ("retries", 0), ("price_in", 0), ("price_out", 0)):
            if not getattr(self, name) >= least:
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give at least {least}")
        for name in ("timeout_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}: {getattr(self, name)} is not possible; give more than 0 seconds")
        if self.base_url is not None:
            check_address(self.base_url, "base_url")


def address(rules: ApiRules, environ: Mapping[str, str] = os.environ) -> str:
    """Where the server is."""
    if rules.base_url is not None:
        return rules.base_url
    if url := environ.get("OPENAI_BASE_URL", "").strip():
        check_address(url, "OPENAI_BASE_URL")
        return url
    return OPENAI


def key(rules: ApiRules, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key, or ``None`` for a server that may need none."""
    found = environ.get(rules.key_env, "").strip()
    if found and not (found.isascii() and found.isprintable() and " " not in found):
        raise UserError(f"{rules.key_env}: holds no key: there are spaces, line ends or odd characters in it")
    if not found and (rules.key_env != "OPENAI_API_KEY" or host(address(rules, environ)) == host(OPENAI)):
        raise UserError(f"{rules.key_env}: is not set; put the key of {host(address(rules, environ))} into it")
    return found or None

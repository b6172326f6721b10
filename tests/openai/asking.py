"""Short ways to ask a server through the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peergrad.debate.types import Ask, Message
from peergrad.engines.openai.engine import Api
from peergrad.engines.openai.rules import ApiRules
from peergrad.engines.shared.meter import Meter
from tests.openai.server import Request, Response, Server

STOP = "</comparison>"


def an_ask(text="?", *, stop=(STOP,), debate="d", agent=0, turn=0, temperature=0.7, max_tokens=50) -> Ask:
    return Ask(debate, agent, turn, turn, (Message("user", text),), stop, max_tokens, temperature)


def asked(handle: Callable[[Request], Response], *asks: Ask, environ=None, hear=None, meter=None, **rules):
    """The answers to asks, one after another, of a server that does as told; and the server."""
    return asyncio.run(_asked(handle, asks or (an_ask(),), environ or {}, hear, meter, rules))


async def _asked(handle, asks, environ, hear, meter: Meter | None, rules):
    with Server(handle) as server:
        made = ApiRules(**({"model": "m", "base_url": server.url, "retries": 2, "timeout_s": 5} | rules))
        async with Api(made, environ=environ, hear=hear, meter=meter) as api:
            answers = [(await api.sample([ask]))[0] for ask in asks]
    return answers, server

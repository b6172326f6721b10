"""Short ways to ask a server through the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peergrad.config import ApiConfig, EngineConfig
from peergrad.debate.types import Ask, Message
from peergrad.engines.openai.engine import Api
from tests.openai.server import Request, Response, Server

STOP = "</comparison>"


def an_ask(text="?", *, stop=(STOP,), debate="d", agent=0, turn=0, temperature=0.7, max_tokens=50) -> Ask:
    return Ask(debate, agent, turn, turn, (Message("user", text),), stop, max_tokens, temperature)


def asked(handle: Callable[[Request], Response], *asks: Ask, deadline_s: float = 900.0, **settings):
    """The answers to asks, one after another, of a server that does as told; and the server."""
    return asyncio.run(_asked(handle, asks or (an_ask(),), deadline_s, settings, lambda api, ask: api.sample([ask])))


def chosen(handle: Callable[[Request], Response], *asks: Ask, options=("Yes", "No"), **settings):
    """The same of how likely options are."""
    choose = lambda api, ask: api.choose([ask], options)  # noqa: E731
    return asyncio.run(_asked(handle, asks or (an_ask(),), 900.0, settings, choose))


async def _asked(handle, asks, deadline_s, settings, call):
    names = {"environ": "environ", "hear": "on_text", "meter": "meter", "tokens": "tokens", "seed": "seed"}
    more = {"environ": {}} | {name: settings.pop(given) for given, name in names.items() if given in settings}
    with Server(handle) as server:
        engine = EngineConfig(model="m", base_url=server.url, deadline_s=deadline_s)
        async with Api(engine, ApiConfig(**({"retries": 2, "timeout_s": 5} | settings)), **more) as api:
            answers = [(await call(api, ask))[0] for ask in asks]
    return answers, server

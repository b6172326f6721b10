"""The models that take part in something, each loaded once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from peergrad.config import ApiConfig, EngineConfig
from peergrad.debate.batch import Batcher
from peergrad.debate.errors import UserError
from peergrad.debate.sampler import Sampler
from peergrad.engines.base import Engine, Model, OnText, Setup
from peergrad.engines.registry import API, ENGINES, engine_of, open_engine
from peergrad.engines.shared.addresses import host
from peergrad.engines.shared.meter import Meter
from peergrad.runs.model_ref import ModelRef

_VARIABLE = re.compile(r"(?!sk_)[A-Za-z_][A-Za-z0-9_]*")


def keys_of(api: ApiConfig) -> dict[str, str]:
    """The variables that hold keys, by server."""
    variables: dict[str, str] = {}
    for entry in api.server_keys:
        server, equals, name = entry.rpartition("=")
        if not equals or not server or not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", server) or not _VARIABLE.fullmatch(name):
            raise UserError(
                "server_keys: is not HOST=VARIABLE; give the server's name, and that of the variable with its key"
            )
        variables[server] = name
    return variables


def weights_of(checkpoint: Path, engine: Engine) -> Path:
    """The file that tells a checkpoint's weights from others. Checkpoints of another engine are refused."""
    file = checkpoint / engine.weights_file
    other = next((one.name for one in ENGINES.values() if (checkpoint / one.weights_file).exists()), None)
    if other and other != engine.name and not file.is_file():
        raise UserError(f"model: the weights in {checkpoint} are of the engine {other}; give engine {other}")
    if not engine.weights_file:
        raise UserError(f"model: {engine.name} has no checkpoints, so it can't answer by {checkpoint}; name another model")
    return file


class ModelPool:
    """Loads the models that are asked for; those with one base model share its weights. Leaving ends every call under way.

    ``on_text`` is told of replies of servers while they come in. The key in ``key_env`` goes to the first server only.
    Base models that are ``expected`` to be loaded at the same time share a GPU's memory equally.

    Example: ``async with ModelPool(config.engine, config.api, seed=0) as pool: await pool.sampler(model_ref("smollm2"))``
    """

    def __init__(
        self,
        config: EngineConfig,
        api: ApiConfig,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        on_text: OnText | None = None,
        *,
        expected: Iterable[ModelRef] = (),
    ) -> None:
        self.meter = Meter(budget_tokens=api.budget_tokens, budget_usd=api.budget_usd)
        share = 1 / max(1, len({ref.base for ref in expected if ref.url is None}))
        self._setup = Setup(
            engine=config, api=api, seed=seed, say=say, meter=self.meter, on_text=on_text, share=share, environ=os.environ
        )
        self._key_variables, self._first_server = keys_of(api), None
        self._models: dict[tuple[str, str | None], Model] = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> ModelPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def sampler(self, ref: ModelRef) -> Sampler:
        """A sampler of a model, to be given to ``play_all`` as it is."""
        engine = engine_of(self._setup.engine) if ref.url is None else API
        if ref.adapter is not None:
            weights_of(ref.adapter, engine)
        model = self._models.get((ref.base, ref.url))
        if model is None:
            # Not on this thread, which must hear signals.
            model = await asyncio.to_thread(open_engine, self._setup_of(ref), engine)
            self._models[ref.base, ref.url] = model
            self._open.push_async_callback(model.close)
        sampler = await model.sampler_with(ref.adapter)
        if engine.queues:
            return sampler
        return await self._open.enter_async_context(Batcher(sampler, **engine.batching(self._setup.engine)))

    def _setup_of(self, ref: ModelRef) -> Setup:
        if ref.url is None:
            self._setup.say(f"loading {ref.base}")
            return replace(self._setup, engine=replace(self._setup.engine, model=ref.base))
        key_env, environ = self._key(host(ref.url))
        engine = replace(self._setup.engine, model=ref.base, base_url=ref.url)
        return replace(self._setup, engine=engine, api=replace(self._setup.api, key_env=key_env), environ=environ)

    def _key(self, server: str) -> tuple[str, dict[str, str]]:
        """The variable that holds a server's key, and the environment it is to be looked up in. A key is its server's:
        no other is to learn it.
        """
        environ, self._first_server = dict(os.environ), self._first_server or server
        key_env = self._setup.api.key_env
        if server in self._key_variables:
            return self._key_variables[server], environ
        if server == self._first_server:
            return key_env, environ
        if environ.get(key_env):
            self._setup.say(
                f"{server} is asked without a key: the one in {key_env} is for {self._first_server} (server_keys)"
            )
        for name in (ApiConfig.key_env, key_env):
            environ.pop(name, None)
        return ApiConfig.key_env, environ

"""Who answers, by name: a model here or behind an API, or what a run made of one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from peergrad.config import ApiConfig, EngineConfig, TrainConfig, UpdateConfig
from peergrad.debate.batch import Batcher
from peergrad.debate.errors import UserError
from peergrad.debate.quote import visible
from peergrad.debate.sampler import Sampler
from peergrad.debate.types import Ask
from peergrad.engines.openai.rules import ApiRules
from peergrad.engines.shared.addresses import check_address, host, is_loopback
from peergrad.engines.shared.meter import Meter
from peergrad.engines.tinker.rules import CHECKPOINT, TinkerRules, address, key
from peergrad.runs.folder import Run
from peergrad.settings import from_file

if TYPE_CHECKING:
    from peergrad.engines.local.engine import Local
    from peergrad.engines.openai.engine import Api
    from peergrad.engines.tinker.engine import Tinker


class Batching(TypedDict):
    """How a sampler may be called: with so many asks, so often at the same moment, and each call so long."""

    max_asks: int
    max_calls: int
    deadline_s: float


def batching(engine: EngineConfig) -> Batching:
    """A model here does one thing at a time, a large one; a service does many, and no reply waits for another. A service's
    own deadline comes first, with its reasons.
    """
    if engine.engine == "tinker":
        return Batching(max_asks=1, max_calls=2000, deadline_s=engine.deadline_s + 60)
    return Batching(max_asks=100_000, max_calls=1, deadline_s=engine.deadline_s)


_VARIABLE = re.compile(r"(?!sk_)[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A base model, and the adapter on it, if any; or a model of the server at ``url``."""

    base: str
    adapter: Path | None = None
    url: str | None = None


def policy_of(engine: EngineConfig) -> ModelRef:
    """Whom the settings name."""
    return model_ref(engine.model, None if engine.engine == "tinker" else engine.base_url)


def model_ref(name: str, url: str | None = None) -> ModelRef:
    """Whom a name means: a run (its newest checkpoint), a checkpoint, an exported adapter, or a model by itself.

    ``NAME@http://…`` is a model of that server, and so is any name where ``url`` is given.
    """
    if at := re.search(r"@(?=[a-z][a-z0-9+.-]*://)", name, re.IGNORECASE):  # the first: what follows may hold a password
        name, url = name[: at.start()], name[at.end() :]
    if "://" in name:
        raise UserError("model: has an address in it; write NAME@http://host:8000/v1, or give the address as base_url")
    if url is not None:
        check_address(url, "base_url")
        return ModelRef(name, url=url)
    path = Path(name)
    if re.search(r"@(?:localhost|[^@/\s]+:\d{1,5})(?:/|$)", name) and not path.exists():
        raise UserError("model: write http:// before the server's address, as in NAME@http://host:8000/v1")
    run = _run(path)
    if run and path == run.path:
        found = run.newest()
        if not found:
            raise UserError(f"model: the run in {path} has no checkpoint yet; train it, or name its base model")
        return ModelRef(_base_of(run), found[1])
    if run and weights_of(path).name == CHECKPOINT:
        return ModelRef(_base_of(run), path)
    try:
        config = path / "adapter_config.json"
        if not config.exists():
            return ModelRef(name)
        base = json.loads(config.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"model: {path} holds no adapter that can be read ({error})") from None
    if run:
        base = _base_of(run)  # as the person named it, which may be relative to where they were; the adapter says the same
    if not isinstance(base, str) or not base:
        raise UserError(f"model: the adapter in {path} does not say what its base model is")
    return ModelRef(base, path)


def weights_of(checkpoint: Path) -> Path:
    """The file that tells one checkpoint's weights from another's: the adapter, or where the service keeps it."""
    served = checkpoint / CHECKPOINT
    return served if served.exists() else checkpoint / "adapter_model.safetensors"


def run_of(name: str) -> Run | None:
    """The run that a run's or a checkpoint's folder belongs to."""
    return _run(Path(name))


def _run(path: Path) -> Run | None:
    for folder in (path, path.parent.parent if path.parent.name == "checkpoints" else path):
        if Run(folder).exists:
            return Run(folder)
    return None


def _base_of(run: Run) -> str:
    return from_file(TrainConfig(), run.path / "config.toml").engine.model


def keys_of(api: ApiConfig) -> dict[str, str]:
    """The variables that hold keys, by server."""
    found: dict[str, str] = {}
    ApiRules(model="any", key_env=api.key_env)  # refuses what is no variable
    for given in api.server_keys:
        where, equals, name = given.rpartition("=")
        if not equals or not where or not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", where) or not _VARIABLE.fullmatch(name):
            raise UserError(
                "server_keys: is not HOST=VARIABLE; give the server's name, and that of the variable with its key"
            )
        found[where] = name
    return found


class ModelPool:
    """Loads the models that are asked for; those with one base model share its weights. Leaving ends every call under way.

    ``hear`` is told of what servers say while they say it. The key in ``key_env`` goes to the first server asked for only.
    Base models that are ``expected`` to be here at the same time share a GPU's memory equally.

    Example: ``async with ModelPool(config.engine, config.api, seed=0) as pool: await pool.sampler(model_ref("smollm2"))``
    """

    def __init__(
        self,
        config: EngineConfig,
        api: ApiConfig,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        hear: Callable[[Ask, str | None], None] | None = None,
        *,
        expected: Iterable[ModelRef] = (),
    ) -> None:
        self._models = len({who.base for who in expected if who.url is None})
        self._config, self._api, self._seed, self._say, self._hear = config, api, seed, say, hear
        self._keys, self._first = keys_of(api), None
        self.meter = Meter(budget_tokens=api.budget_tokens, budget_usd=api.budget_usd)
        self._engines: dict[str, Local | Tinker] = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> ModelPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def sampler(self, who: ModelRef) -> Sampler:
        """A sampler for a model, to be given to ``play_all`` as it is."""
        if who.url is not None:
            return await self._open.enter_async_context(self._served(who.base, who.url))
        if who.adapter is not None and (weights_of(who.adapter).name == CHECKPOINT) != (self._config.engine == "tinker"):
            right = "tinker" if self._config.engine == "local" else "local"
            raise UserError(f"model: the weights in {who.adapter} are of the engine {right}; give engine {right}")
        engine = self._engines.get(who.base)
        if engine is None:
            self._say(f"loading {who.base}")
            # Not on this thread, which must hear signals.
            engine = self._engines[who.base] = await asyncio.to_thread(self._load, who.base)
            self._open.push_async_callback(engine.close)
        batcher = Batcher(await engine.adapted(who.adapter), **batching(self._config))
        return await self._open.enter_async_context(batcher)

    def _served(self, model: str, url: str) -> Api:
        try:
            from peergrad.engines.openai.engine import Api
        except ImportError as error:
            raise UserError(f"base_url: asking a server needs {error.name}; pip install 'peergrad[openai]'") from None
        api = self._api
        key_env, environ = self._key(host(url))
        rules = ApiRules(
            model=model,
            base_url=url,
            key_env=key_env,
            max_concurrent=api.max_concurrent,
            timeout_s=api.timeout_s,
            deadline_s=self._config.deadline_s,
            retries=api.retries,
            stops=api.stops,
            send_temperature=api.send_temperature,
            price_in=api.price_in,
            price_out=api.price_out,
            seed=self._seed,
        )
        return Api(rules, meter=self.meter, hear=self._hear, environ=environ)

    def _key(self, server: str) -> tuple[str, dict[str, str]]:
        """The variable that holds a server's key, and the environment it is to be looked up in. A key is its server's:
        no other is to learn it.
        """
        environ, self._first = dict(os.environ), self._first or server
        if server in self._keys:
            return self._keys[server], environ
        if server == self._first:
            return self._api.key_env, environ
        if environ.get(self._api.key_env):
            self._say(f"{server} is asked without a key: the one in {self._api.key_env} is for {self._first} (server_keys)")
        for name in ("OPENAI_API_KEY", self._api.key_env):
            environ.pop(name, None)
        return "OPENAI_API_KEY", environ

    def _load(self, model: str) -> Local | Tinker:
        if self._config.engine == "tinker":
            return tinker_engine(replace(self._config, model=model), UpdateConfig(), self._seed, self._say)
        try:
            from peergrad.engines.local.engine import Local
        except ImportError as error:
            raise UserError(f"model: the local engine needs {error.name}; pip install 'peergrad[local]'") from None
        config = self._config
        return Local.load_model(
            model,
            device=config.device,
            dtype=config.dtype,
            threads=config.threads,
            seed=self._seed,
            kv_gb=config.kv_gb,
            max_rows=config.max_rows,
            train_tokens=0,
            share=1 / max(1, self._models),
            say=self._say,
        )


def address_of(trained: EngineConfig, given: str | None) -> str | None:
    """Where a run's service is, by the run; ``given`` goes before it. A run folder may be somebody else's, and the key goes
    where it says: an address nobody here has named is not taken from it.
    """
    url = trained.base_url
    if given or trained.engine != "tinker" or url is None:
        return given or url
    if not is_loopback(urlsplit(url).hostname or "") and url.rstrip("/") != address(None):
        raise UserError(f"base_url: the run was trained at {visible(url)}; give it (--base-url) if your key may go there")
    return url


def check_service(engine: EngineConfig, update: UpdateConfig) -> None:
    """Refuse what no service can do, before one is asked."""
    if update.alpha != UpdateConfig.alpha:
        raise UserError(f"alpha: {update.alpha} is not possible with engine tinker; services have {UpdateConfig.alpha:g}")
    key(address(engine.base_url))


def tinker_engine(engine: EngineConfig, update: UpdateConfig, seed: int, say: Callable[[str], None]) -> Tinker:
    """A policy on a service."""
    check_service(engine, update)
    try:
        from peergrad.engines.tinker.engine import Tinker
    except ImportError as error:
        raise UserError(f"engine: tinker needs {error.name}; pip install 'peergrad[tinker]'") from None
    rules = TinkerRules(
        model=engine.model,
        base_url=engine.base_url,
        rank=update.rank,
        seed=seed,
        max_grad_norm=update.max_grad_norm,
        deadline_s=engine.deadline_s,
    )
    return Tinker(rules, say)

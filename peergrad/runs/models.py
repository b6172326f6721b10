"""Models by name (by itself, behind an API, or trained by a run), and the pool that loads each once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from peergrad.config import ApiConfig, EngineConfig, TrainConfig, flat, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.fields import read_json
from peergrad.debate.quote import visible
from peergrad.debate.sampler import Batcher, Sampler
from peergrad.debate.settings import Resumable, is_import_path, markers
from peergrad.engines.base import Engine, Meter, Model, OnText, Setup
from peergrad.engines.registry import API, ENGINES, LOCAL, builtin_engine, engine_of, open_engine
from peergrad.engines.shared.servers import check_address, host, is_loopback
from peergrad.learn.trainer import Trainer
from peergrad.runs.folder import Progress, Run

_RUN_AT_STEP = re.compile(r"(.+)@(\d{1,9})")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A base model, and the adapter on it, if any; or a model of the API at ``url``."""

    base: str
    adapter: Path | None = None
    url: str | None = None


def policy_of(engine: EngineConfig) -> ModelRef:
    """The model that a person's settings name. Where the engine has no address, base_url is that of an API."""
    return model_ref(engine.model, engine.base_url if engine_of(engine).address is None else None)


def model_ref(name: str, url: str | None = None) -> ModelRef:
    """The model of a name: of a run (RUN, its newest checkpoint, or RUN@STEP), a checkpoint, an exported adapter, or a model
    by itself.

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
    if run := run_of(name):
        newest = run.newest() if path == run.path else None
        if path == run.path and not newest:
            raise UserError(f"model: the run in {path} has no checkpoint yet; train it, or name its base model")
        checkpoint = newest[1] if newest else path
        if not checkpoint.is_dir():
            if not (at := _RUN_AT_STEP.fullmatch(name)):
                return ModelRef(name)
            checkpoint = run.folder(Progress(int(at[2])))
        return ModelRef(base_of(run), checkpoint)
    try:
        if not (config := path / "adapter_config.json").exists():
            return ModelRef(name)
    except (OSError, ValueError):  # no name of a file
        return ModelRef(name)
    base = read_json(config).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(f"model: the adapter in {path} does not say what its base model is")
    return ModelRef(base, path)


def run_of(name: str) -> Run | None:
    """The run that is meant by its folder, a checkpoint's folder, or RUN@STEP."""
    path, at = Path(name), _RUN_AT_STEP.fullmatch(name)
    for folder in (path, path.parent.parent if path.parent.name == "checkpoints" else path, Path(at[1]) if at else path):
        if Run(folder).exists:
            return Run.open(folder)
    return None


def base_of(run: Run) -> str:
    """A run's base model, as the person named it, which may be relative to where they were."""
    base = run.facts.get("base")  # a run that starts with another's adapter names that as its model
    return base if isinstance(base, str) else from_folder(TrainConfig(), run.path).engine.model


def settings_of_run(
    trained: TrainConfig, sections: Sequence[str], base_url: str | None, engine: str | None
) -> dict[str, Any]:
    """What a run decides of work with its model, by name: in these sections, what decides what is said. Where and how fast
    it is said (``RESUMABLE``) is this machine's. ``base_url`` and ``engine`` are a person's, and go before the run's.

    A run folder may be somebody else's: no code that it names is imported, and no key goes to an address that it names.
    """
    if engine is None and is_import_path(trained.engine.engine):
        name = visible(trained.engine.engine)
        raise UserError(f"engine: the run was trained by {name}, which is no engine of ours; give it (--engine) to run that")
    name, theirs = engine or trained.engine.engine, trained.engine.base_url
    known = builtin_engine(name)
    if base_url is None and theirs is not None and known and known.address:
        if not is_loopback(urlsplit(theirs).hostname or "") and theirs.rstrip("/") != known.address():
            raise UserError(
                f"base_url: the run was trained at {visible(theirs)}; give it (--base-url) if your key may go there"
            )
        base_url = theirs
    here = markers(trained, Resumable)
    settings = {name: value for section in sections for name, value in flat(getattr(trained, section)).items()}
    return {n: value for n, value in settings.items() if n not in here} | {"engine": name, "base_url": base_url}


def keys_of(api: ApiConfig) -> dict[str, str]:
    """The variables that hold keys, by server."""
    variables: dict[str, str] = {}
    for entry in api.server_keys:
        match = re.fullmatch(r"([A-Za-z0-9.:\[\]-]+)=((?!sk_)[A-Za-z_][A-Za-z0-9_]*)", entry)
        if not match:
            raise UserError(
                "server_keys: is not HOST=VARIABLE; give the server's name, and that of the variable with its key"
            )
        variables[match[1]] = match[2]
    return variables


def weights_of(ref: ModelRef, engine: Engine) -> Path | None:
    """The file that tells an adapter's weights from others. Adapters of another engine are refused, as are base models that
    only the adapter's folder names, if they would have to be fetched.
    """
    if ref.adapter is None:
        return None
    check_base(ref, engine)
    checkpoint, file = ref.adapter, ref.adapter / engine.weights_file
    other = next((one.name for one in ENGINES.values() if (checkpoint / one.weights_file).exists()), None)
    if other and other != engine.name and not file.is_file():
        raise UserError(f"model: the weights in {checkpoint} are of the engine {other}; give engine {other}")
    if not engine.weights_file:
        raise UserError(f"model: {engine.name} has no checkpoints, so it can't answer by {checkpoint}; name another model")
    return file


def weights_sha256(ref: ModelRef, engine: Engine) -> str | None:
    """A hash of a model's adapter, which training may change; base models are taken to stay what they are."""
    path = weights_of(ref, engine)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path else None
    except OSError as error:
        raise UserError(f"model: {path} can't be read ({error.strerror})") from None


def check_base(ref: ModelRef, engine: Engine) -> None:
    """Refuse to fetch a model because a folder names it, which may be somebody else's."""
    from peergrad.engines.local.fetch.models import must_be_fetched

    if engine in ENGINES.values() and must_be_fetched(ref.base):
        base = visible(ref.base)
        why = f"{ref.adapter} belongs to {base}, which is not on this machine, and is not fetched because a folder names it"
        raise UserError(f"model: {why}; if you trust it: peergrad models --get {base}")


def check_name(ref: ModelRef, engine: Engine) -> None:
    """Refuse a name that can be no model's, before anything is loaded."""
    from peergrad.engines.local.fetch.models import local_folder

    if ref.url is None and engine is LOCAL:
        local_folder(ref.base)


def models_by_seat(settings: Sequence[str], agents: int, name: str = "seat") -> dict[int, str]:
    """The models that ``SEAT=MODEL`` settings name, by seat; ``name`` is that of the setting."""
    models: dict[int, str] = {}
    for setting in settings:
        number, equals, model = setting.partition("=")
        if not equals or not number.strip().isdecimal() or len(number) > 6 or not model.strip():
            raise UserError(
                f"{name}: is not SEAT=MODEL; give the seat's number, from 0, and a model, such as 0=gpt-x@https://…/v1"
            )
        seat = int(number)
        if seat >= agents:
            raise UserError(f"{name} {seat}: there is none; {agents} agents have the seats 0 to {agents - 1}")
        if seat in models:
            raise UserError(f"{name} {seat}: is given twice; give it one model")
        models[seat] = model.strip()
    return models


def memory_share(expected: Iterable[ModelRef]) -> float:
    """The part of a GPU's memory that each of the base models gets that are to be loaded at the same time."""
    return 1 / max(1, len({ref.base for ref in expected if ref.url is None}))


async def load_policy(
    config: TrainConfig,
    start: ModelRef,
    load: Callable[[Setup], Trainer],
    say: Callable[[str], None],
    checkpoint: Path | None = None,
    expected: Iterable[ModelRef] = (),
) -> Trainer:
    """The model a run trains: with the adapter that it starts with, if any, or as it was saved in a checkpoint. Models that
    are ``expected`` beside it share its memory.
    """
    say(f"loading {start.base}")
    # Of a model behind an API the registry says that it can't learn.
    engine = config.engine if start.url else replace(config.engine, model=start.base)
    share = memory_share(expected)
    setup = Setup(engine=engine, update=config.update, seed=config.keep.seed, say=say, share=share)
    trainer = await asyncio.to_thread(load, setup)  # not on this thread, which must hear signals
    try:
        if checkpoint:
            await trainer.load(checkpoint)
        elif start.adapter:
            await trainer.load(start.adapter, optimizer=False)
    except BaseException:
        await trainer.close(failed=True)
        raise
    return trainer


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
        share = memory_share(expected)
        self._setup = Setup(engine=config, api=api, seed=seed, say=say, meter=self.meter, on_text=on_text, share=share)
        self._key_variables, self._first_server = keys_of(api), None
        self._models: dict[tuple[str, str | None], Model] = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> ModelPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def sampler(self, ref: ModelRef) -> Sampler:
        """A sampler of a model, to be given to ``play_all`` as it is."""
        sampler, engine = await self.unbatched(ref)
        if engine.queues:
            return sampler
        return await self._open.enter_async_context(Batcher(sampler, **engine.batching(self._setup.engine)))

    async def unbatched(self, ref: ModelRef) -> tuple[Sampler, Engine]:
        """A sampler for a ``Batcher`` of the caller's, and its engine."""
        engine = engine_of(self._setup.engine) if ref.url is None else API
        weights_of(ref, engine)
        model = self._models.get((ref.base, ref.url))
        if model is None:
            # Not on this thread, which must hear signals.
            model = await asyncio.to_thread(open_engine, self._setup_of(ref), engine)
            self._models[ref.base, ref.url] = model
            self._open.push_async_callback(model.close)
        return await model.sampler_with(ref.adapter), engine

    def _setup_of(self, ref: ModelRef) -> Setup:
        setup, engine = self._setup, replace(self._setup.engine, model=ref.base)
        if ref.url is None:
            setup.say(f"loading {ref.base}")
            return replace(setup, engine=engine)
        server, key_env, environ = host(ref.url), setup.api.key_env, setup.environ
        self._first_server = self._first_server or server
        if server in self._key_variables:
            key_env = self._key_variables[server]
        elif server != self._first_server:  # a key is its server's: no other is to learn it
            if environ.get(key_env):
                setup.say(f"{server} is asked without a key: the one in {key_env} is for {self._first_server} (server_keys)")
            key_env, environ = ApiConfig.key_env, {}
        engine, api = replace(engine, base_url=ref.url), replace(setup.api, key_env=key_env)
        return replace(setup, engine=engine, api=api, environ=environ)

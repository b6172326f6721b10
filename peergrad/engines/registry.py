"""The engines there are, by name or import path. What an engine needs is imported when it is opened, never before."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import nearest
from peergrad.debate.settings import imported, install_hint, is_import_path, where_it_failed
from peergrad.debate.types import Tokens
from peergrad.engines.base import Engine, EngineConfig, Model, Setup, StepStats, Trainer, UpdateConfig, first_line
from peergrad.engines.shared.servers import check_tinker, tinker_address

if TYPE_CHECKING:
    from peergrad.engines.local.engine import Local
    from peergrad.engines.openai.engine import Api
    from peergrad.engines.tinker.engine import Tinker

M = TypeVar("M")

_GIVES = {"step": StepStats, "tokens": Tokens, "context": int, "logprobs": list}  # what our own code takes as it is


def _local(setup: Setup) -> Local:
    with _needs("model: the local engine", "local"):
        from peergrad.engines.local.engine import Local
        from peergrad.engines.local.model.lora import LoraRules
    config, update = setup.engine, setup.update or UpdateConfig()
    return Local.load_model(
        config.model,
        device=config.device,
        dtype=config.dtype,
        threads=config.threads,
        lora=LoraRules(rank=update.rank, alpha=update.alpha),
        seed=setup.seed,
        kv_gb=config.kv_gb,
        max_rows=config.max_rows,
        train_tokens=update.train_tokens if setup.update else 0,
        max_grad_norm=update.max_grad_norm,
        share=setup.share,
        say=setup.say,
    )


def _api(setup: Setup) -> Api:
    with _needs("base_url: asking a server", "openai"):
        from peergrad.engines.openai.engine import Api
    return Api(setup.engine, setup.api, seed=setup.seed, meter=setup.meter, on_text=setup.on_text, environ=setup.environ)


def _tinker(setup: Setup) -> Tinker:
    with _needs("engine: tinker", "tinker"):
        from peergrad.engines.local.fetch.models import tokenizer_of
        from peergrad.engines.tinker.engine import Tinker
    return Tinker(setup.engine, setup.update or UpdateConfig(), seed=setup.seed, say=setup.say, tokenizer_of=tokenizer_of)


@contextlib.contextmanager
def _needs(what: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} needs {error.name}; {install_hint(extra)}") from None


def _check_local(config: EngineConfig, _: UpdateConfig) -> None:
    """Refuse a device that is not there. Asking for it takes torch, which a CPU does not need yet."""
    if config.device in (None, "cpu"):
        return
    with _needs("device: the local engine", "local"):
        import torch
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        why = first_line(error)
        raise UserError(f"device: {config.device!r} can't be used here ({why}); give cpu, or leave it out") from None


LOCAL = Engine(
    name="local",
    check=_check_local,
    open=_local,
    open_trainer=_local,
    scores_tokens=True,
    default_model="smollm2",
    weights_file="adapter_model.safetensors",
    max_asks=100_000,  # a model here does one thing at a time, a large one
    max_calls=1,
)
TINKER = Engine(
    name="tinker",
    open=_tinker,
    open_trainer=_tinker,
    scores_tokens=True,
    check=check_tinker,
    address=tinker_address,
    temperature=1.0,  # the service evaluates a policy at no other (docs/design/tinker-engine.md)
    weights_file="tinker.json",
    max_asks=1,  # a service does many things at a time, and no reply waits for another
    max_calls=2000,
    grace_s=60.0,
)
API = Engine(name="openai", open=_api, queues=True)
"""A model of a server that speaks OpenAI's protocol. It is chosen by an address rather than by a name."""

ENGINES = {engine.name: engine for engine in (LOCAL, TINKER)}


def builtin_engine(name: str) -> Engine | None:
    """The engine of this name, or None for an import path: settings that a folder holds must not import what they name."""
    if is_import_path(name):
        return None
    if name not in ENGINES:
        raise UserError(f"engine: {name!r} is not known; {nearest(name, tuple(ENGINES))}")
    return ENGINES[name]


def engine_of(config: EngineConfig) -> Engine:
    """The engine that a person's settings name."""
    engine = builtin_engine(config.engine) or imported(config.engine, "engine")
    if not isinstance(engine, Engine):
        raise UserError(f"engine: {config.engine!r} is {type(engine).__name__}, not a peergrad.engines.base.Engine")
    return engine


@contextlib.contextmanager
def own_code(engine: Engine) -> Iterator[None]:
    """Turns what goes wrong in the code of somebody's own engine into a sentence."""
    try:
        yield
    except (UserError, EngineError):
        raise
    except Exception as error:
        if engine in (LOCAL, TINKER, API):
            raise
        raise UserError(f"engine: {engine.name}: failed ({where_it_failed(error)})") from error


def open_engine(setup: Setup, engine: Engine | None = None) -> Model:
    """A model that answers, of the engine that the settings name unless another is given."""
    engine = engine or engine_of(setup.engine)
    return _opened(engine, engine.open, setup, Model)


def open_trainer(setup: Setup) -> Trainer:
    """A model that learns."""
    engine = engine_of(setup.engine)
    if engine.address is None and setup.engine.base_url is not None:
        raise UserError("base_url: a model behind an API can debate, but not learn; for a Tinker service give engine tinker")
    if engine.open_trainer is None:
        raise UserError(f"engine: {engine.name} can debate, but not learn; give one that can, such as {LOCAL.name}")
    return _opened(engine, engine.open_trainer, setup, Trainer)


def _opened(engine: Engine, opener: Callable[[Setup], M], setup: Setup, seam: type[M]) -> M:
    with own_code(engine):
        model = opener(setup)
    if not isinstance(model, seam):
        kind = type(model).__name__
        raise UserError(f"engine: {engine.name} opened a {kind}, which is no {seam.__name__} (peergrad.engines.base)")
    return model if engine in (LOCAL, TINKER, API) else cast("M", _Own(engine, model))


class _Own:
    """A model or trainer of somebody's own engine: what goes wrong in it, whenever it is used, is a sentence."""

    def __init__(self, engine: Engine, model: object) -> None:
        self._engine, self._model = engine, model

    def __getattr__(self, name: str) -> Any:
        with own_code(self._engine):
            value = getattr(self._model, name)
        if not callable(value):
            return self._checked(name, value)

        def call(*args: Any, **more: Any) -> Any:
            with own_code(self._engine):
                result = value(*args, **more)
            return self._awaited(name, result) if inspect.isawaitable(result) else self._checked(name, result)

        return call

    async def _awaited(self, name: str, result: Awaitable[Any]) -> Any:
        with own_code(self._engine):
            return self._checked(name, await result)

    def _checked(self, name: str, value: Any) -> Any:
        if not isinstance(value, kind := _GIVES.get(name, object)):
            what = type(value).__name__
            raise UserError(f"engine: {self._engine.name}: {name} must give {kind.__name__}, but gave {what}")
        return value

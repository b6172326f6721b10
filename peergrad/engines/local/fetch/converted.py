"""GGUF files converted to folders, once: the cache that keeps them, whole and as they were made."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.settings import install_hint
from peergrad.engines.local.fetch.gguf import CONVERTER, convert

Say = Callable[[str], None]

MANIFEST = "peergrad.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache() -> Path:
    """Where converted models are kept: ``$PEERGRAD_CACHE``, or ``~/.cache/peergrad/models``."""
    return Path(os.environ.get("PEERGRAD_CACHE") or "~/.cache/peergrad/models").expanduser().absolute()


def digest(path: Path, say: Say) -> str:
    """A file's sha256, stored until the file changes: hashing gigabytes at every start is slow."""
    if known := _known(path):
        return known
    if path.stat().st_size > 10**9:
        say(f"Reading {path.name} once to know it again.")
    sha256 = sha256_of(path)
    with suppress(OSError):  # without the note the file is hashed again, and so it is if the note is torn
        note = _note(path)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(_identity(path) | {"sha256": sha256}), "utf-8")
    return sha256


def _known(path: Path) -> str | None:
    """The sha256 that was stored of a file as it is."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored, identity = json.loads(_note(path).read_text("utf-8")), _identity(path)
        if {key: stored[key] for key in identity} == identity:
            return str(stored["sha256"])
    return None


def _note(path: Path) -> Path:
    return cache() / "seen" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"


def _identity(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"path": str(path), "stat": [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]}


def already_converted(path: Path) -> Path | None:
    """The folder of a GGUF file that was converted before."""
    sha256 = _known(path)
    folder = _folder(sha256) if sha256 else None
    return folder if folder and problem(folder) is None else None


def _folder(sha256: str) -> Path:
    return cache() / f"{sha256[:16]}-v{CONVERTER}"


def converted(sha256: str, name: str, source: Callable[[Path], Path], say: Say) -> Path:
    """The converted folder of the GGUF with this hash. ``source`` returns the file, if it has to be converted.

    The folder is written elsewhere and renamed when all of it is on the disk, so it is never there in part.
    """
    folder = _folder(sha256)
    if problem(folder) is None:
        return folder
    if missing := [module for module in ("torch", "gguf", "transformers") if find_spec(module) is None]:
        raise UserError(
            f"model: {name} must be converted once, which needs {', '.join(missing)} ({install_hint('local')}); "
            "of a hub id or a folder a service's client reads the tokenizer alone"
        )
    with _writing(cache()), _lock(folder.name, say):
        if problem(folder) is None:  # another process converted it while we waited
            return folder
        if folder.exists():
            say(f"The cached {name} is broken ({problem(folder)}); making it again.")
        for leftover in cache().glob(f".{folder.name}-*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix=f".{folder.name}-") as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            new.mkdir()
            path = source(Path(temporary))
            say(f"Converting {name}, once.")
            convert(path, new, name)
            files = sorted(new.iterdir())
            manifest = {"name": name, "sha256": sha256, "converter": CONVERTER}
            manifest["files"] = {file.name: file.stat().st_size for file in files}
            manifest["checksums"] = {file.name: sha256_of(file) for file in files}
            (new / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
            os.sync()  # else a crash could leave the folder with files that are empty
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            problem(folder)  # notes the checksums, so that the next start need not read everything
    return folder


def manifest_of(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict):
            return manifest
    return {}


def problem(folder: Path) -> str | None:
    """What is wrong with a converted folder; ``None``: nothing."""
    manifest = manifest_of(folder)
    if not manifest:
        return "its manifest is missing"
    if manifest.get("converter") != CONVERTER:
        return "another version of peergrad made it"
    checksums = manifest.get("checksums")
    if not isinstance(checksums, dict):
        return "its manifest has no checksums"
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if digest(path, lambda _: None) != checksums.get(name):
            return f"{name} is not what was converted"
    return None


def _lock(name: str, say: Say) -> AbstractContextManager[Any]:
    """Let one process at a time convert a model. The lock of a process that dies is released."""
    from filelock import FileLock, Timeout

    lock = FileLock(cache() / f".{name}.lock")
    try:
        return lock.acquire(timeout=0.2)
    except Timeout:
        say("Another process is getting this model ready; waiting for it.")
        return lock.acquire()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """The cache, ready to be written to; a disk that is full or can't be written is a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = "has no room left" if error.errno in FULL else "can't be written"
        hint = "make room, or set PEERGRAD_CACHE to a folder elsewhere"
        raise EngineError(f"{folder}: the model cache {what} ({error.strerror or error}); {hint}") from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError


def write(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one: temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            _sync(file.fileno())
        _rename(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from None


def append(path: Path, line: bytes) -> None:
    """Add a line to a file; killed in between, the last line may be torn, which readers must expect."""
    try:
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            _sync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON. Numbers that are not finite are refused: JSON has no word for them."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True, indent=indent).encode()


def publish(folder: Path, final: Path) -> None:
    """Give a finished folder its final name, its files safely on disk first."""
    try:
        for file in folder.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                _sync(descriptor)
            finally:
                os.close(descriptor)
        _sync_folder(folder)
        old = final.with_name(f".{final.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            os.replace(final, old)
        _rename(folder, final)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise cannot_write(final, error) from None


def remove(folder: Path) -> None:
    """Remove a folder: first its name, so that nobody takes what is left of it for whole."""
    doomed = folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    except OSError as error:
        raise cannot_write(folder, error) from None


def unlink(path: Path) -> None:
    """Remove a file."""
    try:
        path.unlink()
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> EngineError:
    """What to tell a person whose disk refused."""
    return EngineError(
        f"{path}: can't be written ({error.strerror}). Nothing before it is lost: "
        "make room or mend the folder's permissions, and run the same command again"
    )


def _rename(source: Path, target: Path) -> None:
    os.replace(source, target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)

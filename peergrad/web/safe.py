"""Reading folders that somebody sent: plain files only, no links, nothing that blocks, bounded sizes."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from peergrad.debate.errors import UserError

MOST_BYTES = 64 * 2**20  # of a file that is read whole: a log of metrics
MOST_ENTRIES = 100_000  # of a folder


class Entry(NamedTuple):
    """A plain file or folder in a folder."""

    name: str
    size: int
    mtime_ns: int
    inode: int


@contextlib.contextmanager
def opened(root: Path, *names: str) -> Iterator[IO[bytes]]:
    """A plain file below a folder, or ``root`` itself; raises ``OSError`` for anything else. No name is followed as a link
    but the root's, which a person gave.
    """
    folder = _walk(root, names[:-1]) if names else None
    try:
        # Without O_NONBLOCK a pipe would block until somebody writes to it.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if names else 0)
        descriptor = os.open(names[-1] if names else root, flags, dir_fd=folder)
    finally:
        if folder is not None:
            os.close(folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "is no plain file")
        yield file


def read(root: Path, *names: str, most: int = MOST_BYTES) -> bytes | None:
    """What a plain file holds; ``None`` if there is none, or it is larger than it may be."""
    with contextlib.suppress(OSError, ValueError), opened(root, *names) as file:
        content = file.read(most + 1)
        return content if len(content) <= most else None
    return None


def listing(root: Path, *names: str, folders: bool = False) -> list[Entry]:
    """The plain files in a folder, or the folders in it, by name; nothing if it is no folder."""
    wanted = stat.S_ISDIR if folders else stat.S_ISREG
    found: list[Entry] = []
    with contextlib.suppress(OSError, ValueError):
        folder = _walk(root, names)
        try:
            with os.scandir(folder) as entries:
                for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False):
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        if wanted(about.st_mode):
                            found.append(Entry(entry.name, about.st_size, about.st_mtime_ns, about.st_ino))
        finally:
            os.close(folder)
    return sorted(found)


def entry_of(root: Path, *names: str) -> Entry | None:
    """A plain file's entry, if there is one."""
    with contextlib.suppress(OSError, ValueError), opened(root, *names) as file:
        about = os.fstat(file.fileno())
        return Entry(names[-1] if names else root.name, about.st_size, about.st_mtime_ns, about.st_ino)
    return None


def read_object(root: Path, *names: str) -> dict[str, Any] | None:
    """The JSON object in a plain file; ``None`` if there is none."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(read(root, *names, most=2**22) or b"null")
        return value if isinstance(value, dict) else None
    return None


def check_plain(root: Path, *names: str) -> None:
    """Refuse a file or folder that is a link, or not what it should be, before somebody else's code reads it by its path."""
    for name in names:
        try:
            mode = os.lstat(root / name).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISDIR(mode):
            check_plain(root / name, *[entry.name for entry in os.scandir(root / name)][:1000])
        elif not stat.S_ISREG(mode) or os.lstat(root / name).st_size > 2**22:
            raise UserError(f"{root / name}: is a link, no plain file, or too large, and is not read")


def _walk(root: Path, names: tuple[str, ...]) -> int:
    """A folder below the root, opened step by step, so that no link is followed on the way."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder

"""What training, evaluations and debates share on disk: files that are whole or not there, logs, folders to resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from peergrad.config import from_folder
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import read_json
from peergrad.debate.personas import personas_toml
from peergrad.debate.settings import Resumable, changed, flat, markers, to_toml
from peergrad.debate.transcript import load
from peergrad.debate.types import Debate

Warn = Callable[[str], None]

# Facts that decide what comes out, besides the settings, and their names for a person.
_FACTS = {
    "questions_sha256": "other questions",
    "prompts_sha256": "other prompts",
    "lessons_sha256": "other lessons (warm_from)",
    "adapter_sha256": "other weights",
    "opponent_sha256": "another opponent",
    "judge_sha256": "another judge",
    "server": "another server",
}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that refuses to write is a sentence for the person whose disk it is."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"{path}: can't be written ({error.strerror}). Nothing before it is lost: "
            "make room or mend the folder's permissions, and run the same command again"
        ) from None


def write(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one: temporary file, fsync, rename."""
    with writing(path), _opened_folder(path.parent) as folder:
        part = _part_name()
        with _opened(part, os.O_WRONLY | os.O_EXCL, "wb", folder) as file:
            _write_synced(file, content)
        os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


def append(path: Path, line: bytes, *, sync: bool = True) -> None:
    """Add a line to a file; killed in between, the last line may be torn, which readers must expect. A torn line stays a
    line of its own: what is added does not become part of it.
    """
    with writing(path), _opened(path, os.O_RDWR | os.O_APPEND, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        _write_synced(file, line, sync=sync)


def _part_name() -> str:
    """The name of something unfinished. Nobody can guess it, and so put something else in its place."""
    return f".{secrets.token_hex(8)}.part"


def _opened(path: Path | str, flags: int, mode: str, folder: int | None = None) -> IO[bytes]:
    """A file to write to, made if it is not there. A link is refused: a folder that somebody sent may have it anywhere."""
    return os.fdopen(os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=folder), mode)


@contextlib.contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_synced(file: IO[bytes], content: bytes, *, sync: bool = True) -> None:
    file.write(content)
    file.flush()
    if sync:
        os.fsync(file.fileno())


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON. Numbers that are not finite are refused: JSON has no word for them."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True, indent=indent).encode()


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, which is published when the block ends, and is gone if that raises."""
    part = final.with_name(_part_name())
    with writing(final):
        part.mkdir(parents=True)
        try:
            yield part
            publish(part, final)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def publish(folder: Path, final: Path) -> None:
    """Give a finished folder its final name, its files safely on disk first."""
    with writing(final):
        for entry in (*folder.iterdir(), folder):
            _sync(entry)
        if final.exists():
            remove(final)
        os.replace(folder, final)
        _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder: first its name, so that nobody takes what is left of it for whole."""
    part = folder.with_name(_part_name())
    with writing(folder):
        os.replace(folder, part)
        shutil.rmtree(part, ignore_errors=True)


def unlink(path: Path) -> None:
    """Remove a file."""
    with writing(path):
        path.unlink()


# Reading what may have been cut off, or sent by somebody


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds anything but plain files and folders. One that somebody sent may have a link anywhere, to a
    file of the person's; and a pipe is never read to its end.
    """
    folders = [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:  # gone meanwhile, or not to be read
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise UserError(
                        f"{entry.path}: is a link or no plain file, and is not followed; put there what it stands for"
                    )


def read_records(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a log, one a line; lines that were torn are left out."""
    records: list[dict[str, Any]] = []
    for line in _lines(path):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                records.append(record)
    return records


def read_debates(path: Path, warn: Warn, *, strict: bool = False) -> dict[str, Debate]:
    """The debates of a log by id. A last line that was torn is cut off; other damaged lines are left out, or refused."""
    debates: dict[str, Debate] = {}
    lines = _lines(path)
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                debate = load(line, f"{path}, line {number}")
                debates[debate.id] = debate
        except UserError as error:
            if strict and number < len(lines):
                raise
            warn(f"{error}; it is played again")
            if number == len(lines):  # torn when the process was killed: what is added must not become part of it
                os.truncate(path, sum(len(line) + 1 for line in lines[:-1]))
                return debates
    if lines and lines[-1]:
        append(path, b"\n")
    return debates


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None


# Working on it, one process at a time


@contextlib.contextmanager
def locked(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock on a file. It goes with the process, however that ends. ``otherwise`` is said if another has it."""
    try:
        file = _opened(path, os.O_WRONLY | os.O_APPEND, "ab")
    except OSError as error:
        raise UserError(f"out: {path} can't be written ({error.strerror}); give another place") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"out: {otherwise}") from None
        yield


def check_same_settings(what: str, before: Any, now: Mapping[str, Any]) -> None:
    """Refuse to resume work that was begun with other settings, naming the first that differs."""
    for name, value in now.items():
        old = before.get(name) if isinstance(before, dict) else None
        if isinstance(value, dict) and isinstance(old, dict):
            check_same_settings(what, old, value)
        elif old != value:
            raise UserError(f"{name}: {what} has {old}, not {value}; give the same, or another out")


class WorkFolder:
    """A folder that one process at a time works in and that any later one may resume.

    ``config.toml`` holds the settings, and a JSON file of facts makes the folder what it is. The facts are written first and
    the subfolders made last: without these, work has not begun.
    """

    noun, facts_name, subfolders = "work", "work.json", ("debates",)

    def __init__(self, path: Path | str, warn: Warn = lambda _: None) -> None:
        self.path, self.warn = Path(path), warn

    @property
    def exists(self) -> bool:
        try:
            return (self.path / self.facts_name).exists()
        except (OSError, ValueError):  # a name too long, or none at all
            return False

    @property
    def resumable(self) -> bool:
        """Whether there is work to resume: its settings are then fixed."""
        return self.exists and (self.path / self.subfolders[-1]).exists()

    @property
    def facts(self) -> dict[str, Any]:
        return read_json(self.path / self.facts_name)

    def check(self, config: Any, facts: Mapping[str, Any], fixed: Collection[str] = ()) -> None:
        """Refuse a folder that holds other work than these settings and facts make, or something else. Nothing is written.

        Settings that are marked ``RESUMABLE`` may change, except those named as ``fixed``.
        """
        refuse_links(self.path)
        try:
            held = [] if self.exists or not self.path.exists() else sorted(os.listdir(self.path))
        except OSError as error:
            raise UserError(f"out: {self.path} can't be used ({error.strerror}); give a folder you may write to") from None
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"out: {self.path} can't be written; give a folder you may write to")
        if other := [name for name in held if name != "lock" and not name.endswith(".part")]:
            raise UserError(f"out: {self.path} holds something else ({other[0]}); give a new folder")
        if not self.resumable:
            return
        what, before = f"the {self.noun} in {self.path}", self.facts
        for name, word in _FACTS.items():
            if name in facts and before.get(name) != facts[name]:
                raise UserError(f"out: {what} has {word}; give another folder (out)")
        may_change = markers(config, Resumable).keys() - set(fixed)
        now = {name: value for name, value in flat(config).items() if name not in may_change}
        check_same_settings(what, flat(from_folder(type(config)(), self.path)), now)

    @contextlib.contextmanager
    def opened(self, config: Any, facts: Mapping[str, Any], fixed: Collection[str] = ()) -> Iterator[None]:
        """Lock the folder for work with these settings, after a ``check``."""
        self.check(config, facts, fixed)
        with self.locked():
            self.check(config, facts, fixed)  # again, for another process may have worked here until now
            yield

    def begin(self, config: Any, facts: Mapping[str, Any]) -> None:
        """Write the settings and, unless there is work to resume, the facts."""
        debate, folder, copies, texts = config.debate, self.path.resolve(), dict[str, Path](), config.debate.texts
        if not self.resumable:
            shutil.rmtree(self.path / "prompts", ignore_errors=True)
            make(self.path)
            write(self.path / self.facts_name, json_bytes(dict(facts), indent=2))
        # Copies, so that it does not matter what becomes of the person's.
        if texts:
            copies["prompts"] = folder / "prompts"
            make(copies["prompts"])
            for name, text in texts:
                write(copies["prompts"] / f"{name}.txt", text.encode())
        if debate.personas:
            copies["personas"] = folder / "personas.toml"
            write(copies["personas"], personas_toml(debate.characters).encode())
        write(self.path / "config.toml", to_toml(changed(config, copies, "copies")).encode())
        for name in self.subfolders:
            make(self.path / name)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. An empty folder is removed afterwards."""
        make(self.path)
        with locked(self.path / "lock", f"another process is working on {self.path}; wait for it or give another folder"):
            for unfinished in [part for name in ("", *self.subfolders) for part in (self.path / name).glob(".*.part")]:
                shutil.rmtree(unfinished) if unfinished.is_dir() else unlink(unfinished)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if os.listdir(self.path) == ["lock"]:  # nothing came of it: the model can't be loaded
                        os.unlink(self.path / "lock")
                        os.rmdir(self.path)


def make(folder: Path) -> None:
    """Make a folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: {folder} can't be made ({error.strerror}); give a folder you may write to") from None

"""What training, evaluations and debates share on disk: files that are whole or not there, logs, folders to resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from peergrad.config import from_folder
from peergrad.debate.bounds import Resumable
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.personas import personas_toml, read_personas
from peergrad.debate.prompts import read_texts
from peergrad.debate.transcript import load
from peergrad.debate.types import Debate
from peergrad.settings import changed, flat, markers, to_toml

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
    temporary = path.with_name(f".{path.name}.part")
    with writing(path):
        temporary.unlink(missing_ok=True)
        with _opened(temporary, os.O_WRONLY | os.O_EXCL, "wb") as file:
            file.write(content)
        _sync(temporary)
        _rename(temporary, path)


def _opened(path: Path, flags: int, mode: str) -> IO[bytes]:
    """A file to write to, made if it is not there. A link is refused: a folder that somebody sent may have it anywhere."""
    return os.fdopen(os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666), mode)


def append(path: Path, line: bytes, *, sync: bool = True) -> None:
    """Add a line to a file; killed in between, the last line may be torn, which readers must expect. A torn line stays a
    line of its own: what is added does not become part of it.
    """
    with writing(path):
        with _opened(path, os.O_RDWR | os.O_APPEND, "ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
        if sync:
            _sync(path)


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON. Numbers that are not finite are refused: JSON has no word for them."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True, indent=indent).encode()


def publish(folder: Path, final: Path) -> None:
    """Give a finished folder its final name, its files safely on disk first."""
    with writing(final):
        for entry in (*folder.iterdir(), folder):
            _sync(entry)
        if final.exists():
            remove(final)
        _rename(folder, final)


def remove(folder: Path) -> None:
    """Remove a folder: first its name, so that nobody takes what is left of it for whole."""
    doomed = folder.with_name(f".{folder.name}.old")
    with writing(folder):
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def unlink(path: Path) -> None:
    """Remove a file."""
    with writing(path):
        path.unlink()


def _rename(source: Path, target: Path) -> None:
    os.replace(source, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading what may have been cut off


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that was written whole."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if isinstance(value := json.loads(path.read_bytes()), dict):
            return value
    raise UserError(f"{path}: is damaged; restore it, or give a new place (out)")


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

    ``config.toml`` holds the settings. A JSON file of facts is written last, and makes the folder what it is.
    """

    noun, facts_name, subfolders = "work", "work.json", ("debates",)

    def __init__(self, path: Path, warn: Warn = lambda _: None) -> None:
        self.path, self._warn = path, warn

    @property
    def exists(self) -> bool:
        try:
            return (self.path / self.facts_name).exists()
        except (OSError, ValueError):  # a name too long, or none at all
            return False

    @property
    def resumable(self) -> bool:
        """Whether there is work to resume: its settings are then fixed."""
        return self.exists

    @property
    def facts(self) -> dict[str, Any]:
        return read_object(self.path / self.facts_name)

    @contextlib.contextmanager
    def opened(self, config: Any, facts: Mapping[str, Any], fixed: Collection[str] = ()) -> Iterator[None]:
        """Lock the folder for work with these settings; one that holds other work, or something else, is refused.

        Settings that are marked ``RESUMABLE`` may change, except those named as ``fixed``.
        """
        if not self.exists:
            self._check_unused(config)
        with self.locked():
            if self.resumable:
                what, before = f"the {self.noun} in {self.path}", self.facts
                for name, word in _FACTS.items():
                    if name in facts and before.get(name) != facts[name]:
                        raise UserError(f"out: {what} has {word}; give another folder (out)")
                may_change = markers(config, Resumable).keys() - set(fixed)
                now = {name: value for name, value in flat(config).items() if name not in may_change}
                check_same_settings(what, flat(from_folder(type(config)(), self.path)), now)
            yield

    def begin(self, config: Any, facts: Mapping[str, Any]) -> None:
        """Write the settings and, unless there is work to resume, the facts."""
        for name in (*self.subfolders, "prompts"):
            if (self.path / name).is_symlink():
                raise UserError(f"out: {self.path / name} is a link, and nothing is written behind one; make it a folder")
        for name in ("", *self.subfolders):
            _make(self.path / name)
        resumed = self.resumable
        copies, texts = self.path / "prompts", dict(config.debate.texts)
        for copy in copies.glob("*.txt"):
            if copy.stem not in texts:
                unlink(copy)
        for name, text in texts.items():  # so that it does not matter what becomes of the person's
            _make(copies)
            write(copies / f"{name}.txt", text.encode())
        if config.debate.personas:
            write(self.path / "personas.toml", personas_toml(config.debate.characters).encode())
        write(self.path / "config.toml", self._toml(config))
        if not resumed:
            write(self.path / self.facts_name, json_bytes(dict(facts), indent=2))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. An empty folder is removed afterwards."""
        _make(self.path)
        with locked(self.path / "lock", f"another process is working on {self.path}; wait for it or give another folder"):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if os.listdir(self.path) == ["lock"]:  # nothing came of it: the model can't be loaded
                        os.unlink(self.path / "lock")
                        os.rmdir(self.path)

    def _toml(self, config: Any) -> bytes:
        """The settings, with the copies of prompts and personas in place of the person's."""
        debate, folder = config.debate, self.path.resolve()
        copies = {"prompts": folder / "prompts"} if debate.texts else {}
        copies |= {"personas": folder / "personas.toml"} if debate.personas else {}
        return to_toml(changed(config, copies, "copies")).encode()

    def _check_unused(self, config: Any) -> None:
        """Refuse a folder that holds anything but what ``begin`` leaves when it is killed before it writes the facts."""
        try:
            for entry in sorted(self.path.iterdir()) if self.path.exists() else []:
                ours = (
                    entry.name in ("lock", ".config.toml.part", ".personas.toml.part", f".{self.facts_name}.part")
                    or (entry.name == "config.toml" and entry.read_bytes() == self._toml(config))
                    or (entry.name == "prompts" and {*read_texts(entry)} <= {*config.debate.texts})
                    or (entry.name == "personas.toml" and read_personas(entry) == config.debate.characters)
                    or (entry.name in self.subfolders and not any(entry.iterdir()))
                )
                if not ours:
                    raise UserError(f"out: {self.path} holds something else ({entry.name}); give a new folder")
        except OSError as error:
            raise UserError(f"out: {self.path} can't be used ({error.strerror}); give a folder you may write to") from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: {folder} can't be made ({error.strerror}); give a folder you may write to") from None

"""A run as a plain folder (docs/reference/run.md). Whatever is read here may have been cut off at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.play import Played
from peergrad.debate.transcript import dump, read_file
from peergrad.debate.types import Debate
from peergrad.runs import files

_CHECKPOINT = re.compile(r"(warm|step)_(\d{6,})")
_DEBATES = re.compile(r"step_(\d{6,})\.(?:jsonl|dropped\.json)")


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """How far a run is: updates of the self-play; before its first one, updates of the warm start."""

    step: int = 0
    warm: int = 0

    @property
    def name(self) -> str:
        """The name of its checkpoint."""
        return f"warm_{self.warm:06}" if self.warm else f"step_{self.step:06}"


def metrics_line(at: Progress, phase: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``metrics.jsonl``. A number that is not finite becomes null: JSON has no other word for it."""
    return {"phase": phase, "step": at.step, "warm": at.warm} | {name: _finite(value) for name, value in metrics.items()}


class Run:
    """Reads and writes one run folder."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._warn = path, warn

    # What a run is

    @staticmethod
    def open(path: Path, warn: Callable[[str], None] = lambda _: None) -> Run:
        """A run that exists."""
        run = Run(path, warn)
        if not run.exists:
            raise UserError(f"{path}: is no run; give the folder that `peergrad train` wrote to")
        return run

    @staticmethod
    def any_debates(path: Path, warn: Callable[[str], None] = lambda _: None) -> Iterator[Debate]:
        """The debates of a run's training, or of a transcript file; without prompts and tokens."""
        if path.is_dir():
            yield from (debate for _, debate in Run.open(path, warn).debates(thin=True))
        else:
            yield from read_file(path, thin=True)

    def refuse_strangers(self, config: str, last: str = "run.json") -> None:
        """Refuse a folder that holds anything but what ``begin`` leaves when it is killed before it writes ``last``."""
        try:
            entries = sorted(self.path.iterdir()) if self.path.exists() else []
            for entry in entries:
                ours = (
                    entry.name in ("lock", ".config.toml.part", f".{last}.part")
                    or (entry.name == "config.toml" and entry.read_bytes() == config.encode())
                    or (entry.name in ("debates", "checkpoints") and not any(entry.iterdir()))
                )
                if not ours:
                    raise UserError(f"out: {self.path} holds something else ({entry.name}); give a new folder")
        except OSError as error:
            raise UserError(f"out: {self.path} can't be used ({error.strerror}); give a folder you may write to") from None

    def begin(self, config: str, facts: Mapping[str, Any]) -> None:
        """Make the folder, which must be new or empty; ``run.json`` comes last and makes it a run."""
        self._make(self.path)
        for folder in ("debates", "checkpoints"):
            self._make(self.path / folder)
        files.write(self.path / "config.toml", config.encode())
        files.write(self.path / "run.json", _json(dict(facts), indent=2))

    @property
    def exists(self) -> bool:
        try:
            return (self.path / "run.json").exists()
        except (OSError, ValueError):  # a name too long, or none at all
            return False

    def configure(self, config: str) -> None:
        """Keep other settings from now on."""
        files.write(self.path / "config.toml", config.encode())

    @property
    def facts(self) -> dict[str, Any]:
        """What ``begin`` was told."""
        try:
            found = json.loads((self.path / "run.json").read_bytes())
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{self.path / 'run.json'}: is damaged; restore it or give a new folder")
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this run. The lock goes with the process, however it ends."""
        self._make(self.path)
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise files.cannot_write(self.path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise UserError(f"out: another process is working on {self.path}; wait for it or give another folder") from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.listdir(self.path) == ["lock"]:  # nothing came of it: the model can't be loaded
                    os.unlink(self.path / "lock")
                    os.rmdir(self.path)
            os.close(descriptor)

    # What happened

    def log(self, at: Progress, phase: str, metrics: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        files.append(self.path / "metrics.jsonl", _json(metrics_line(at, phase, metrics)) + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a torn one is passed over."""
        try:
            raw = (self.path / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.path / 'metrics.jsonl'}: can't be read ({error.strerror})") from None
        lines: list[dict[str, Any]] = []
        for line in raw.splitlines():
            try:
                made = json.loads(line)
                Progress(made["step"] + 0, made["warm"] + 0)
            except (ValueError, KeyError, TypeError):
                continue
            lines.append(made)
        return lines

    def keep(self, name: str, played: Played) -> None:
        """Keep the debates sampled for something, ``step_000001`` or an evaluation."""
        if played.dropped:
            files.write(self.path / "debates" / f"{name}.dropped.json", _json(played.dropped))
        lines = [dump(debate).encode() + b"\n" for debate in played.debates]
        files.write(self.path / "debates" / f"{name}.jsonl", b"".join(lines))

    def kept(self, name: str) -> Played | None:
        """What ``keep`` kept under this name, if it is whole."""
        path = self.path / "debates" / f"{name}.jsonl"
        if not path.exists():
            return None
        try:
            debates = tuple(read_file(path))
        except UserError as error:
            self._warn(f"{error}; sampling these debates again")
            return None
        dropped = path.with_name(f"{name}.dropped.json")
        try:
            return Played(debates, json.loads(dropped.read_bytes()) if dropped.exists() else {}) if debates else None
        except ValueError:
            return Played(debates, {})

    def debates(self, pattern: str = "step_*", *, thin: bool = False) -> Iterator[tuple[str, Debate]]:
        """Every debate kept, with the name it is kept under, in order; files that can't be read are passed over.

        ``thin`` leaves out prompts and tokens.
        """
        for path in sorted((self.path / "debates").glob(f"{pattern}.jsonl")):
            try:
                for debate in read_file(path, thin=thin):
                    yield path.stem, debate
            except UserError as error:
                self._warn(str(error))

    # What can be gone on from

    async def checkpoint(self, at: Progress, save: Callable[[Path], Awaitable[None]]) -> None:
        """Keep all that is needed to go on from here. It has its name only once it is whole."""
        final = self.path / "checkpoints" / at.name
        temporary = final.with_name(f".{at.name}.part")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            await save(temporary)
            sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(temporary.iterdir())}
            (temporary / "state.json").write_bytes(_json({"step": at.step, "warm": at.warm, "sha256": sums}, indent=2))
        except OSError as error:
            raise files.cannot_write(final, error) from None
        files.publish(temporary, final)

    def checkpoints(self) -> list[Progress]:
        """What there are checkpoints of, oldest first; whether they are whole is seen when they are loaded."""
        found = [match for entry in (self.path / "checkpoints").glob("*_*") if (match := _CHECKPOINT.fullmatch(entry.name))]
        return sorted(Progress(**{match[1]: int(match[2])}) for match in found)

    def folder(self, at: Progress) -> Path:
        """Where a checkpoint lies; raises ``UserError`` if it is not whole."""
        folder = self.path / "checkpoints" / at.name
        try:
            state = json.loads((folder / "state.json").read_bytes())
            for name, sum_ in state["sha256"].items():
                if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sum_:
                    raise UserError(f"{folder / name}: is damaged")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{folder}: is damaged or incomplete") from None
        return folder

    def newest(self) -> tuple[Progress, Path] | None:
        """The newest checkpoint that is whole. Damaged ones are named and passed over."""
        for at in reversed(self.checkpoints()):
            try:
                return at, self.folder(at)
            except UserError as error:
                self._warn(f"{error}; going on from the one before")
        return None

    def forget_after(self, at: Progress, ahead: int = 0) -> None:
        """Drop what was done after a checkpoint and will now be done again: metrics, checkpoints, debates of later steps.

        The debates of the very next step stay, and of as many more as were sampled ahead: by these weights or older ones.
        """
        lines = self.metrics()
        kept = [line for line in lines if Progress(line["step"], line["warm"]) <= at]
        files.write(self.path / "metrics.jsonl", b"".join(_json(line) + b"\n" for line in kept))
        for file in (self.path / "debates").glob("step_*"):
            match = _DEBATES.fullmatch(file.name)
            if match and int(match[1]) > at.step + 1 + ahead:
                files.unlink(file)
        for later in self.checkpoints():
            if later > at:
                files.remove(self.path / "checkpoints" / later.name)

    def thin_checkpoints(self, every: int, forget: Callable[[Path], None]) -> None:
        """Remove checkpoints no longer needed: all but the first, every so many, and the newest two.

        ``forget`` is told of each before.
        """
        found = self.checkpoints()
        for at in found[1:-2]:
            if at.step == 0 or every == 0 or at.step % every:
                folder = self.path / "checkpoints" / at.name
                forget(folder)
                files.remove(folder)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out: {folder} can't be made ({error.strerror}); give a folder you may write to") from None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: Any, indent: int | None = None) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=True, indent=indent).encode()

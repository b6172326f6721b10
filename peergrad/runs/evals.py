"""An evaluation as a plain folder (docs/reference/eval.md): what was played, so that it can go on, and the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.transcript import dump, load
from peergrad.debate.types import Debate
from peergrad.runs import files
from peergrad.runs.folder import Run

_PATIENCE_S = 1.0  # debates that end within a moment are written together


class Evals:
    """Reads and writes the folder of one evaluation."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._warn = path, warn
        self._waiting: dict[str, list[bytes]] = {}
        self._written = time.monotonic()

    @property
    def exists(self) -> bool:
        try:
            return (self.path / "eval.json").exists()
        except (OSError, ValueError):
            return False

    def refuse_strangers(self) -> None:
        """Refuse a folder that holds anything but what ``begin`` leaves when it is killed."""
        ours = ("lock", "config.toml", ".config.toml.part", ".eval.json.part", "debates")
        try:
            strange = [entry.name for entry in self.path.iterdir() if entry.name not in ours] if self.path.exists() else []
        except OSError as error:
            raise UserError(f"out: {self.path} can't be used ({error.strerror}); give a folder you may write to") from None
        if strange or (self.path / "debates" / "x").parent.is_file():
            raise UserError(f"out: {self.path} holds something else ({(strange or ['debates'])[0]}); give a new folder")

    def locked(self) -> Any:
        """Keep other processes from writing here."""
        return Run(self.path).locked()

    def begin(self, config: str, facts: Mapping[str, Any]) -> None:
        """Make the folder; ``eval.json`` comes last and makes it an evaluation."""
        try:
            (self.path / "debates").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.cannot_write(self.path, error) from None
        files.write(self.path / "config.toml", config.encode())
        files.write(self.path / "eval.json", json.dumps(dict(facts), indent=2).encode())

    @property
    def facts(self) -> dict[str, Any]:
        """What ``begin`` was told."""
        return _read(self.path / "eval.json")

    # What was played

    def kept(self, part: str) -> dict[str, Debate]:
        """The debates of a part by id; a line that was torn is passed over, and will be played again."""
        path = self.path / "debates" / f"{part}.jsonl"
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        except OSError as error:
            raise UserError(f"{path}: can't be read ({error.strerror})") from None
        debates: dict[str, Debate] = {}
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    debate = load(line, f"{path}, line {number}")
                    debates[debate.id] = debate
            except UserError as error:
                self._warn(f"{error}; it is played again")
        if lines and lines[-1]:  # torn in the middle of a line: what is added must not become part of it
            files.append(path, b"\n")
        return debates

    def keep(self, part: str, debate: Debate) -> None:
        """Keep a debate, without its prompts and tokens; it is on disk after ``flush``, or a moment later."""
        self._waiting.setdefault(part, []).append(dump(debate, thin=True).encode() + b"\n")
        if time.monotonic() - self._written > _PATIENCE_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, {}
        for part, lines in waiting.items():
            files.append(self.path / "debates" / f"{part}.jsonl", b"".join(lines))
        self._written = time.monotonic()

    def took(self, part: str, seconds: float, sampled: int, usd: float) -> None:
        """Note how long playing took, and what it cost."""
        line = {"part": part, "seconds": round(seconds, 3), "sampled": sampled, "usd": usd}
        files.append(self.path / "time.jsonl", json.dumps(line).encode() + b"\n")

    def times(self) -> dict[str, dict[str, float]]:
        """Seconds, sampled tokens and dollars by part, over all sittings."""
        path = self.path / "time.jsonl"
        total: dict[str, dict[str, float]] = {}
        for line in path.read_bytes().split(b"\n") if path.exists() else []:
            try:
                found = json.loads(line)
                part = total.setdefault(found["part"], dict.fromkeys(("seconds", "sampled", "usd"), 0.0))
                for name in part:
                    part[name] += found[name]
            except (ValueError, KeyError, TypeError):
                continue
        return total

    # What was found

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def publish(self, result: Mapping[str, Any], table: str) -> None:
        """Write the result, for programs and for people."""
        files.write(self.path / "result.txt", table.encode())
        files.write(self.path / "result.json", json.dumps(dict(result), allow_nan=False).encode() + b"\n")

    def result(self) -> dict[str, Any]:
        return _read(self.path / "result.json")


def read_result(path: Path) -> dict[str, Any]:
    """The result in an evaluation's folder, or a ``result.json`` itself."""
    path = path / "result.json" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path}: there is no result; give a folder that `peergrad eval` has finished")
    found = _read(path)
    missing: Sequence[str] = [name for name in ("questions", "values", "counts", "task") if name not in found]
    if missing:
        raise UserError(f"{path}: is no result of `peergrad eval` ({missing[0]} is missing)")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path}: is damaged; restore it or give a new folder")
    return found

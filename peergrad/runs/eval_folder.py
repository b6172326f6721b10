"""An evaluation as a plain folder (docs/reference/eval.md): what was played, so that it can go on, and the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.transcript import dump, load
from peergrad.debate.types import Debate
from peergrad.engines.shared.meter import Spent
from peergrad.runs import files
from peergrad.runs.folder import Run

_PATIENCE_S = 1.0  # debates that end within a moment are written together


class EvalFolder:
    """Reads and writes the folder of one evaluation."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._warn = path, warn
        self._waiting: dict[str, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def exists(self) -> bool:
        try:
            return (self.path / "eval.json").exists()
        except (OSError, ValueError):
            return False

    @property
    def begun(self) -> bool:
        """Whether anything was played. Until then settings may still be corrected."""
        return self.exists and any((self.path / "debates").glob("*.jsonl"))

    def refuse_strangers(self, config: str) -> None:
        """Refuse a folder that holds anything but what ``begin`` leaves when it is killed."""
        Run(self.path).refuse_strangers(config, "eval.json")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from writing here."""
        return Run(self.path).locked()

    def begin(self, config: str, facts: Mapping[str, Any]) -> None:
        """Make the folder; ``eval.json`` comes last and makes it an evaluation."""
        self.make()
        files.write(self.path / "config.toml", config.encode())
        files.write(self.path / "eval.json", json.dumps(dict(facts), indent=2).encode())

    def make(self) -> None:
        """Make the folders, as far as they are missing."""
        try:
            (self.path / "debates").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.cannot_write(self.path, error) from None

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
        """Keep a debate, without its prompts and tokens. Those that end within a second are written together."""
        self._waiting.setdefault(part, []).append(dump(debate, thin=True).encode() + b"\n")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._flush_later)

    def flush(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for part in list(self._waiting):
            files.append(self.path / "debates" / f"{part}.jsonl", b"".join(self._waiting[part]))
            del self._waiting[part]

    def _flush_later(self) -> None:
        with contextlib.suppress(EngineError):  # what could not be written still waits, and the next flush says why
            self.flush()

    def took(self, part: str, seconds: float, sampled: int, spent: Spent) -> None:
        """Note how long playing took, how many tokens of it are kept, and what servers charged for."""
        line = {"part": part, "seconds": round(seconds, 3), "sampled": sampled, "usd": spent.usd} | {"spent": asdict(spent)}
        files.append(self.path / "time.jsonl", json.dumps(line).encode() + b"\n")

    def times(self) -> dict[str, dict[str, float]]:
        """Seconds, sampled tokens and dollars by part, over all sittings."""
        total: dict[str, dict[str, float]] = {}
        for line in self._lines("time.jsonl"):
            try:
                found = json.loads(line)
                part = total.setdefault(found["part"], dict.fromkeys(("seconds", "sampled", "usd"), 0.0))
                for name in part:
                    part[name] += found[name]
            except (ValueError, KeyError, TypeError):
                continue
        return total

    def spent(self) -> Spent:
        """What servers charged for, over all sittings."""
        total = Spent()
        for line in self._lines("time.jsonl"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                total = total.plus(Spent(**json.loads(line)["spent"]))
        return total

    def _lines(self, name: str) -> list[bytes]:
        path = self.path / name
        return path.read_bytes().split(b"\n") if path.is_file() else []

    # What was found

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def publish(self, result: Mapping[str, Any], table: str) -> None:
        """Write the result, for programs and for people."""
        files.write(self.path / "result.txt", table.encode())
        files.write(self.path / "result.json", json.dumps(dict(result), allow_nan=False).encode() + b"\n")

    def result(self) -> dict[str, Any]:
        return read_result(self.path)


def read_result(path: Path) -> dict[str, Any]:
    """The result in an evaluation's folder, or a ``result.json`` itself."""
    path = path / "result.json" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path}: there is no result; give a folder that `peergrad eval` has finished")
    found = _read(path)
    if not _is_result(found):
        raise UserError(f"{path}: is no result of `peergrad eval`, or damaged; evaluate again in a new folder")
    return found


def _is_result(found: Mapping[str, Any]) -> bool:
    """Whether it has what is shown and compared, in the right shape."""
    try:
        count = len(found["questions"])
        return (
            all(isinstance(name, str) for name in (*found["questions"], *found["hashes"], found["task"], found["model"]))
            and len(found["hashes"]) == count == len(set(found["questions"]))
            and all(len(row) == count and all(map(_share, row)) for row in found["values"].values())
            and all(len(row) == 3 and all(map(_number, row)) for row in found["accuracy"].values())
            and all(len(row) == 3 and all(map(_number, row)) for row in found["difference"].values())
            and all(len(row) == 4 and all(map(_number, row)) for row in found["shares"].values())
            and all(map(_number, found["tokens"].values()))
            and all(_number(part[name]) for part in found["times"].values() for name in ("seconds", "sampled", "usd"))
            and all(name in found["settings"] for name in ("mode", "protocol", "agents", "max_rounds", "cost"))
            and isinstance(found["dropped"], dict)
            and isinstance(found["asked"], int)
            and found["reference"] in (None, *found["values"])
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _share(value: object) -> bool:
    return value is None or (_number(value) and 0 <= float(value) <= 1)  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path}: is damaged; restore it or give a new folder")
    return found

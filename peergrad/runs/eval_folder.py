"""An evaluation as a plain folder (docs/reference/eval.md): what was played, so that it can be resumed, and the result."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.transcript import dump
from peergrad.debate.types import Debate
from peergrad.engines.shared.meter import Spent
from peergrad.runs import files
from peergrad.runs.work_folder import Warn, WorkFolder, read_debates, read_object, read_records

_PATIENCE_S = 1.0  # debates that end within a moment are written together


class EvalFolder(WorkFolder):
    """Reads and writes the folder of one evaluation."""

    noun, facts_name, subfolders = "evaluation", "eval.json", ("debates",)

    def __init__(self, path: Path, warn: Warn = lambda _: None) -> None:
        super().__init__(path, warn)
        self._waiting: dict[str, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def resumable(self) -> bool:
        """Whether anything was played. Until then settings may still be corrected."""
        return self.exists and any((self.path / "debates").glob("*.jsonl"))

    # Debates

    def debates(self, part: str) -> dict[str, Debate]:
        """The debates of a part by id."""
        return read_debates(self.path / "debates" / f"{part}.jsonl", self._warn)

    def add(self, part: str, debate: Debate) -> None:
        """Add a debate, without its prompts and tokens. Those that end within a second are written together."""
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

    # Cost

    def note_cost(self, part: str, seconds: float, sampled: int, spent: Spent) -> None:
        """Write down how long playing took, how many tokens of it were saved, and what servers charged for."""
        line = {"part": part, "seconds": round(seconds, 3), "sampled": sampled, "usd": spent.usd, "spent": asdict(spent)}
        files.append(self.path / "time.jsonl", files.json_bytes(line) + b"\n")

    def times(self) -> dict[str, dict[str, float]]:
        """Seconds, sampled tokens and dollars by part, over all sessions."""
        total: dict[str, dict[str, float]] = {}
        for line in read_records(self.path / "time.jsonl"):
            with contextlib.suppress(KeyError, TypeError):
                part = total.setdefault(line["part"], dict.fromkeys(("seconds", "sampled", "usd"), 0.0))
                for name in part:
                    part[name] += line[name]
        return total

    def spent(self) -> Spent:
        """What servers charged for, over all sessions."""
        total = Spent()
        for line in read_records(self.path / "time.jsonl"):
            with contextlib.suppress(KeyError, TypeError):
                total = total.plus(Spent(**line["spent"]))
        return total

    # The result

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def publish(self, result: Mapping[str, Any], table: str) -> None:
        """Write the result, for programs and for people."""
        files.write(self.path / "result.txt", table.encode())
        files.write(self.path / "result.json", files.json_bytes(dict(result)) + b"\n")


def read_result(path: Path) -> dict[str, Any]:
    """The result in an evaluation's folder, or a ``result.json`` itself."""
    path = path / "result.json" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path}: there is no result; give a folder that `peergrad eval` has finished")
    result = read_object(path)
    if not _is_result(result):
        raise UserError(f"{path}: is no result of `peergrad eval`, or damaged; evaluate again in a new folder")
    return result


def _is_result(result: Mapping[str, Any]) -> bool:
    """Whether it has what is shown and compared, in the right shape."""
    try:
        count = len(result["questions"])
        return (
            all(isinstance(name, str) for name in (*result["questions"], *result["hashes"], result["task"], result["model"]))
            and len(result["hashes"]) == count == len(set(result["questions"]))
            and all(len(row) == count and all(map(_share, row)) for row in result["values"].values())
            and all(len(row) == 3 and all(map(_number, row)) for row in result["accuracy"].values())
            and all(len(row) == 3 and all(map(_number, row)) for row in result["difference"].values())
            and all(len(row) == 4 and all(map(_number, row)) for row in result["shares"].values())
            and all(map(_number, result["tokens"].values()))
            and all(_number(part[name]) for part in result["times"].values() for name in ("seconds", "sampled", "usd"))
            and all(name in result["settings"] for name in ("mode", "protocol", "agents", "max_rounds", "cost"))
            and isinstance(result["dropped"], dict)
            and isinstance(result["asked"], int)
            and result["reference"] in (None, *result["values"])
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _share(value: object) -> bool:
    return value is None or (_number(value) and 0 <= float(value) <= 1)  # type: ignore[arg-type]

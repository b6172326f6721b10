"""A transcript file that is being added to, and what is known about it in a file beside it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.transcript import dump, load
from peergrad.debate.types import Debate
from peergrad.runs import files

_SPENT = {"requests": 0, "prompt": 0, "sampled": 0, "usd": 0.0, "seconds": 0.0}


class Transcript:
    """Debates kept in a file, one a line, whole or not there. ``about`` holds the settings, and what was spent on them."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._warn = path, warn
        self.about_path = path.with_name(f"{path.name.removesuffix('.jsonl')}.about.json")
        self._about: dict[str, Any] = {}
        self._before = dict(_SPENT)
        self._made = False

    @contextmanager
    def begun(self, facts: Mapping[str, Any]) -> Iterator[dict[str, Debate]]:
        """Lock the file and give the debates in it, by id. ``facts`` decide what is said in them: others are refused."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise UserError(f"out: {self.path} is a folder; give the name of a .jsonl file")
            self._made = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"out: {self.path} can't be written ({error.strerror}); give another file") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise UserError(f"out: another process is writing to {self.path}; wait for it or give another file") from None
        try:
            self._open(dict(facts))
            yield self._kept()
        finally:
            self._leave_nothing()
            os.close(descriptor)

    def _leave_nothing(self) -> None:
        """Where nothing was said, nothing is left behind."""
        spent = self._about.get("spent") or {}
        with suppress(OSError):  # removed meanwhile, or a name too long for the file beside it
            if self._made and not self.path.stat().st_size and not (spent.get("requests") or spent.get("sampled")):
                self.path.unlink()
                self.about_path.unlink(missing_ok=True)

    def keep(self, debate: Debate, spent: Mapping[str, float]) -> None:
        """Add a debate; it is on disk when this returns. ``spent`` is what all of this sitting took so far."""
        files.append(self.path, dump(debate).encode() + b"\n")
        self.took(spent)

    def took(self, spent: Mapping[str, float]) -> None:
        """Note what this sitting took so far, beside what earlier ones did."""
        total = {name: self._before[name] + spent.get(name, 0) for name in _SPENT}
        self._about["spent"] = total | {"usd": round(total["usd"], 9), "seconds": round(total["seconds"], 3)}
        files.write(self.about_path, json.dumps(self._about, indent=2).encode() + b"\n")

    def _open(self, facts: dict[str, Any]) -> None:
        if not self.about_path.exists():
            if self.path.stat().st_size:
                raise UserError(f"out: {self.path} holds something else; give another file")
            self._about = {"format": 1} | facts
            self.took({})
            return
        try:
            self._about = json.loads(self.about_path.read_bytes())
            self._before = _SPENT | {name: self._about["spent"][name] + 0 for name in _SPENT}
            before = {name: self._about[name] for name in facts}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{self.about_path}: is damaged; restore it, or give another file (out)") from None
        for name, value in json.loads(json.dumps(facts)).items():
            _same(name, before[name], value, self.path)

    def _kept(self) -> dict[str, Debate]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise UserError(f"{self.path}: can't be read ({error.strerror})") from None
        debates: dict[str, Debate] = {}
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    debate = load(line, f"{self.path}, line {number}")
                    debates[debate.id] = debate
            except UserError as error:
                if number < len(lines):
                    raise
                # Torn when the process was killed. Left in place it would spoil the file for every reader.
                self._warn(f"{error}; it is played again")
                os.truncate(self.path, sum(len(line) + 1 for line in lines[:-1]))
                return debates
        if lines[-1]:
            files.append(self.path, b"\n")
        return debates


def _same(name: str, before: Any, now: Any, path: Path) -> None:
    """Refuse other facts, naming the first that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now:
            _same(key, before.get(key), now[key], path)
    elif before != now:
        raise UserError(f"{name}: the debates in {path} have {before}, not {now}; give the same, or another file (out)")

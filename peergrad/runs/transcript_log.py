"""A transcript file that debates are added to, and a file beside it with their settings and what was spent on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.transcript import dump
from peergrad.debate.types import Debate
from peergrad.runs import files
from peergrad.runs.work_folder import Warn, check_same_settings, locked, read_debates, read_object

_SPENT = {"requests": 0, "prompt": 0, "sampled": 0, "usd": 0.0, "seconds": 0.0}


class TranscriptLog:
    """Debates in a file, one a line, each whole or not there. ``NAME.about.json`` says what they were made with."""

    def __init__(self, path: Path, warn: Warn = lambda _: None) -> None:
        self.path, self._warn = path, warn
        self.about_path = path.with_name(f"{path.name.removesuffix('.jsonl')}.about.json")
        self._about: dict[str, Any] = {}
        self._spent_before = dict(_SPENT)

    @contextmanager
    def opened(self, facts: Mapping[str, Any]) -> Iterator[dict[str, Debate]]:
        """Lock the file and give the debates in it, by id. A file whose debates were made with other facts is refused."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise UserError(f"out: {self.path} is a folder; give the name of a .jsonl file")
            new = not self.path.exists()
        except OSError as error:
            raise UserError(f"out: {self.path} can't be written ({error.strerror}); give another file") from None
        with locked(self.path, f"another process is writing to {self.path}; wait for it or give another file"):
            try:
                self._begin(dict(facts))
                yield read_debates(self.path, self._warn, strict=True)
            finally:
                if new:
                    self._remove_if_unused()

    def add(self, debate: Debate, spent: Mapping[str, float]) -> None:
        """Add a debate; it is on disk when this returns. ``spent`` is what was spent since the file was opened."""
        files.append(self.path, dump(debate).encode() + b"\n")
        self.note_spent(spent)

    def note_spent(self, spent: Mapping[str, float]) -> None:
        """Write down what was spent since the file was opened, together with what was spent before."""
        total = {name: self._spent_before[name] + spent.get(name, 0) for name in _SPENT}
        self._about["spent"] = total | {"usd": round(total["usd"], 9), "seconds": round(total["seconds"], 3)}
        files.write(self.about_path, files.json_bytes(self._about, indent=2) + b"\n")

    def _begin(self, facts: dict[str, Any]) -> None:
        if not self.about_path.exists():
            if self.path.stat().st_size:
                raise UserError(f"out: {self.path} holds something else; give another file")
            self._about = {"format": 1} | facts
            self.note_spent({})
            return
        self._about = read_object(self.about_path)
        try:
            self._spent_before = {name: self._about["spent"][name] + 0 for name in _SPENT}
        except (KeyError, TypeError):
            raise UserError(f"{self.about_path}: is damaged; restore it, or give another file (out)") from None
        check_same_settings(f"the transcript {self.path}", self._about, json.loads(json.dumps(facts)))

    def _remove_if_unused(self) -> None:
        spent = self._about.get("spent") or {}
        with suppress(OSError):  # removed meanwhile, or a name too long for the file beside it
            if not self.path.stat().st_size and not (spent.get("requests") or spent.get("sampled")):
                self.path.unlink()
                self.about_path.unlink(missing_ok=True)

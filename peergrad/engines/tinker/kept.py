"""Which checkpoints a service keeps for a run, as this person's own cache knows it: these may be removed there.

A run folder names them too, but it may be somebody else's, or a copy of one whose owner still needs them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path


class Kept:
    """The states of runs by the folder that their checkpoints are in. Killed runs are known to later processes.

    A folder that took the place of another, by a move or as a copy, is not that folder.
    """

    def __init__(self) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self._root, self._here = Path(root).expanduser() / "peergrad" / "tinker", set[tuple[Path, str]]()

    def add(self, folder: Path, state: str) -> None:
        note = self._note(folder, state)
        self._here.add((note.parent, state))
        with contextlib.suppress(OSError):  # then it is known to this process alone
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(state)

    def begin(self, folder: Path) -> None:
        """A new run begins here. What a run that was here before had kept is that run's, wherever it lies now."""
        place = self._note(folder, "").parent
        self._here = {(at, state) for at, state in self._here if at != place}
        shutil.rmtree(place, ignore_errors=True)

    def take(self, folder: Path, state: str) -> bool:
        """Whether a state may be removed. It is no longer known."""
        note, here = self._note(folder, state), False
        if (note.parent, state) in self._here:
            self._here.remove((note.parent, state))
            here = True
        with contextlib.suppress(OSError):
            note.unlink()
            return True
        return here

    def of(self, folder: Path) -> list[str]:
        """All states of a folder."""
        with contextlib.suppress(OSError):
            return [note.read_text() for note in self._note(folder, "").parent.iterdir()]
        return []

    def _note(self, folder: Path, state: str) -> Path:
        where = f"{folder.resolve()}\n{folder.stat().st_ino}"
        place, name = (hashlib.sha256(os.fsencode(text)).hexdigest() for text in (where, state))
        return self._root / place / name

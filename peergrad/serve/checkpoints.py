"""Checkpoints on disk: OUT/MODEL/weights/NAME to resume from, OUT/MODEL/sampler_weights/NAME to sample with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peergrad.debate.errors import EngineError, UserError
from peergrad.runs import files
from peergrad.serve.results import NotFoundError

if TYPE_CHECKING:
    from peergrad.serve.policies import Policy

_INFO_FILE, _EXPIRY_FILE = "serve.json", "expires"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that a policy or a checkpoint is of."""

    base_model: str
    rank: int
    train_mlp: bool
    train_attn: bool
    notes: dict[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """The client's own metadata."""


class CheckpointId(NamedTuple):
    """Model, kind ("weights" or "sampler_weights") and name; all are valid as names of folders."""

    model: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        """The path by which clients know it."""
        return f"tinker://{'/'.join(self)}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    id: CheckpointId
    info: ModelInfo
    time: float
    size: int
    expires: float | None


class CheckpointStore:
    """Reads and writes checkpoints. ``on_change`` is called with each path that stops meaning the same weights."""

    def __init__(self, out: Path, on_change: Callable[[str], None]) -> None:
        self._out, self._on_change = out, on_change

    async def save(self, id: CheckpointId, policy: Policy, *, overwrite: bool = False, ttl: int | None = None) -> str:
        """Write a checkpoint that expires after ``ttl`` seconds, if given. Returns its path.

        Expired checkpoints are removed first. The folder gets its name when all of it is written.
        """
        final = self._folder(id)
        temporary = final.with_name(f".{id.name}.part")

        def begin() -> None:
            if final.exists() and not overwrite:
                raise UserError(f"path: there is a checkpoint {id.name!r} already; give another name, or overwrite")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

        def finish() -> None:
            (temporary / _INFO_FILE).write_text(json.dumps(asdict(policy.info)))
            if ttl is not None:
                (temporary / _EXPIRY_FILE).write_text(str(time.time() + ttl))
            files.publish(temporary, final)

        with files.writing(final):  # in threads, because a disk may be slow
            for path in await asyncio.to_thread(self.remove_expired):
                self._on_change(path)
            await asyncio.to_thread(begin)
            await policy.engine.save(temporary)
            await asyncio.to_thread(finish)
        self._on_change(id.path)  # a checkpoint of that name may have been removed while it was being loaded
        return id.path

    def find(self, id: CheckpointId) -> tuple[Path, ModelInfo]:
        """The folder of a checkpoint and the model it is of."""
        folder = self._folder(id)
        info = _info(folder)
        if info is None:
            raise NotFoundError(f"there is no checkpoint {id.path}")
        if _is_past(_expiry(folder)):
            raise NotFoundError(f"the checkpoint {id.path} has expired")
        return folder, info

    async def remove(self, id: CheckpointId) -> None:
        """Remove a checkpoint."""
        folder, _ = await asyncio.to_thread(self.find, id)
        await asyncio.to_thread(files.remove, folder)
        self._on_change(id.path)

    def set_ttl(self, id: CheckpointId, ttl: int | None) -> None:
        """Let a checkpoint expire ``ttl`` seconds from now; None: never."""
        expiry = self.find(id)[0] / _EXPIRY_FILE
        if ttl is not None:
            files.write(expiry, str(time.time() + ttl).encode())
        elif expiry.exists():
            files.unlink(expiry)

    def remove_expired(self) -> list[str]:
        """Remove expired checkpoints. Returns their paths."""
        marked = (self._folder(id) for id in self._ids("*", _EXPIRY_FILE))
        expired = [folder for folder in marked if (folder / _INFO_FILE).exists() and _is_past(_expiry(folder))]
        for folder in expired:
            with contextlib.suppress(EngineError):  # ``find`` ignores it from now on, so it is harmless if it stays
                files.remove(folder)
        return [CheckpointId(*folder.parts[-3:]).path for folder in expired]

    def all(self, model: str = "*") -> list[Checkpoint]:
        """All checkpoints, or all of one model, newest last."""
        checkpoints = list[Checkpoint]()
        for id in self._ids(model, _INFO_FILE):
            folder = self._folder(id)
            info, expiry = _info(folder), _expiry(folder)
            with contextlib.suppress(OSError):  # removed meanwhile
                saved, size = (folder / _INFO_FILE).stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir())
                if info is not None and not _is_past(expiry):
                    checkpoints.append(Checkpoint(id, info, saved, size, expiry))
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.time)

    def _ids(self, model: str, file: str) -> list[CheckpointId]:
        """The checkpoints that have a file of this name."""
        return [
            CheckpointId(*path.parent.parts[-3:])
            for kind in ("weights", "sampler_weights")
            for path in sorted(self._out.glob(f"{model}/{kind}/[!.]*/{file}"))
        ]

    def _folder(self, id: CheckpointId) -> Path:
        return self._out.joinpath(*id)


def _info(folder: Path) -> ModelInfo | None:
    try:
        return ModelInfo(**json.loads((folder / _INFO_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _expiry(folder: Path) -> float | None:
    try:
        return float((folder / _EXPIRY_FILE).read_text())
    except (OSError, ValueError):
        return None


def _is_past(moment: float | None) -> bool:
    return moment is not None and moment <= time.time()

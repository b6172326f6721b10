"""Checkpoints on disk: OUT/MODEL/weights/NAME to go on from, OUT/MODEL/sampler_weights/NAME to sample with."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from peergrad.debate.errors import EngineError, UserError
from peergrad.runs import files
from peergrad.serve.wire import Missing

Kind = Literal["weights", "sampler_weights"]
_KINDS: tuple[Kind, ...] = ("weights", "sampler_weights")
_ABOUT, _EXPIRES = "serve.json", "expires"


@dataclass(frozen=True, slots=True)
class About:
    """What a checkpoint is of."""

    base_model: str
    rank: int
    train_mlp: bool
    train_attn: bool
    notes: dict[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """What the program that trains it wants remembered of it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint on disk."""

    model: str
    kind: Kind
    name: str
    time: float
    size: int
    expires: float | None

    @property
    def path(self) -> str:
        return f"tinker://{self.model}/{self.kind}/{self.name}"


class Store:
    """Reads and writes checkpoints. Names have been checked: they are no paths."""

    def __init__(self, out: Path) -> None:
        self._out = out

    async def save(
        self,
        model: str,
        kind: Kind,
        name: str,
        about: About,
        write: Callable[[Path], Awaitable[None]],
        *,
        overwrite: bool,
        ttl: int | None = None,
    ) -> str:
        """Keep a checkpoint, for ever or ``ttl`` seconds; it has its name only once it is whole. Returns its path."""
        final = self._out / model / kind / name
        if final.exists() and not overwrite:
            raise UserError(f"path: there is a checkpoint {name!r} already; give another name, or overwrite")
        temporary = final.with_name(f".{name}.part")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            await write(temporary)
            (temporary / _ABOUT).write_text(json.dumps(asdict(about)))
            if ttl is not None:
                (temporary / _EXPIRES).write_text(str(time.time() + ttl))
        except OSError as error:
            raise files.cannot_write(final, error) from None
        files.publish(temporary, final)
        return f"tinker://{model}/{kind}/{name}"

    def find(self, model: str, kind: str, name: str) -> tuple[Path, About]:
        """Where a checkpoint is, and what it is of. ``Missing``: there is none, or it has expired."""
        folder = self._out / model / kind / name
        try:
            about = About(**json.loads((folder / _ABOUT).read_text()))
        except (OSError, ValueError, TypeError):
            raise Missing(f"there is no checkpoint tinker://{model}/{kind}/{name}") from None
        if _expired(_expires(folder)):
            raise Missing(f"the checkpoint tinker://{model}/{kind}/{name} has expired")
        return folder, about

    def remove(self, model: str, kind: str, name: str) -> None:
        """Remove a checkpoint. ``Missing``: there is none."""
        files.remove(self.find(model, kind, name)[0])

    def limit(self, model: str, kind: str, name: str, ttl: int | None) -> None:
        """Have a checkpoint expire so many seconds from now, or never."""
        mark = self.find(model, kind, name)[0] / _EXPIRES
        if ttl is not None:
            files.write(mark, str(time.time() + ttl).encode())
        elif mark.exists():
            files.unlink(mark)

    def sweep(self) -> list[str]:
        """Remove what has expired; the paths it had."""
        ours = (mark.parent for kind in _KINDS for mark in self._out.glob(f"*/{kind}/[!.]*/{_EXPIRES}"))
        gone = [folder for folder in ours if (folder / _ABOUT).exists() and _expired(_expires(folder))]
        for folder in gone:
            with contextlib.suppress(EngineError):  # nobody finds it any more; what can't be removed is in nobody's way
                files.remove(folder)
        return [f"tinker://{'/'.join(folder.parts[-3:])}" for folder in gone]

    def all(self, model: str = "*") -> list[Kept]:
        """Every checkpoint, or every one of a model, newest last."""
        found = list[Kept]()
        for kind in _KINDS:
            for about in sorted(self._out.glob(f"{model}/{kind}/[!.]*/{_ABOUT}")):
                with contextlib.suppress(OSError):  # removed by somebody meanwhile
                    folder, moment = about.parent, about.stat().st_mtime
                    size = sum(file.stat().st_size for file in folder.iterdir())
                    found.append(Kept(folder.parent.parent.name, kind, folder.name, moment, size, _expires(folder)))
        return sorted((one for one in found if not _expired(one.expires)), key=lambda one: one.time)


def _expires(folder: Path) -> float | None:
    try:
        return float((folder / _EXPIRES).read_text())
    except (OSError, ValueError):
        return None


def _expired(moment: float | None) -> bool:
    return moment is not None and moment <= time.time()

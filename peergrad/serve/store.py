"""Checkpoints on disk: OUT/MODEL/weights/NAME to go on from, OUT/MODEL/sampler_weights/NAME to sample with."""

from __future__ import annotations

import asyncio
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
from peergrad.serve.refusals import Missing

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
    about: About
    time: float
    size: int
    expires: float | None

    @property
    def path(self) -> str:
        return f"tinker://{self.model}/{self.kind}/{self.name}"


class Store:
    """Reads and writes checkpoints. Names have been checked: they are no paths.

    ``let_go`` is told of each path that does not mean the weights any more that it meant.
    """

    def __init__(self, out: Path, let_go: Callable[[str], None]) -> None:
        self._out, self._let_go = out, let_go

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
        """Keep a checkpoint, for ever or ``ttl`` seconds; it has its name only once it is whole. Returns its path.

        What has expired makes room first.
        """
        final = self._out / model / kind / name
        temporary = final.with_name(f".{name}.part")

        def begin() -> None:
            if final.exists() and not overwrite:
                raise UserError(f"path: there is a checkpoint {name!r} already; give another name, or overwrite")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

        def end() -> None:
            (temporary / _ABOUT).write_text(json.dumps(asdict(about)))
            if ttl is not None:
                (temporary / _EXPIRES).write_text(str(time.time() + ttl))
            files.publish(temporary, final)

        try:  # a disk may be slow: others are answered meanwhile
            for path in await asyncio.to_thread(self.sweep):
                self._let_go(path)
            await asyncio.to_thread(begin)
            await write(temporary)
            await asyncio.to_thread(end)
        except OSError as error:
            raise files.cannot_write(final, error) from None
        path = f"tinker://{model}/{kind}/{name}"
        self._let_go(path)  # one of that name may have been removed while it was being loaded
        return path

    def find(self, model: str, kind: str, name: str) -> tuple[Path, About]:
        """Where a checkpoint is, and what it is of. ``Missing``: there is none, or it has expired."""
        folder = self._out / model / kind / name
        about = _about(folder)
        if about is None:
            raise Missing(f"there is no checkpoint tinker://{model}/{kind}/{name}")
        if _expired(_expires(folder)):
            raise Missing(f"the checkpoint tinker://{model}/{kind}/{name} has expired")
        return folder, about

    async def remove(self, model: str, kind: str, name: str) -> None:
        """Remove a checkpoint. ``Missing``: there is none."""
        folder, _ = await asyncio.to_thread(self.find, model, kind, name)
        await asyncio.to_thread(files.remove, folder)
        self._let_go(f"tinker://{model}/{kind}/{name}")

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
            for file in sorted(self._out.glob(f"{model}/{kind}/[!.]*/{_ABOUT}")):
                folder, about = file.parent, _about(file.parent)
                with contextlib.suppress(OSError):  # removed by somebody meanwhile
                    moment, size = file.stat().st_mtime, sum(part.stat().st_size for part in folder.iterdir())
                    if about is not None:
                        whose = folder.parent.parent.name
                        found.append(Kept(whose, kind, folder.name, about, moment, size, _expires(folder)))
        return sorted((one for one in found if not _expired(one.expires)), key=lambda one: one.time)


def _about(folder: Path) -> About | None:
    try:
        return About(**json.loads((folder / _ABOUT).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _expires(folder: Path) -> float | None:
    try:
        return float((folder / _EXPIRES).read_text())
    except (OSError, ValueError):
        return None


def _expired(moment: float | None) -> bool:
    return moment is not None and moment <= time.time()

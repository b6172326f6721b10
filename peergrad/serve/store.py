"""Checkpoints on disk: OUT/MODEL/weights/NAME to go on from, OUT/MODEL/sampler_weights/NAME to sample with."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from peergrad.debate.errors import UserError
from peergrad.runs import files
from peergrad.serve.refusals import Missing

Kind = Literal["weights", "sampler_weights"]
_ABOUT = "serve.json"


@dataclass(frozen=True, slots=True)
class About:
    """What a checkpoint is of."""

    base_model: str
    rank: int
    train_mlp: bool
    train_attn: bool


class Store:
    """Reads and writes checkpoints. Names have been checked: they are no paths."""

    def __init__(self, out: Path) -> None:
        self._out = out

    async def save(
        self, model: str, kind: Kind, name: str, about: About, write: Callable[[Path], Awaitable[None]], *, overwrite: bool
    ) -> str:
        """Keep a checkpoint; it has its name only once it is whole. Returns its path."""
        final = self._out / model / kind / name
        temporary = final.with_name(f".{name}.part")

        def begin() -> None:
            if final.exists() and not overwrite:
                raise UserError(f"path: there is a checkpoint {name!r} already; give another name, or overwrite")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

        def end() -> None:
            (temporary / _ABOUT).write_text(json.dumps(asdict(about)))
            files.publish(temporary, final)

        try:  # a disk may be slow: others are answered meanwhile
            await asyncio.to_thread(begin)
            await write(temporary)
            await asyncio.to_thread(end)
        except OSError as error:
            raise files.cannot_write(final, error) from None
        return f"tinker://{model}/{kind}/{name}"

    def find(self, model: str, kind: str, name: str) -> tuple[Path, About]:
        """Where a checkpoint is, and what it is of. ``Missing``: there is none."""
        folder = self._out / model / kind / name
        try:
            return folder, About(**json.loads((folder / _ABOUT).read_text()))
        except (OSError, ValueError, TypeError):
            raise Missing(f"there is no checkpoint tinker://{model}/{kind}/{name}") from None

    def remove(self, model: str, kind: str, name: str) -> None:
        """Remove a checkpoint. ``Missing``: there is none."""
        files.remove(self.find(model, kind, name)[0])

    def all(self, model: str) -> list[tuple[Kind, str, float]]:
        """Kind, name and time of every checkpoint of a model."""
        return [
            (kind, about.parent.name, about.stat().st_mtime)
            for kind in ("weights", "sampler_weights")
            for about in sorted((self._out / model / kind).glob(f"[!.]*/{_ABOUT}"))
        ]

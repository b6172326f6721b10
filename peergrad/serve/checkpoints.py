"""Checkpoints on disk: OUT/MODEL/weights/NAME to resume from, OUT/MODEL/sampler_weights/NAME to sample with; their lists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import Field, read_json
from peergrad.runs import files
from peergrad.serve.messages import ModelInfo, NotFoundError, Result

if TYPE_CHECKING:
    from peergrad.serve.policies import Policy

_INFO_FILE, _EXPIRY_FILE = "serve.json", "expires"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_PATH = re.compile(rf"tinker://({_NAME})/(weights|sampler_weights)/({_NAME})")
_TYPES = {"weights": "training", "sampler_weights": "sampler"}
_MAX_TTL_S = 10 * 366 * 24 * 3600  # ten years
_MAX_PAGE = 1000

T = TypeVar("T")


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
    expires: float


def _name(field: Field) -> str:
    if not re.fullmatch(_NAME, field.text()):
        field.wrong(f"{field.shown} is no name; give at most 128 letters, digits, '_', '-' and '.', a letter or digit first")
    return field.text()


def _id(field: Field) -> CheckpointId:
    match = _PATH.fullmatch(field.text())
    if not match:
        field.wrong(f"{field.shown} is no checkpoint; give tinker://MODEL/weights/NAME")
    return CheckpointId(*match.groups())


def _ttl_s(request: Field) -> int | None:
    ttl = request.get("ttl_seconds", None)
    return None if ttl.value is None else ttl.whole(1, _MAX_TTL_S)


class CheckpointStore:
    """Reads, writes and lists checkpoints. A run is a policy, with or without checkpoints.

    ``on_change`` is called with each path that stops meaning the same weights.
    """

    def __init__(self, out: Path, on_change: Callable[[str], None], find_policy: Callable[[str], Policy]) -> None:
        files.refuse_links(out)  # somebody may have sent it
        self._out, self._on_change, self._find_policy = out, on_change, find_policy

    async def save(self, policy: Policy, kind: str, request: Field) -> str:
        """Write a checkpoint, as a request has it: its name, whether to overwrite, its time to live. Returns its path.

        Expired checkpoints are removed first. The folder gets its name when all of it is written.
        """
        id, ttl = CheckpointId(policy.id, kind, _name(request["path"])), _ttl_s(request)
        overwrite = request.get("overwrite", False).flag()
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

    async def lookup(self, path: Field) -> tuple[CheckpointId, Path, ModelInfo]:
        """The checkpoint that a path names, its folder and the model it is of."""
        id = _id(path)
        return id, *await asyncio.to_thread(self.find, id)

    def find(self, id: CheckpointId) -> tuple[Path, ModelInfo]:
        """The folder of a checkpoint and the model it is of."""
        folder = self._folder(id)
        info = _info(folder)
        if info is None:
            raise NotFoundError(f"there is no checkpoint {id.path}")
        if _expiry(folder) <= time.time():
            raise NotFoundError(f"the checkpoint {id.path} has expired")
        return folder, info

    async def remove(self, request: Field) -> Result:
        """Remove a checkpoint."""
        id = _listed_id(request)
        folder, _ = await asyncio.to_thread(self.find, id)
        await asyncio.to_thread(files.remove, folder)
        self._on_change(id.path)
        return Result(b"", status=204)

    async def set_ttl(self, request: Field) -> Result:
        """Let a checkpoint expire some seconds from now, or never."""
        await asyncio.to_thread(self._set_ttl, _listed_id(request), _ttl_s(request))
        return Result.json()

    def _set_ttl(self, id: CheckpointId, ttl: int | None) -> None:
        expiry = self.find(id)[0] / _EXPIRY_FILE
        if ttl is not None:
            files.write(expiry, str(time.time() + ttl).encode())
        elif expiry.exists():
            files.unlink(expiry)

    def remove_expired(self) -> list[str]:
        """Remove expired checkpoints. Returns their paths."""
        marked = (folder for folder in self._folders("*", _EXPIRY_FILE) if (folder / _INFO_FILE).exists())
        expired = [folder for folder in marked if _expiry(folder) <= time.time()]
        for folder in expired:
            with contextlib.suppress(EngineError):  # ``find`` ignores it from now on, so it is harmless if it stays
                files.remove(folder)
        return [CheckpointId(*folder.parts[-3:]).path for folder in expired]

    def all(self, model: str = "*") -> list[Checkpoint]:
        """All checkpoints, or all of one model, newest last."""
        checkpoints = list[Checkpoint]()
        for folder in self._folders(model, _INFO_FILE):
            info, expiry = _info(folder), _expiry(folder)
            with contextlib.suppress(OSError):  # removed meanwhile
                saved, size = (folder / _INFO_FILE).stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir())
                if info is not None and expiry > time.time():
                    checkpoints.append(Checkpoint(CheckpointId(*folder.parts[-3:]), info, saved, size, expiry))
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.time)

    async def runs(self, request: Field) -> Result:
        by_model = dict[str, list[Checkpoint]]()
        for checkpoint in await asyncio.to_thread(self.all):
            by_model.setdefault(checkpoint.id.model, []).append(checkpoint)
        newest_first = sorted(by_model.items(), key=lambda run: run[1][-1].time, reverse=True)
        page, cursor = _page(request, newest_first)
        return Result.json(training_runs=[_run(model, saved[-1].info, saved) for model, saved in page], cursor=cursor)

    async def run(self, request: Field) -> Result:
        return Result.json(**_run(*await self._find_run(request)))

    async def checkpoints_of_run(self, request: Field) -> Result:
        _, _, saved = await self._find_run(request)
        return Result.json(checkpoints=[_checkpoint(checkpoint) for checkpoint in saved])

    async def checkpoints(self, request: Field) -> Result:
        page, cursor = _page(request, (await asyncio.to_thread(self.all))[::-1])
        return Result.json(checkpoints=[_checkpoint(checkpoint) for checkpoint in page], cursor=cursor)

    async def _find_run(self, request: Field) -> tuple[str, ModelInfo, list[Checkpoint]]:
        model = _name(request["model"])
        saved = await asyncio.to_thread(self.all, model)
        return model, saved[-1].info if saved else self._find_policy(model).info, saved

    def _folders(self, model: str, file: str) -> list[Path]:
        """The folders of checkpoints that have a file of this name."""
        return [path.parent for kind in _TYPES for path in sorted(self._out.glob(f"{model}/{kind}/[!.]*/{file}"))]

    def _folder(self, id: CheckpointId) -> Path:
        return self._out.joinpath(*id)


def _info(folder: Path) -> ModelInfo | None:
    try:
        return ModelInfo(**read_json(folder / _INFO_FILE))
    except (UserError, TypeError):
        return None


def _expiry(folder: Path) -> float:
    try:
        return float((folder / _EXPIRY_FILE).read_text())
    except (OSError, ValueError):
        return math.inf


def _listed_id(request: Field) -> CheckpointId:
    path = CheckpointId(*(request[part].text() for part in ("model", "kind", "name"))).path
    return _id(Field(path, "request", "path"))


def _page(request: Field, items: list[T]) -> tuple[list[T], dict[str, int]]:
    limit, offset = request.get("limit", 20).whole(0, _MAX_PAGE), request.get("offset", 0).whole(0, 2**62)
    return items[offset:][:limit], {"offset": offset, "limit": limit, "total_count": len(items)}


def _run(model: str, info: ModelInfo, saved: list[Checkpoint]) -> dict[str, Any]:
    newest = {checkpoint.id.kind: _checkpoint(checkpoint) for checkpoint in saved}
    return {
        "training_run_id": model,
        "base_model": info.base_model,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": info.rank,
        "last_request_time": _time(saved[-1].time if saved else time.time()),
        "last_checkpoint": newest.get("weights"),
        "last_sampler_checkpoint": newest.get("sampler_weights"),
        "user_metadata": info.notes,
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    id = checkpoint.id
    return {
        "checkpoint_id": f"{id.kind}/{id.name}",
        "checkpoint_type": _TYPES[id.kind],
        "time": _time(checkpoint.time),
        "tinker_path": id.path,
        "size_bytes": checkpoint.size,
        "expires_at": _time(checkpoint.expires) if math.isfinite(checkpoint.expires) else None,
    }


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

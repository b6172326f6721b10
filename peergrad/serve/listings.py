"""Lists of training runs and of their checkpoints, which can be removed or given a time to live."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from peergrad.debate.fields import Field
from peergrad.serve.checkpoints import Checkpoint, CheckpointId, CheckpointStore, ModelInfo
from peergrad.serve.policies import Policies
from peergrad.serve.requests import checkpoint_id, checkpoint_name, ttl_seconds
from peergrad.serve.results import Result

_TYPES = {"weights": "training", "sampler_weights": "sampler"}
_MAX_PAGE = 1000

T = TypeVar("T")


class Listings:
    """Answers requests about checkpoints on disk. A run is a policy, with or without checkpoints."""

    def __init__(self, store: CheckpointStore, policies: Policies) -> None:
        self._store, self._policies = store, policies

    async def runs(self, request: Field) -> Result:
        by_model = dict[str, list[Checkpoint]]()
        for checkpoint in await asyncio.to_thread(self._store.all):
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
        page, cursor = _page(request, (await asyncio.to_thread(self._store.all))[::-1])
        return Result.json(checkpoints=[_checkpoint(checkpoint) for checkpoint in page], cursor=cursor)

    async def remove(self, request: Field) -> Result:
        await self._store.remove(_id(request))
        return Result(b"", status=204)

    async def set_ttl(self, request: Field) -> Result:
        await asyncio.to_thread(self._store.set_ttl, _id(request), ttl_seconds(request))
        return Result.json()

    async def _find_run(self, request: Field) -> tuple[str, ModelInfo, list[Checkpoint]]:
        model = checkpoint_name(request["model"])
        saved = await asyncio.to_thread(self._store.all, model)
        return model, saved[-1].info if saved else self._policies.find(model).info, saved


def _id(request: Field) -> CheckpointId:
    path = CheckpointId(*(request[part].text() for part in ("model", "kind", "name"))).path
    return checkpoint_id(Field(path, "request", "path"))


def _page(request: Field, items: list[T]) -> tuple[list[T], dict[str, int]]:
    limit, offset = request.get("limit", 20).whole(0, _MAX_PAGE), request.get("offset", 0).whole(0)
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
        "expires_at": None if checkpoint.expires is None else _time(checkpoint.expires),
    }


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

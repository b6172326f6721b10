"""Routes that list training runs and checkpoints, remove checkpoints and set their time to live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from peergrad.debate.fields import Field
from peergrad.serve.checkpoints import Checkpoint, CheckpointId, ModelInfo
from peergrad.serve.requests import checkpoint_id, checkpoint_name, ttl_seconds
from peergrad.serve.service import Service

_TYPES = {"weights": "training", "sampler_weights": "sampler"}
_MAX_PAGE = 1000

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def routes(service: Service, json: Callable[[Request], Awaitable[Field]]) -> list[tuple[str, str, Handler]]:
    """Method, path and handler of each route. ``json`` reads a request's body."""

    async def checkpoints(model: str = "*") -> list[Checkpoint]:
        return await asyncio.to_thread(service.store.all, model)

    async def list_runs(request: Request) -> Response:
        by_model = dict[str, list[Checkpoint]]()
        for checkpoint in await checkpoints():
            by_model.setdefault(checkpoint.id.model, []).append(checkpoint)
        newest_first = sorted(by_model.items(), key=lambda run: run[1][-1].time, reverse=True)
        page, cursor = _page(request, newest_first)
        runs = [_run_json(model, saved[-1].info, saved) for model, saved in page]
        return JSONResponse({"training_runs": runs, "cursor": cursor})

    async def get_run(request: Request) -> Response:
        model = _model(request)
        saved = await checkpoints(model)
        info = saved[-1].info if saved else service.policies.find(model).info
        return JSONResponse(_run_json(model, info, saved))

    async def list_run_checkpoints(request: Request) -> Response:
        model = _model(request)
        saved = await checkpoints(model)
        if not saved:
            service.policies.find(model)
        return JSONResponse({"checkpoints": [_checkpoint_json(checkpoint) for checkpoint in saved]})

    async def list_checkpoints(request: Request) -> Response:
        page, cursor = _page(request, (await checkpoints())[::-1])
        return JSONResponse({"checkpoints": [_checkpoint_json(checkpoint) for checkpoint in page], "cursor": cursor})

    async def remove(request: Request) -> Response:
        await service.store.remove(_id(request))
        return Response(status_code=204)

    async def set_ttl(request: Request) -> Response:
        await asyncio.to_thread(service.store.set_ttl, _id(request), ttl_seconds(await json(request)))
        return JSONResponse({})

    checkpoint = "training_runs/{model}/checkpoints/{kind}/{name}"
    return [
        ("GET", "training_runs", list_runs),
        ("GET", "training_runs/{model}", get_run),
        ("GET", "training_runs/{model}/checkpoints", list_run_checkpoints),
        ("GET", "checkpoints", list_checkpoints),
        ("DELETE", checkpoint, remove),
        ("PUT", f"{checkpoint}/ttl", set_ttl),
    ]


def _model(request: Request) -> str:
    return checkpoint_name(Field(request.path_params["model"], "request", "model_id"))


def _id(request: Request) -> CheckpointId:
    path = CheckpointId(**request.path_params).path
    return checkpoint_id(Field(path, "request", "path"))


def _page(request: Request, items: list[T]) -> tuple[list[T], dict[str, int]]:
    limit, offset = (_count(request, name, default) for name, default in (("limit", 20), ("offset", 0)))
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return items[offset:][:limit], cursor


def _count(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    number = int(text) if len(text) < 10 and text.isascii() and text.isdigit() else text
    return Field(number, "request", name).whole(0, _MAX_PAGE if name == "limit" else None)


def _run_json(model: str, info: ModelInfo, saved: list[Checkpoint]) -> dict[str, Any]:
    newest = {checkpoint.id.kind: _checkpoint_json(checkpoint) for checkpoint in saved}
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


def _checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
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

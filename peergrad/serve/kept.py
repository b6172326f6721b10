"""The addresses at which checkpoints and what they are of can be listed, removed and given an end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from peergrad.debate.fields import Field
from peergrad.serve.requests import seconds
from peergrad.serve.service import Service
from peergrad.serve.store import About, Kept

_TYPES = {"weights": "training", "sampler_weights": "sampler"}
_MOST_LISTED = 1000

T = TypeVar("T")
Route = tuple[str, str, Callable[[Request], Awaitable[Response]]]


def routes(service: Service, fields: Callable[[Request], Awaitable[Field]]) -> list[Route]:
    """Method, path and handler of each."""

    async def run(request: Request) -> Response:
        model = _model(request)
        return JSONResponse(_run(model.text(), *await service.run(model)))

    async def runs(request: Request) -> Response:
        by_model = dict[str, list[Kept]]()
        for one in await service.checkpoints():
            by_model.setdefault(one.model, []).append(one)
        shown, cursor = _page(request, sorted(by_model.values(), key=lambda kept: kept[-1].time, reverse=True))
        listed = [_run(kept[-1].model, kept[-1].about, kept) for kept in shown]
        return JSONResponse({"training_runs": listed, "cursor": cursor})

    async def of_run(request: Request) -> Response:
        _, kept = await service.run(_model(request))
        return JSONResponse({"checkpoints": [_checkpoint(one) for one in kept]})

    async def everything(request: Request) -> Response:
        shown, cursor = _page(request, (await service.checkpoints())[::-1])
        return JSONResponse({"checkpoints": [_checkpoint(one) for one in shown], "cursor": cursor})

    async def forget(request: Request) -> Response:
        await service.forget(_path(request))
        return Response(status_code=204)

    async def limit(request: Request) -> Response:
        await service.limit(_path(request), seconds(await fields(request)))
        return JSONResponse({})

    one = "training_runs/{model}/checkpoints/{kind}/{name}"
    return [
        ("GET", "training_runs", runs),
        ("GET", "training_runs/{model}", run),
        ("GET", "training_runs/{model}/checkpoints", of_run),
        ("GET", "checkpoints", everything),
        ("DELETE", one, forget),
        ("PUT", f"{one}/ttl", limit),
    ]


def _model(request: Request) -> Field:
    return Field(request.path_params["model"], "request", "model_id")


def _path(request: Request) -> Field:
    parts = request.path_params
    return Field(f"tinker://{parts['model']}/{parts['kind']}/{parts['name']}", "request", "path")


def _page(request: Request, found: list[T]) -> tuple[list[T], dict[str, int]]:
    limit, offset = (_count(request, name, usual) for name, usual in (("limit", 20), ("offset", 0)))
    cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
    return found[offset:][:limit], cursor


def _count(request: Request, name: str, usual: int) -> int:
    given = request.query_params.get(name, str(usual))
    number = int(given) if len(given) < 10 and given.isascii() and given.isdigit() else given
    return Field(number, "request", name).whole(0, _MOST_LISTED if name == "limit" else None)


def _run(model: str, about: About, kept: list[Kept]) -> dict[str, Any]:
    last = {one.kind: _checkpoint(one) for one in kept}
    return {
        "training_run_id": model,
        "base_model": about.base_model,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": about.rank,
        "last_request_time": _time(kept[-1].time if kept else time.time()),
        "last_checkpoint": last.get("weights"),
        "last_sampler_checkpoint": last.get("sampler_weights"),
        "user_metadata": about.notes,
    }


def _checkpoint(one: Kept) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{one.kind}/{one.name}",
        "checkpoint_type": _TYPES[one.kind],
        "time": _time(one.time),
        "tinker_path": one.path,
        "size_bytes": one.size,
        "expires_at": None if one.expires is None else _time(one.expires),
    }


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

"""The command ``peergrad serve``: the local engine behind the protocol of the tinker client."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from peergrad.cli.main import Inline, say
from peergrad.debate.errors import UserError
from peergrad.debate.settings import Range, check_settings, install_hint
from peergrad.engines.base import EngineConfig
from peergrad.engines.shared.servers import is_loopback

KEY_ENV = "PEERGRAD_SERVE_KEY"
_BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ServeConfig(EngineConfig):
    """What is served, and to whom: a model of the local engine, with its settings."""

    engine: Annotated[Literal["local"], tyro.conf.Fixed, tyro.conf.Suppress] = "local"
    base_url: Annotated[None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    deadline_s: Annotated[float, tyro.conf.Fixed, tyro.conf.Suppress] = 1800.0
    model: str = "smollm2"
    """An alias (smollm2), a hub id, a folder, or a GGUF file. Clients name it in the same words."""
    out: Path = Path("served")
    """Where checkpoints are kept."""
    host: str = "127.0.0.1"
    """The address to listen at. Any other than this machine's own needs a key, in the environment (PEERGRAD_SERVE_KEY)."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """And its port; 0 takes a free one."""
    train_tokens: Annotated[int | None, Range(1)] = None
    """Tokens of a micro-batch, halved when memory runs out; unset, 4096 on a CPU and what a GPU has room for."""
    max_models: Annotated[int, Range(1)] = 8
    """How many models may be trained at the same time."""
    max_samplers: Annotated[int, Range(1)] = 32
    """How many samplers are kept in memory; those with a name are loaded again when they are asked for."""

    def __post_init__(self) -> None:
        check_settings(self)


def command(settings: Annotated[ServeConfig, Inline] = ServeConfig()) -> None:  # noqa: B008 (frozen)
    """Serve a model to programs that train with the tinker client: the local engine behind its protocol.

    Args:
        settings: Everything that can be set.
    """
    key = _key(settings.host)
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: {settings.out} can't be made ({error.strerror}); give a folder you may write to") from None
    bound = bound_socket(settings.host, settings.port)
    try:
        from peergrad.engines.local.engine import Local
        from peergrad.engines.local.fetch.models import tokenizer_of
        from peergrad.serve.app import Service, application
        from peergrad.serve.connections import max_open, server
    except ImportError as error:
        raise UserError(f"serve: needs {error.name}; {install_hint('local', 'tinker', 'web')}") from None

    say(f"loading {settings.model}")
    names = ("device", "dtype", "threads", "kv_gb", "max_rows", "train_tokens")
    options = {name: getattr(settings, name) for name in names}
    engine = Local.load_model(settings.model, **options, policies=settings.max_models, say=say)
    limits = {"max_models": settings.max_models, "max_samplers": settings.max_samplers}
    service = Service(engine, settings.model, settings.out, tokenizer=tokenizer_of(settings.model), **limits)
    where, port = f"[{settings.host}]" if ":" in settings.host else settings.host, bound.getsockname()[1]
    app = application(service, key, loopback=where if is_loopback(settings.host) else None)
    say(f"serving {settings.model} at http://{where}:{port}; Ctrl-C stops")
    with contextlib.suppress(KeyboardInterrupt):
        server(app, max_open()).run(sockets=[bound])
    raise KeyboardInterrupt  # stopped once or twice, while it did this or that: the exit code is one


def _key(host: str) -> str | None:
    """The key clients must send. Only this machine may be served without one."""
    key = os.environ.get(KEY_ENV, "").strip()
    if key and not re.fullmatch(r"tml-[\x21-\x7e]{4,}", key):
        raise UserError(f"{KEY_ENV}: holds no key that clients take; it must begin with tml- and have no spaces")
    if not key and not is_loopback(host):
        raise UserError(f"host: {host} can be reached from elsewhere; put a key that begins with tml- into {KEY_ENV}")
    return key or None


def bound_socket(host: str, port: int) -> socket.socket:
    """The socket, before anything slow is done."""
    if not 0 <= port <= 65535:
        raise UserError(f"port: {port} is not possible; give a whole number from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named as TCP, or else asyncio does not turn off the delay of small packets, and each answer takes 40 ms longer.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # or another server could still have it, and both would find out once they have a model
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"host: can't listen at {host}, port {port} ({why}); give another") from None
    return bound

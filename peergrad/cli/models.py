"""The command ``peergrad models``."""

from __future__ import annotations

from peergrad.cli.flags import say
from peergrad.debate.quote import visible
from peergrad.engines.local.fetch import models  # needs no torch until something is converted


def command(get: str | None = None) -> None:
    """List the built-in models and what is in the cache.

    Args:
        get: Download and convert a model now: an alias, a hub id or a GGUF file. A later run then starts quickly.
    """
    if get is not None:
        say(f"{get} is ready in {models.resolve(get, say=say)}.")
        return
    print("Built in:")
    for model in models.MODELS.values():
        print(f"  {model.alias:<12} {model.title}, {model.licence}, {model.megabytes} MB to download")
    print(f"In the cache ({models.cache()}):")
    for held in models.cached():
        state = "" if held.problem is None else f", to be made again: {held.problem}"
        print(f"  {visible(held.name):<12} {held.bytes / 1e6:.0f} MB{visible(state)}")
    print("Any Hugging Face folder, hub id or GGUF file works too; --get NAME fetches and converts one now.")

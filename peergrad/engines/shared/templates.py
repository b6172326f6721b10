"""Chat templates, rendered in a process of their own, which may not run for long nor, on Linux, take much memory.

A template is a program, and comes with a model that anybody may have made. It sees no words, only who speaks after whom, so
it has little to say: dialogues of about one length are rendered together, in a fresh process, and remembered. A copy of this
process would not do: made beside threads, it may wait for a lock that nobody will release (docs/log.md).

What keeps a template from files and keys is the sandbox of jinja. That the process has no keys in its environment comes
second: it runs as the same user, who may read the environment of the process that began it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from peergrad.debate.errors import EngineError, UserError
from peergrad.engines.shared.template_worker import DID_NOT_START, TOO_MUCH

_WALL_S = 300  # the worker bounds its own time; this is for one that sleeps
_TOGETHER = 16  # lengths of dialogues that are rendered at once
_NEEDED = ("PATH", "LD_LIBRARY_PATH")  # of the environment, to start at all: a template has no business with keys

Shape: TypeAlias = tuple[tuple[str, ...], bool]
"""What a template knows of a dialogue: who speaks after whom, and whether a reply is to follow."""


@cache
def template_of(text: str, names: str) -> Template:
    """The template of this text, with the names it may use as JSON; one for all models that have the same."""
    return Template(text, names)


class Template:
    """A chat template, and what it made of dialogues so far."""

    def __init__(self, text: str, names: str) -> None:
        self._text, self._names = text, json.loads(names)
        self._made: dict[Shape, tuple[str | None, str]] = {}

    def render(self, roles: Sequence[str], generate: bool) -> str:
        """A dialogue in which these speak one after another. The words of message ``i`` are a hole: ``HOLE.format(i)``."""
        shape = (tuple(roles), generate)
        if shape not in self._made:
            self._made |= self._rendered([shape, *(one for one in _usual(len(roles)) if one != shape)])
        made, why = self._made[shape]
        if made is None:
            raise UserError(f"model: its chat template refuses a system, user, assistant dialogue ({why})")
        return made

    def _rendered(self, shapes: Sequence[Shape]) -> dict[Shape, tuple[str | None, str]]:
        asked = {"path": [folder or os.getcwd() for folder in sys.path], "template": self._text}
        asked |= {"names": self._names, "shapes": shapes}
        command = [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))]
        env = {name: os.environ[name] for name in _NEEDED if name in os.environ}
        said = {"input": json.dumps(asked).encode(), "capture_output": True, "timeout": _WALL_S}
        try:
            # In a session of its own: Ctrl-C is for this process.
            done = subprocess.run(command, env=env, start_new_session=True, check=True, **said)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            code = error.returncode if isinstance(error, subprocess.CalledProcessError) else -signal.SIGXCPU
            said = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
            if code == DID_NOT_START:
                raise EngineError(f"model: the process that renders its chat template can't be started ({said})") from None
            if why := {TOO_MUCH: "takes too much memory", -signal.SIGXCPU: "does not end"}.get(code):
                raise UserError(f"model: its chat template {why}; use another model, or mend chat_template") from None
            how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise EngineError(
                f"model: the process that renders its chat template {how}{said and f' ({said[:200]})'}; "
                "try again, or use another model"
            ) from None
        return dict(zip(shapes, map(tuple, json.loads(done.stdout)), strict=True))


def _usual(length: int) -> list[Shape]:
    """What is most likely asked for, next to a dialogue of this length: in turn, with or without instructions."""
    start = (length - 1) // _TOGETHER * _TOGETHER
    turns = [("user", "assistant")[i % 2] for i in range(start + _TOGETHER)]
    usual: list[Shape] = []
    for begun in (["system", *turns], turns, turns[1:]):
        lengths = range(start + 1, min(start + _TOGETHER, len(begun)) + 1)
        usual += [(tuple(begun[:n]), begun[n - 1] != "assistant") for n in lengths]
    return usual

"""Servers that debate as told, and the real command against them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tests import commands
from tests.helpers import full, short
from tests.openai.server import Request, Response, completion, events

ROOT = Path(__file__).parent.parent.parent
PEERGRAD = [sys.executable, "-m", "peergrad"]


def seat(request: Request) -> int | None:
    """Who is asked; ``None`` is the judge."""
    found = re.search(r"You are Agent (\d+)", request.body["messages"][0]["content"])
    return int(found[1]) if found else None


def asked(request: Request) -> str:
    """The question that a request is about."""
    shown = request.body["messages"][1]["content"]
    return shown.partition("Question:\n")[2].partition("\n")[0]


def round_of(request: Request) -> int:
    return len(request.body["messages"]) // 2 - 1


def said(request: Request, solution: str = "", best: int = 2) -> str:
    """Everybody votes for one agent against every other, and answers a question in a box with its own number."""
    who = seat(request)
    first = who is not None and " said in round " not in request.body["messages"][-1]["content"]  # nobody is quoted
    others = [agent for agent in range(3) if agent not in (best, who)]
    votes = "N/A" if first or who == best else "\n".join(f"Agent {best} > Agent {agent}" for agent in others)
    if who is None:
        return f"<evaluation>All fine.</evaluation><comparison>{votes}</comparison>"
    sequential = "consensus_reason" in request.body["messages"][-1]["content"]
    return (full if sequential else short)(votes, solution or f"I am {who}: \\boxed{{{who}}}", f"Agent {who} has read it.")


def replying(text: Callable[[Request], str], **more) -> Callable[[Request], Response]:
    """Answers with a text, as a stream where asked to."""

    def handle(request: Request) -> Response:
        whole = text(request)
        if request.body.get("stream"):
            made = events([whole[at : at + 5] for at in range(0, len(whole), 5)])
            return Response(made.content, headers=made.headers, **more)
        return Response(completion(whole), **more)

    return handle


def peergrad(*args: object, cwd: Path, stdin: str = "", env: dict | None = None):
    """The command as a person runs it, in an empty folder of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environ |= {"PYTHONPATH": str(ROOT), "COLUMNS": "100"} | (env or {})
    return commands.peergrad(*args, cwd=cwd, stdin=stdin, env=environ)


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]

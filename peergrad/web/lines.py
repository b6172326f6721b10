"""Lines of a transcript: where each begins, and a debate from one without its tokens, which are most of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from peergrad.debate.errors import UserError
from peergrad.debate.transcript import load, replace_tokens
from peergrad.debate.types import Debate, only_text

MOST_BYTES = 32 * 2**20  # of a line
_PROMPT, _IDS = b'"prompt": [', b'"ids": ['
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line of a file; ``text`` is ``None`` if it is too long. ``whole``: it has its end."""

    offset: int
    length: int
    text: bytes | None
    whole: bool


def lines(file: IO[bytes], offset: int) -> Iterator[Line]:
    """The lines of a file from here on, blank ones left out."""
    file.seek(offset)
    while text := file.readline(MOST_BYTES):
        start, length, whole = offset, len(text), text.endswith(b"\n")
        too_long = False
        while not whole and length >= MOST_BYTES and (more := file.readline(2**20)):
            too_long, whole, length = True, more.endswith(b"\n"), length + len(more)
        offset += length
        text = text.removeprefix(_BOM) if start == 0 else text
        if too_long or not text.isspace():
            yield Line(start, length, None if too_long else text, whole)


def load_light(text: bytes, where: str) -> Debate:
    """The debate of a line with its prompts and without its tokens, but with how many there were: ten times as fast."""
    if b'"payload"' in text:  # where tokens may be anything
        return load(text, where)
    try:
        debate: Any = json.loads(replace_tokens(text, _counts))
        turns = [turn for turn in debate["turns"] if isinstance(turn, dict)]
        used: list[tuple[int, int] | None] = []
        for turn in turns:
            used.append(_used(turn.pop("tokens", None), used))
            if used[-1]:
                turn["usage"] = dict(zip(("prompt", "sampled"), used[-1], strict=True))
        for turn in [*turns, *filter(None, [debate.get("verdict")])]:
            turn.pop("tokens", None)
            for message in turn.get("asked", ()):
                message.pop("tokens", None)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
        return load(text, where)  # says what is wrong
    try:
        return load(json.dumps(debate), where)
    except RecursionError:
        raise UserError(f"{where}: can't be read as JSON; it is nested too deeply") from None


def said(debate: Debate) -> list[str]:
    """What was asked and said: the question, then every turn, then a judge's verdict."""
    return [debate.question.text, *(turn.text for turn in debate.turns), *([debate.verdict.text] if debate.verdict else [])]


def said_in(text: bytes) -> list[str]:
    """What was asked and said in a line that a debate could be read from before; nothing if that is no longer so."""
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        debate: Any = json.loads(replace_tokens(text, _counts) if b'"payload"' not in text else text)
        verdict = [debate["verdict"]["text"]] if "verdict" in debate else []
        texts = [debate["question"], *(turn["text"] for turn in debate["turns"]), *verdict]
        return [only_text(one) for one in texts]
    return []


def _counts(held: bytes) -> bytes | None:
    """The number of tokens in place of lists of them."""
    if _PROMPT not in held or _IDS not in held:
        return None
    continues = held[: held.find(_PROMPT)]  # empty, or what it continues and a comma
    return continues + b'"prompt": %d, "ids": %d' % (_count(held, _PROMPT), _count(held, _IDS))


def _count(held: bytes, name: bytes) -> int:
    start = held.find(name) + len(name)
    numbers = held[start : held.find(b"]", start)]
    return numbers.count(b",") + 1 if numbers.strip() else 0


def _used(tokens: Any, before: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """How many tokens a turn read and sampled."""
    if not isinstance(tokens, dict):
        return None
    prompt, sampled = (len(held) if isinstance(held := tokens[name], list) else int(held) for name in ("prompt", "ids"))
    earlier = before[tokens["continues"]] if "continues" in tokens else (0, 0)
    return (prompt + sum(earlier or (0, 0)), sampled)

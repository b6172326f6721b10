"""Questions as a person types them: one, or one a line."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from peergrad.debate.errors import UserError
from peergrad.debate.style import Style
from peergrad.debate.types import Question


def typed_questions(texts: Sequence[str], style: Style, origin: str) -> tuple[Question, ...]:
    """A question of each text that is not blank. It is called by its first words and a hash, so that the same words always
    mean the same question; one that is asked twice gets a number.

    Example: ``typed_questions(["What is 17 + 25?"], OPEN, "question")[0].id == "what-is-17-25-ec7a5a"``
    """
    seen: Counter[str] = Counter()
    asked: list[Question] = []
    for text in filter(None, (text.strip() for text in texts)):
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise UserError(f"{origin}: holds bytes that are not text; give plain UTF-8 text")
        name = name_of(text)
        seen[name] += 1
        asked.append(Question(name if seen[name] == 1 else f"{name}-{seen[name]}", text, style=style))
    if not asked:
        raise UserError(f"{origin}: is empty; give at least one question")
    return tuple(asked)


def lines_of(raw: bytes, origin: str) -> list[str]:
    """The lines of a text file."""
    try:
        return re.split(r"\r\n|\r|\n", raw.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{origin}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def name_of(text: str, words: int = 6) -> str:
    """A name for a text, fit for a file: its first words and a hash of all of it."""
    plain = re.findall(r"[a-z0-9]+", text.lower())[:words]
    hashed = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    return "-".join([*(word[:20] for word in plain), hashed])

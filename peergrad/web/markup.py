"""Markup that only this code can write: whatever is not ``Safe`` is text, and text is escaped.

Model text is hostile. Nothing here trusts a caller to remember that: a plain string can't become an element or an
attribute, and joining markup with anything by ``+`` or an f-string gives a plain string again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from peergrad.debate.quote import visible

# Controls, what is invisible, and what changes the direction of the text around it. Joiners stay: scripts need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


class Safe(str):
    """Markup made by ``tag``."""

    __slots__ = ()


Child = str | None | Iterable[str | None]


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Safe:
    """An element. Children are text unless ``Safe``; an attribute of ``None`` is left out; ``class_`` is ``class``.

    Example: ``tag("p", "a < b", class_="note") == '<p class="note">a &lt; b</p>'``
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name == "meta":  # it has no end
        return Safe(f"<{name}{written}>")
    return Safe(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Safe:
    """Children one after another."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, str):
            parts.append(child if isinstance(child, Safe) else text(child))
        elif child is not None:
            parts.append(join(*child))
    return Safe("".join(parts))


def text(raw: str) -> Safe:
    """Text that shows what it holds and does nothing: hidden characters become signs, the rest is escaped."""
    shown = _HIDDEN.sub(_sign, raw.replace("\r\n", "\n"))
    return Safe(html.escape("\n".join(map(visible, shown.split("\n"))), quote=True))


def clip(raw: str, most: int) -> tuple[str, str | None]:
    """The beginning of a text, and a notice if that is not all of it."""
    if len(raw) <= most:
        return raw, None
    return raw[:most], f"… cut here: {most:,} of {len(raw):,} characters"


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"

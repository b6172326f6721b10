"""What is answered instead of a result; each has a status of its own."""

from __future__ import annotations

from peergrad.debate.errors import UserError


class Missing(UserError):  # noqa: N818
    """There is no such thing here: 404."""


class Gone(UserError):  # noqa: N818
    """There was such a thing, and is no more: 410."""


class Busy(Exception):  # noqa: N818
    """There is no room now; there may be later: 429."""

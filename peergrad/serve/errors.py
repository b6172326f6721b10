"""Errors of the service, each with its HTTP status."""

from __future__ import annotations

from peergrad.debate.errors import UserError


class NotFoundError(UserError):
    """404: there is no such session, model, sampler, checkpoint or request."""


class GoneError(UserError):
    """410: it existed and was removed."""


class BusyError(Exception):
    """429: the server is at a limit; clients retry."""

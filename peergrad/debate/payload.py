"""Data that a question carries for its grader: JSON that can't be changed, so that questions stay hashable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from peergrad.debate.errors import UserError

_DEEPEST = 100


class FrozenDict(Mapping[str, Any]):
    """A dict that can't be changed. ``json.dumps(…, default=dict)`` writes it."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(value: Any, depth: int = 0) -> Any:
    """JSON-like data that can't be changed: lists become tuples, dicts ``FrozenDict``. Anything else is refused."""
    if depth > _DEEPEST:
        raise UserError(f"payload: is nested more than {_DEEPEST} deep")
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        if not all(isinstance(name, str) for name in items):
            raise UserError("payload: a name is not text; give what JSON can hold")
        return FrozenDict({name: frozen(item, depth + 1) for name, item in items.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(item, depth + 1) for item in cast("list[Any]", value))
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise UserError(f"payload: {str(value)[:60]!r} ({type(value).__name__}) is nothing that JSON can hold")

"""Rows of a dataset from the hub, by the library ``datasets``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.fields import Field
from peergrad.tasks.datasets import Dataset
from peergrad.tasks.rows import Row


def hub_rows(dataset: Dataset, split: str) -> Iterator[Row]:
    """Every row of a split, downloaded or from the cache."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError:
        how = f"pip install 'peergrad[datasets]', or give its file: {dataset.name}:PATH"
        raise UserError(f"task: to get {dataset.name} from the hub needs the library datasets; {how}") from None
    try:
        library.disable_progress_bars()
        split_rows = library.load_dataset(dataset.hub, dataset.config, split=split)
    except Exception as error:  # of the network, of the hub, of the disk: the library has dozens
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        how = f"try again, or give its file: {dataset.name}:PATH"
        raise EngineError(f"task: {dataset.hub} can't be had from the hub ({why}); {how}") from None
    for number, value in enumerate(split_rows, 1):
        yield number, Field(value, f"{dataset.hub}, {split}, row {number}")

"""What the files of a model say of its size, checked before anybody makes room for it: a folder may come from anywhere."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from peergrad.debate.errors import UserError

_MAX_CONFIG_BYTES = 2**24
# The numbers of a config that decide how much is computed and allocated, and the most that any model may have.
_MOST = {
    "num_hidden_layers": 1000, "n_layer": 1000, "num_layers": 1000, "hidden_size": 2**17, "n_embd": 2**17,
    "intermediate_size": 2**20, "n_inner": 2**20, "vocab_size": 2**22, "num_attention_heads": 2**12, "n_head": 2**12,
    "num_key_value_heads": 2**12, "head_dim": 2**12, "max_position_embeddings": 2**24, "n_positions": 2**24,
}  # fmt: skip
_WEIGHTS_PER_BYTE = 16  # more than any file of weights has

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a GGUF's value, by its type
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 2**23  # of all arrays of a GGUF; the largest vocabularies have less than half as many


def check_config(folder: Path, name: str) -> None:
    """Refuse a folder whose config.json can't be that of a model with these files of weights."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"model: {name!r} has a config.json that can't be read; get it again")
    files = [file for kind in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(kind)]
    stored = _WEIGHTS_PER_BYTE * sum(file.stat().st_size for file in files)
    for part in (config, *(config[key] for key in ("text_config",) if isinstance(config.get(key), dict))):
        for key, most in _MOST.items():
            value = part.get(key)
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                shown = json.dumps(value)[:40]
                raise UserError(f"model: {name!r} says {key} {shown} in its config.json, which no model has; get it again")
        layers, hidden, words = (_first(part, *keys) for keys in (_LAYERS, _HIDDEN, ("vocab_size",)))
        if stored and max(layers * hidden * hidden, words * hidden) > stored:
            raise UserError(f"model: {name!r} has a config.json of a larger model than its weights are; get it again")


_LAYERS, _HIDDEN = ("num_hidden_layers", "n_layer", "num_layers"), ("hidden_size", "n_embd")


def _first(config: dict[str, Any], *keys: str) -> int:
    return next((config[key] for key in keys if config.get(key) is not None), 0)


def check_gguf(path: Path) -> None:
    """Raise ``ValueError`` if the header of a GGUF names more than the file holds: its reader believes every count."""
    size = path.stat().st_size
    with path.open("rb") as file:
        _, _, tensors, fields = struct.unpack("<IIQQ", _read(file, 24, size))
        entries = 0
        for _ in range(_count(fields, 13, file, size)):
            _skip_text(file, size)
            (kind,) = struct.unpack("<I", _read(file, 4, size))
            entries += _skip_value(file, kind, size)
            if entries > _MAX_ENTRIES:
                raise ValueError(f"its header has more than {_MAX_ENTRIES:,} entries")
        _count(tensors, 24, file, size)


def _skip_value(file: BinaryIO, kind: int, size: int) -> int:
    """Read past a value, and say how many entries it has."""
    if kind == _STRING:
        _skip_text(file, size)
    elif kind == _ARRAY:
        entry, count = struct.unpack("<IQ", _read(file, 12, size))
        _count(count, _SCALARS.get(entry, 8), file, size)
        if entry in _SCALARS:
            file.seek(count * _SCALARS[entry], 1)
        elif entry == _STRING and count <= _MAX_ENTRIES:
            for _ in range(count):
                _skip_text(file, size)
        else:
            raise ValueError(f"its header has an array of the type {entry} with {count:,} entries")
        return count
    else:
        _read(file, _SCALARS.get(kind, size), size)
    return 1


def _skip_text(file: BinaryIO, size: int) -> None:
    (length,) = struct.unpack("<Q", _read(file, 8, size))
    file.seek(_count(length, 1, file, size), 1)


def _read(file: BinaryIO, count: int, size: int) -> bytes:
    return file.read(_count(count, 1, file, size))


def _count(count: int, least: int, file: BinaryIO, size: int) -> int:
    """A count of things of at least so many bytes, which the rest of the file must hold."""
    if count * least > size - file.tell():
        raise ValueError(f"its header names {count:,} entries, but the file ends before them")
    return count

"""Updates that a run skipped, saved as NumPy arrays that reproduce them (docs/reference/run.md)."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peergrad.debate.errors import UserError
from peergrad.learn.data import Datum
from peergrad.runs import files
from peergrad.runs.folder import Progress, Run

MOST_FILES = 8
MOST_BYTES = 4_000_000
_MOST_UNPACKED = 64_000_000  # bytes of an array: a small file must not fill the memory
_COLUMNS: dict[str, type[np.generic]] = {
    "inputs_T": np.int32,
    "targets_T": np.int32,
    "logprobs_T": np.float32,
    "advantages_T": np.float32,
    "mask_T": np.float32,
    "temperatures_T": np.float32,
}


def save_skipped(run: Run, at: Progress, place: int, data: Sequence[Datum], about: Mapping[str, Any]) -> Path | str:
    """Save the ``place``-th skipped update of a step. Returns the file, or why there is none."""
    folder = run.path / "skipped"
    if len(run.skipped_updates()) >= MOST_FILES:
        return f"{folder} has {MOST_FILES} such already"
    count, content = len(data), b""  # all sequences if they fit, else the first half of them, or of that
    while count and len(content := _packed(data[:count], about, left_out=len(data) - count)) > MOST_BYTES:
        count //= 2
    if not count:
        return "its sequences are too long to keep"
    path = folder / f"{at.name}{f'.{place}' if place > 1 else ''}.npz"
    with files.writing(path):
        folder.mkdir(exist_ok=True)
    files.write(path, content)
    return path


def read_skipped(path: Path) -> list[Datum]:
    """The sequences of a file that ``peergrad train`` wrote to ``skipped``.

    Example: ``read_skipped(Path("runs/demo/skipped/step_000007.npz"))``
    """
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(str(_array(archive, "about", np.str_, axes=0)))
            columns = {name: _array(archive, name, dtype, axes=1) for name, dtype in _COLUMNS.items()}
        return _sequences(about["data"], columns)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from None
    except Exception:  # a file made to do harm can have these readers raise nearly anything
        raise UserError(f"{path}: is no file of skipped updates, or damaged") from None


def _packed(data: Sequence[Datum], about: Mapping[str, Any], left_out: int) -> bytes:
    sequences = [{"debate": d.debate, "agent": d.agent, "turns": list(d.turns), "tokens": len(d)} for d in data]
    text = json.dumps({"format": 1} | dict(about) | {"left_out": left_out, "data": sequences})
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(datum, name) for datum in data] or [[]]).astype(dtype)
        for name, dtype in _COLUMNS.items()
    }
    packed = io.BytesIO()
    np.savez_compressed(packed, about=np.array(text), **columns)
    return packed.getvalue()


def _array(archive: zipfile.ZipFile, name: str, dtype: type[np.generic], axes: int) -> npt.NDArray[Any]:
    member = archive.getinfo(f"{name}.npy")
    # Of other kinds of packing zipfile unpacks more than the size it is told.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.file_size > _MOST_UNPACKED:
        raise ValueError(name)
    array = np.load(io.BytesIO(archive.read(member)), allow_pickle=False)
    if array.ndim != axes or not np.issubdtype(array.dtype, dtype):
        raise ValueError(name)
    return array.astype(dtype, copy=False)  # in this machine's byte order


def _sequences(listed: Sequence[Mapping[str, Any]], columns: Mapping[str, npt.NDArray[Any]]) -> list[Datum]:
    data: list[Datum] = []
    start = 0
    for one in listed:
        debate, agent, turns, tokens = one["debate"], one["agent"], one["turns"], one["tokens"]
        if not isinstance(debate, str) or not all(type(n) is int and n >= 0 for n in (agent, tokens, *turns)):
            raise ValueError("about")
        part = {name: column[start : start + tokens] for name, column in columns.items()}
        start += tokens
        data.append(Datum(debate=debate, agent=agent, turns=tuple(turns), **part))
    if {len(column) for column in columns.values()} != {start}:
        raise ValueError("lengths")
    return data

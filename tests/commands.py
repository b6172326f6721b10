"""``peergrad`` as a person types it, in a process of its own: forked from one that has everything imported, since most of
a start of a few seconds is imports. That one has no threads and has loaded no model.

``python -m tests.commands`` takes commands as lines of JSON.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ONE_AT_A_TIME = threading.Lock()
MAIN = ROOT / "peergrad" / "__main__.py"
PARROT = ROOT / "tests" / "fixtures" / "parrot"


def peergrad(
    *arguments: object, cwd: Path | None = None, stdin: str = "", env: dict | None = None, killed_at: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; its exit code, negative for a signal, and what it said. ``env`` is all it gets. Killed as
    by ``kill -9`` as soon as there is a file or folder ``killed_at``.
    """
    argv, farm = [str(one) for one in arguments], _farm()
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{name}" for name in ("stdin", "stdout", "stderr")]
        Path(files[0]).write_text(stdin)
        job = {"argv": argv, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env), "files": files}
        job["killed_at"] = str(killed_at or "")
        with _ONE_AT_A_TIME:
            farm.stdin.write(json.dumps(job) + "\n")
            farm.stdin.flush()
            code = json.loads(farm.stdout.readline())
        return subprocess.CompletedProcess(argv, code, *(Path(file).read_text() for file in files[1:]))


@functools.cache
def _farm() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.commands"]
    farm = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(lambda: (farm.stdin.close(), farm.wait()))
    return farm


def _become(job: dict) -> None:
    """Be the command. It ends as any process does, but that memory which is its parent's too is not cleared away."""
    os.setsid()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    for number, file in enumerate(job["files"]):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    sys.stdin = os.fdopen(0)
    sys.argv[:] = [str(MAIN), *job["argv"]]
    sys.path[:0] = [job["cwd"], *filter(None, job["env"].get("PYTHONPATH", "").split(os.pathsep))]
    if job["killed_at"]:
        sys.addaudithook(functools.partial(_die, job["killed_at"]))  # told before whatever is opened, renamed, imported
    from peergrad.cli.main import main

    try:
        main()
    except SystemExit as left:
        threading._shutdown()
        atexit._run_exitfuncs()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code or 0)


def _die(there: str, event: str, _: object) -> None:
    if event != "os.kill" and os.path.exists(there):
        os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401

    import peergrad.cli.train
    import peergrad.engines.local.engine  # noqa: F401
    from peergrad.engines.shared.chat import load_chat

    load_chat(str(PARROT))  # renders its chat template, which takes a process, for all of them
    gc.collect()
    gc.freeze()  # else every collection in a child looks through, and copies, half a gigabyte
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _become(json.loads(line))
            return
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()

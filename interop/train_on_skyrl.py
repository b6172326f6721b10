"""Self-play on a distributed engine that nobody here wrote: SkyRL, on this machine's CPU. Opt-in: ``make interop-skyrl``.

Runs in .venv-skyrl. ``peergrad train`` makes two steps, the server is killed and started anew, the same command makes a
third; another run makes three at once. Prints what happened; exits 1 if anything is not as it should be.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import numpy as np
import tinker

from peergrad.debate.transcript import read_file
from peergrad.debate.types import Tokens
from peergrad.runs.folder import Progress, Run

HERE = Path(__file__).parent
MODEL = HERE.parent / "tests" / "fixtures" / "parrot"
# Few shapes, since each is compiled anew: whatever is sampled comes in eights, whatever is trained on in threes.
BACKEND = {"max_lora_adapters": 8, "max_lora_rank": 8, "sample_max_num_sequences": 8, "train_micro_batch_size": 3}
TRAIN = ["--preset", "demo", "--engine", "tinker", "--batch", "3", "--rank", "4", "--warm-debates", "2", "--warm-lr", "2e-4"]
TRAIN += ["--lr", "3e-4", "--eval-questions", "2", "--eval-debates", "1", "--eval-every", "2", "--deadline-s", "300"]


def main() -> None:
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the server ends too
    print(", ".join(f"{name} {version(name)}" for name in ("skyrl", "jax", "tinker", "transformers")), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder) as url:
            broken = train(folder / "broken", url, steps=2)
            check_run(broken, steps=2)
            before = kept(broken, 1)
        print("\nthe server is killed, and started anew")
        with serving(folder) as url:
            train(broken.path, url, steps=3, says="going on from step_000002")
            check_run(broken, steps=3)
            whole = train(folder / "whole", url, steps=3)
            check_run(whole, steps=3)
            check_words(broken, whole)
            check_weights(url, broken, before, kept(broken, 3), kept(whole, 3))
    print(f"all is as it should be, after {time.monotonic() - begun:.0f} s")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The server and its engine, both of which end with this; gives the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, HERE / "skyrl_server.py", "--base-model", MODEL, "--port", str(port)]
    command += ["--database-url", f"sqlite:///{folder}/skyrl.db", "--checkpoints-base", folder / "kept"]
    command += ["--backend-config", json.dumps(BACKEND)]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "JAX_COMPILATION_CACHE_DIR": str(Path(sys.prefix) / "compiled")}
    environ |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    except BaseException:
        print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """The server answers at once; its engine says in the log when it is ready."""
    begun, answered = time.monotonic(), 0.0
    while time.monotonic() - begun < 300:
        assert process.poll() is None, "the server ended"
        if not answered:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/api/v1/healthz").raise_for_status()
                answered = time.monotonic() - begun
        elif "Starting background engine" in log.read_text(errors="replace"):
            print(f"the server answers after {answered:.0f} s, its engine is ready after {time.monotonic() - begun:.0f} s")
            return
        time.sleep(0.5)
    raise AssertionError("the engine was not ready within 300 s")


def train(out: Path, url: str, steps: int, says: str = "") -> Run:
    """``peergrad train``, as a person runs it."""
    command = [sys.executable, "-m", "peergrad", "train", *TRAIN, "--model", str(MODEL), "--base-url", url]
    command += ["--steps", str(steps), "--out", str(out)]
    print("\n$", " ".join(["peergrad", *command[3:]]), flush=True)
    begun = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent)
    print(done.stdout, end="")
    print(f"exit code {done.returncode}, after {time.monotonic() - begun:.0f} s", flush=True)
    assert done.returncode == 0
    assert says in done.stdout
    return Run(out)


def check_run(run: Run, steps: int) -> None:
    """Every step trained on what the policy had just said, evaluations in between notwithstanding."""
    lines = run.metrics()
    assert [line["step"] for line in lines if line["phase"] == "train"] == list(range(1, steps + 1)), lines
    assert [line["step"] for line in lines if line["phase"] == "eval"] == [0, *range(2, steps + 1)], lines
    for line in lines:
        if line["phase"] == "train":
            names = ("loss", "grad_norm", "kl_sample_train_v1", "ratio/min", "ratio/max")
            loss, norm, kl, low, high = (line[f"optim/{name}"] for name in names)
            print(
                f"step {line['step']}: loss {loss:.3f}, gradient {norm:.3f}, {line['tokens/trained']:.0f} tokens; ", end=""
            )
            print(f"trainer against sampler: KL {kl:.1e}, ratios {low:.6f} to {high:.6f}")
            assert not line["optim/skipped"]
            assert norm > 0
            assert abs(kl) < 1e-5
            assert 0.999 < low <= high < 1.001
    print(f"checkpoints: {', '.join(f'{at.name} is {kept(run, at.step)}' for at in run.checkpoints())}", flush=True)
    assert run.checkpoints()[-2:] == [Progress(steps - 1), Progress(steps)]


def kept(run: Run, step: int) -> str:
    """Where the server keeps a checkpoint."""
    return json.loads((run.folder(Progress(step)) / "tinker.json").read_text())["path"]


def check_words(one: Run, other: Run) -> None:
    """A run that went on says what it would have said anyway."""
    for step in (1, 2, 3):
        ours, theirs = (
            [turn.text for debate in read_file(run.path / "debates" / f"step_{step:06}.jsonl") for turn in debate.turns]
            for run in (one, other)
        )
        print(f"step {step}: {len(ours)} replies, {sum(map(str.__eq__, ours, theirs))} of them the same in both runs")
        assert ours == theirs


def check_weights(url: str, run: Run, *checkpoints: str) -> None:
    """What checkpoints before and after a step think of its replies: what was sampled, then something else; a break is no
    difference.
    """
    said = [debate.turns[-debate.agents :] for debate in read_file(run.path / "debates" / "step_000002.jsonl")]
    replies = [turn.tokens for turns in said for turn in turns if turn.tokens]
    sampled = np.concatenate([tokens.logprobs_T for tokens in replies])
    service = tinker.ServiceClient(base_url=url, api_key="tml-none")
    before, after, straight = (logprobs(service, path, replies) for path in checkpoints)
    same, moved, again = (float(np.abs(a - b).max()) for a, b in ((sampled, before), (before, after), (after, straight)))
    print(f"log-probabilities of {len(sampled)} tokens of step 2, by the checkpoints, differ at most by")
    print(f"  {same:.1e} as they were sampled and after step 1")
    print(f"  {moved:.1e} after step 1 and after step 3")
    print(f"  {again:.1e} after step 3, with a break and without")
    assert same < 1e-3
    assert moved > 0.01
    assert again < 1e-3


def logprobs(service: tinker.ServiceClient, path: str, replies: list[Tokens]) -> np.ndarray:
    """Log-probabilities of replies by a checkpoint: those of a loss that no step is made with."""
    client = service.create_training_client_from_state(path)
    data = []
    for tokens in replies:
        ids = [*tokens.prompt_T.tolist(), *tokens.ids_T.tolist()]
        nothing = np.zeros(len(ids) - 1, np.float32)
        inputs = {"target_tokens": np.array(ids[1:]), "logprobs": nothing, "advantages": nothing}
        data.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs))
    made = client.forward_backward(data, "importance_sampling").result(300)
    found = (np.asarray(one["logprobs"].tolist()) for one in made.loss_fn_outputs)
    return np.concatenate([one[-len(tokens.ids_T) :] for one, tokens in zip(found, replies, strict=True)])


if __name__ == "__main__":
    main()

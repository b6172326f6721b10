"""Real debates against a real server: ``transformers serve`` with SmolLM2, on loopback. Opt-in: ``make test-servers``.

Makes its own environment in .venv-servers the first time. Prints what happened; exits 1 if anything is not as it should be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from peergrad import Debate, Parallel, Question, Sequential, UserError, dump, load, play_all
from peergrad.config import ApiConfig, EngineConfig
from peergrad.debate.protocols import Direct
from peergrad.debate.transcript import read_file
from peergrad.debate.types import Ask, Message, Reply
from peergrad.engines.local.fetch.models import resolve
from peergrad.engines.openai.engine import Api

ROOT = Path(__file__).parent.parent.parent
VENV = ROOT / ".venv-servers"
# Exactly this torch: other specifiers bring the CUDA libraries along.
PACKAGES = ["torch==2.13.0", "transformers[serving]"]


def install() -> None:
    ready = VENV / "ready"
    if ready.exists():
        return
    print(f"installing {', '.join(PACKAGES)} into {VENV}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [VENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *PACKAGES], check=True)
    ready.touch()


@contextlib.contextmanager
def serving(model: Path) -> Iterator[str]:
    """A server for one model; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [VENV / "bin/transformers", "serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        except BaseException:
            log.seek(0)
            print(log.read().decode(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(300)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()
    while time.monotonic() - started < 180:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5) as answer:
            print(f"the server answers after {time.monotonic() - started:.0f} s: {len(answer.read())} bytes", flush=True)
            return
        time.sleep(0.5)
    raise AssertionError("the server did not start within 180 s")


def ask(text: str, *stop: str) -> Ask:
    return Ask("d", 0, 0, 0, (Message("user", text),), stop, max_tokens=24, temperature=0.0)


Settings = tuple[EngineConfig, ApiConfig]


async def one(settings: Settings, asked: Ask, heard: list[str | None] | None = None) -> Reply:
    hear = None if heard is None else lambda _, piece: heard.append(piece)
    async with Api(*settings, on_text=hear, environ={}) as api:
        (answer,) = await api.sample([asked])
    assert isinstance(answer, Reply), answer
    return answer


async def check_replies(settings: Settings) -> None:
    question = "What is the capital of France? Answer in one sentence."
    plain = await one(settings, ask(question))
    print(f"asked plainly: {plain.text!r} {plain.usage}")
    assert "Paris" in plain.text
    assert plain.usage
    assert plain.usage.prompt > 0
    assert plain.usage.sampled > 0
    stopped = await one(settings, ask(question, "Paris"))
    print(f"stopped at 'Paris': {stopped.text!r} {stopped.usage}")
    assert stopped.text.endswith("Paris")
    assert stopped.text.count("Paris") == 1
    assert not stopped.truncated
    for asked, before in ((ask(question), plain), (ask(question, "Paris"), stopped)):
        heard: list[str | None] = []
        streamed = await one(settings, asked, heard)
        print(f"the same as a stream, in {len(heard)} pieces: {streamed.text!r} {streamed.usage}")
        assert streamed.text == before.text == "".join(piece or "" for piece in heard)
        assert None not in heard
    short = await one(settings, replace(ask("Count from one to a hundred."), max_tokens=5))
    print(f"at most 5 tokens: {short.text!r} {short.usage}, truncated: {short.truncated}")
    assert short.truncated
    try:
        await one((replace(settings[0], model="no/such-model"), settings[1]), ask(question))
    except UserError as error:
        print(f"a model that is not there: {error}")
    else:
        raise AssertionError("a model that is not there answered")


async def check_debates(settings: Settings) -> None:
    questions = [Question(f"q{n}", f"What is {n} + {n + 3}?", style="boxed") for n in range(2)]
    protocols = (
        Parallel(agents=3, max_rounds=2, max_tokens=40, wording="brief"),
        Sequential(agents=2, max_rounds=2, max_tokens=40, wording="brief"),
        Direct(max_tokens=40),
    )
    for protocol in protocols:
        async with Api(*settings, environ={}) as api:
            played = await play_all(protocol, questions, api)
            spent = api.meter.spent
        assert not played.dropped, played.dropped
        for debate in played.debates:
            check(debate)
        turns = sum(len(debate.turns) for debate in played.debates)
        print(f"{type(protocol).__name__}: {len(played.debates)} debates, {turns} turns, {played.seconds:.1f} s, {spent}")
        assert spent.requests >= turns
    print(json.dumps({"last debate": json.loads(dump(played.debates[-1], thin=True))["turns"]}))


def check_command(model: Path, url: str) -> None:
    """``peergrad debate`` as a person runs it, with a judge."""
    with tempfile.TemporaryDirectory() as folder:
        question = ["debate", "What is 17 + 25?", "--model", f"{model}@{url}", "--judge", f"{model}@{url}", "--json"]
        settings = ["--rounds", "2", "--max-tokens", "40", "--wording", "brief", "--out", f"{folder}/d.jsonl"]
        command = [sys.executable, "-m", "peergrad", *question, *settings]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        (debate,) = read_file(Path(folder) / "d.jsonl")
        check(debate)
    print(f"peergrad debate: {len(debate.turns)} turns, by {found['decided_by']}, {found['usage']}, {found['seconds']} s")


def check(debate: Debate) -> None:
    assert debate.protocol.wave(debate) == []
    assert load(dump(debate)) == debate
    assert all(turn.tokens is None and turn.usage and turn.usage.prompt for turn in debate.turns)


def main() -> None:
    install()
    model = resolve("smollm2", say=print)
    with serving(model) as url:
        settings = EngineConfig(model=str(model), base_url=url), ApiConfig(max_concurrent=2)
        asyncio.run(check_replies(settings))
        asyncio.run(check_debates(settings))
        check_command(model, url)
    print("all is as it should be")


if __name__ == "__main__":
    main()

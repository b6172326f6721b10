"""Secrets planted wherever a server, an address or the environment can put them: none comes out anywhere."""

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest

from peergrad import Parallel, Question, UserError, dump, play_all
from peergrad.cli import main as cli
from peergrad.config import ApiConfig, EngineConfig
from peergrad.engines.openai.engine import Api
from peergrad.engines.shared.servers import Secrets
from peergrad.runs.models import ModelRef, model_ref
from tests.cli.answers import PEERGRAD
from tests.commands import peergrad
from tests.helpers import short
from tests.openai.asking import an_ask
from tests.openai.server import Response, Server, completion, events

ROOT = Path(__file__).parent.parent.parent
KEY = "sk-planted/0+Kéy".replace("é", "e") + "=ABCDEF123456"
HEADER = "planted-header-7f3a9c"


def echo(status, **headers):
    """Everything a server knows, said back in every way it could be written."""

    def handle(request):
        known = request.headers["authorization"]
        said = {
            "message": f"bad {known} {KEY} {quote(KEY, safe='')} {base64.b64encode(KEY.encode()).decode()} {KEY.upper()}",
            "debug": {"headers": dict(request.headers), "url": f"https://user:{KEY}@host/v1?api_key={KEY}&x=1"},
            "curl": f"-H 'X-Api-Key: {HEADER}' -H 'Cookie: session={HEADER}' {HEADER}",
        }
        filled = {name: value.format(key=KEY, header=HEADER) for name, value in headers.items()}
        return Response({"error": said}, status, {name.replace("_", "-"): value for name, value in filled.items()})

    return handle


def reply(text, **more):
    return lambda _: Response(completion(text, **more))


PLACES = {
    **{f"status {status}": echo(status) for status in (400, 401, 402, 403, 404, 413, 422, 429, 500)},
    "redirect to": echo(302, location="https://user:{key}@elsewhere/{key}?token={key}"),
    "redirect without host": echo(307, location="/{key}"),
    "a host that is the key": echo(301, location="http://{key}.example/"),
    "retry-after": echo(429, retry_after="{key}"),
    "headers": echo(500, x_request_id="{key}", set_cookie="{header}", server="{key}"),
    "plain text": lambda _: Response(f"Authorization: Bearer {KEY} {HEADER}".encode(), 500),
    "an error for an answer": lambda _: Response({"error": {"message": f"{KEY} {HEADER}", "code": 400}}),
    "an error in a stream": lambda _: Response(
        f'data: {{"error": {{"message": "{KEY} {HEADER}"}}}}\n\n'.encode(), headers={"content-type": "text/event-stream"}
    ),
    "finish reason": reply("hm", finish=KEY),
    "a reply": reply(f"My key is {KEY}. {HEADER}"),
    "a stream": lambda _: events(["The key ", KEY[:9], KEY[9:15], KEY[15:], f" {HEADER}", KEY]),
    "no JSON": lambda _: Response(f"{KEY} {HEADER}".encode()),
    "cut": lambda _: Response(completion(f"{KEY} {HEADER}" * 20), cut=90),
}


@pytest.fixture
def logs():
    """All that is logged, at every level, by anybody."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, names = logging.getLogger(), ("httpx2", "httpcore2", "peergrad", "asyncio")
    before = {name: logging.getLogger(name).level for name in names}
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)
    for name in names:
        logging.getLogger(name).setLevel(before[name])


def free_of_secrets(text):
    for secret in (KEY, HEADER):
        for way in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()):
            assert way.rstrip("=").lower() not in text.lower()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("place", PLACES)
def test_planted_secrets_stay_where_they_are(place, stream, logs, capfd, monkeypatch):
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gate: {HEADER}")
    told, pieces = [], []

    async def run(url):
        rules = EngineConfig(model="m", base_url=url, deadline_s=2), ApiConfig(key_env="PLANTED", retries=1, timeout_s=5)
        hear = (lambda _, piece: pieces.append(piece or "")) if stream else None
        async with Api(*rules, environ={"PLANTED": KEY, **os.environ}, on_text=hear) as api:
            told.append(repr(api) + repr(api.config) + repr(vars(api)) + repr(api.meter.spent))
            try:
                played = await play_all(Parallel(agents=2, max_rounds=1), [Question("q", "?")], api)
                told.extend([repr(played), *played.dropped.values(), *map(dump, played.debates)])
                (answer,) = await api.sample([an_ask()])
                told.append(repr(answer))
                if isinstance(answer, Exception):
                    raise answer
            except Exception as error:
                told.append("".join(traceback.format_exception(error)))
                logging.getLogger("peergrad").exception("it failed")

    with Server(PLACES[place]) as server:
        asyncio.run(run(server.url))
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].headers["x-gate"] == HEADER
    assert len(logs.getvalue()) > 1000
    out, err = capfd.readouterr()
    free_of_secrets("\n".join([*told, *pieces, "".join(pieces), out, err]))
    assert KEY[:9] not in "".join(pieces)
    free_of_secrets(logs.getvalue())


FATAL = [*(f"status {status}" for status in (400, 401, 402, 403, 404, 422)), "redirect to", "redirect without host"]
FATAL += ["a host that is the key", "an error for an answer"]
SECRET = {"OPENAI_API_KEY": KEY, "OPENAI_CUSTOM_HEADERS": f"X-Gate: {HEADER}", "OPENAI_LOG": "debug"}


def test_the_command_gives_none_away(tmp_path):
    """Where a server ends the run, one run for each; all others in one, a question for each."""
    titles: list[bytes] = []

    def command(places, has_a_title=False):
        def handle(request):
            titles.extend(_titles())
            asked = request.body["messages"][1]["content"].partition("Question:\n")[2].partition("\n")[0]
            return PLACES[asked](request)

        folder = tmp_path / places[0].replace(" ", "-")
        folder.mkdir()
        with Server(handle) as server:
            args = ("--model", f"m@{server.url}", "--retries", "0", "--rounds", "1", "--agents", "1", "--deadline-s", "2")
            args += ("--max-concurrent", "1")
            environ, stdin = os.environ | SECRET | {"PYTHONPATH": str(ROOT)}, "\n".join(places)
            if has_a_title:
                said = {"input": stdin, "capture_output": True, "text": True}
                done = subprocess.run([*PEERGRAD, "debate", "-", *args], cwd=folder, env=environ, **said)
            else:
                done = peergrad("debate", "-", *args, cwd=folder, env=environ, stdin=stdin)
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
        assert len(server.requests) >= len(places)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    # A server that has answered once is not given up for what it says later.
    others = sorted((place for place in PLACES if place not in FATAL), key=lambda place: place != "a reply")
    ended = [command(others, has_a_title=True), *(command([place]) for place in FATAL)]
    assert [code for code, _ in ended] == [1, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2]
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "My key is [hidden]. [hidden]" in "".join(path.read_text() for path in kept)
    assert any(b"peergrad" in title for title in titles)
    free_of_secrets("\n".join([*(text for _, text in ended), *(path.name + path.read_text() for path in kept)]))
    free_of_secrets(b"".join(titles).decode())


def _titles():
    """What ``ps`` shows of the processes that this one has started."""
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text().split():
            with contextlib.suppress(OSError):  # gone meanwhile
                yield Path(f"/proc/{child}/cmdline").read_bytes()


@pytest.mark.parametrize("flag", ["--model", "--base-url", "--judge", "--seat", "--key-env", "--server-keys"])
def test_the_command_does_not_repeat_what_was_typed(flag, monkeypatch, capsys, tmp_path):
    typed = {"--seat": f"0=m@http://u:{KEY}@h/v1", "--key-env": KEY, "--base-url": f"http://u:{KEY}@h/v1"}
    typed |= {"--server-keys": f"h={KEY}"}
    args = [flag, typed.get(flag, f"m@http://u:{KEY}@h/v1")]
    args += [] if flag == "--model" else ["--model", "m" if flag == "--base-url" else "m@http://127.0.0.1:9/v1"]
    monkeypatch.setattr(sys, "argv", ["peergrad", "debate", "?", *args])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert err.startswith("peergrad: ")
    free_of_secrets(out + err)


def test_there_are_twenty_places():
    assert len(PLACES) >= 20


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{KEY}@host/v1",
        f"http://{quote(KEY, safe='')}@host/v1",
        f"http://user:{KEY[:8]}/{KEY}@host/v1",
        f"http://host/v1?api_key={quote(KEY)}",
        f"http://host/v1#{quote(KEY)}",
        f"http://host:{KEY}/v1",
        f"{KEY}",
        f"http://[{KEY}/v1",
        f"ftp://{quote(KEY)}/",
        f"http://host/v1 {KEY}",
    ],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(UserError, match=r"^base_url: ") as caught:
        Api(EngineConfig(model="m", base_url=url), environ={"OPENAI_API_KEY": KEY})
    free_of_secrets("".join(traceback.format_exception(caught.value)))
    with pytest.raises(UserError, match=r"^OPENAI_BASE_URL: ") as caught:
        Api(EngineConfig(model="m"), environ={"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY})
    free_of_secrets("".join(traceback.format_exception(caught.value)))


def test_the_key_comes_from_the_environment_alone():
    with pytest.raises(UserError, match=r"^key_env: is no name") as caught:
        ApiConfig(key_env=KEY)
    free_of_secrets(str(caught.value))
    with pytest.raises(UserError, match=r"^OPENAI_API_KEY: is not set; put the key of api.openai.com into it"):
        Api(EngineConfig(model="m"), environ={})
    with pytest.raises(UserError, match=r"^MINE: is not set"):
        Api(EngineConfig(model="m", base_url="http://x/v1"), ApiConfig(key_env="MINE"), environ={"OPENAI_API_KEY": KEY})
    with pytest.raises(UserError, match=r"^MINE: holds no key") as caught:
        Api(EngineConfig(model="m"), ApiConfig(key_env="MINE"), environ={"MINE": f"{KEY}\n{KEY}"})
    free_of_secrets(str(caught.value))


def test_other_keys_in_the_environment_go_nowhere(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, f"another-{name}")

    async def run(url):
        async with Api(EngineConfig(model="m", base_url=url), ApiConfig(key_env="MINE"), environ={"MINE": KEY}) as api:
            await api.sample([an_ask()])

    with Server(lambda _: Response(completion(short()))) as server:
        asyncio.run(run(server.url))
    assert "another-" not in str(server.requests)


def test_logged_exceptions_are_scrubbed_while_an_engine_is_open(logs):
    async def run():
        async with Api(EngineConfig(model="m", base_url="http://x/v1"), ApiConfig(key_env="MINE"), environ={"MINE": KEY}):
            try:
                raise RuntimeError(KEY)
            except RuntimeError:
                logging.getLogger("httpcore2.http11").exception("headers: %s", {"authorization": f"Bearer {HEADER}"})

    asyncio.run(run())
    free_of_secrets(logs.getvalue())
    assert "RuntimeError: [hidden]" in logs.getvalue()


def test_placeholders_are_no_secrets():
    assert Secrets(["none", "EMPTY", ""]).scrub("none is EMPTY") == "none is EMPTY"
    assert Secrets(["none"]).hide("none") == "none"


def test_innocent_words_of_a_reply_are_left_alone():
    text = "Authorization: Bearer abcdefgh sk-abcdefgh http://a:b@c/?key=value"
    assert Secrets([KEY]).hide(text) == text


def test_a_secret_that_is_still_coming_is_held_back():
    secrets = Secrets([KEY])
    assert secrets.secret_start(f"so {KEY[:10]}") == 10
    assert secrets.secret_start(f"so {KEY[1:10]}") == 0
    assert secrets.secret_start("s") == 1


def test_importing_peergrad_imports_no_client():
    code = "import peergrad, peergrad.cli.main, sys; assert 'httpx2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("given", ["gsk_planted0key", "hf_plantedkey", "Planted", KEY])
def test_a_key_given_for_its_variable_is_not_repeated(given):
    with pytest.raises(UserError, match=r"^key_env: ") as caught:
        ApiConfig(key_env=given)
    assert given not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "m@http://a:planted@http://127.0.0.1:9/v1",
        "m@HTTP://usr:planted@host/v1",
        "http://usr:planted@host/v1",
        "m:planted@127.0.0.1:8000/v1",
    ],
)
def test_a_model_by_its_server_without_repeating_secrets(name):
    with pytest.raises(UserError, match=r"^(base_url|model): ") as caught:
        model_ref(name)
    assert "planted" not in str(caught.value)
    assert model_ref("org/m@HTTPS://host/v1") == ModelRef("org/m", url="HTTPS://host/v1")


def test_a_badly_formatted_record_is_no_failure(logs):
    secrets = Secrets([KEY])
    secrets.guard_logs()
    logging.getLogger("httpx2").warning("%d tokens", KEY)
    secrets.leave_logs()
    assert "%d tokens" in logs.getvalue()

"""The viewer's server lets nobody in but who has the token, at a name of this machine, and gives nothing but pages."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import urllib.request

import pytest

from peergrad.web.app import HEADERS
from peergrad.web.sources import find
from tests.web.conftest import TOKEN, serving, until

AUTH = {"Authorization": f"Bearer {TOKEN}"}
SECRET = b"the secret beside the folder"


def raw(server, path, headers, method="GET"):
    """A request as it is written, with any Host and any path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_token_opens_the_page_once_and_the_cookie_from_then_on(server):
    assert server.ask("/")[0] == 401
    assert server.ask("/?token=another")[0] == 401
    status, headers, _ = server.ask(f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    kept = {"Cookie": cookie.partition(";")[0]}
    status, headers, page = server.ask("/", kept)
    assert status == 200
    assert b'<meta name="peergrad-mode" content="live">' in page
    assert server.ask("/api/sources", kept)[0] == 200
    assert server.ask(f"/api/sources?token={TOKEN}")[0] == 401, "a token in other addresses would be in somebody's log"
    for path in ("/", "/api/sources", "/api/nothing", "/nothing"):
        for sent in ({}, AUTH):
            assert {name: server.ask(path, sent)[1].get(name.lower()) for name in HEADERS} == HEADERS


def test_nothing_is_written_and_nothing_inline_is_needed(server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        assert server.ask("/api/sources", AUTH, method)[0] == 405, method
    status, headers, body = server.ask("/api/sources", AUTH, "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 100
    page = server.ask("/", AUTH)[2].decode()
    assert "<style" not in page
    assert " style=" not in page
    assert page.count("<script") == page.count('<script defer src="static/')
    for name in ("app.js", "base.css", "vendor/preact.js"):
        assert server.ask(f"/static/{name}", AUTH)[0] == 200
    assert server.ask("/static/index.html", AUTH)[0] == 404


def test_a_thousand_ways_to_get_out_or_in_all_fail(own, tmp_path):
    """Paths that lead elsewhere, names of other machines, pages of other servers, tokens that are none."""
    for place in (own.parent / "secret", own / "runs" / "secret"):
        place.write_bytes(SECRET)
    (own / "runs" / "parrot" / "debates" / "step_000009.jsonl").symlink_to(own.parent / "secret")
    rng = random.Random(0)
    with serving([own / "runs"], tmp_path / "cache") as server:
        id, host = server.id("parrot"), f"127.0.0.1:{server.port}"
        ups = (
            "../",
            "..%2f",
            "%2e%2e/",
            "..%5c",
            "..\\",
            "%2e%2e%2f",
            "....//",
            "..;/",
            "%252e%252e%252f",
            "/",
            "//",
            "%00",
            "..%00/",
        )
        bases = (
            "/",
            "/static/",
            "/static/vendor/",
            "/api/",
            f"/api/debate/{id}/",
            f"/api/source/{id}/",
            f"/api/debates/{id}?part=",
            f"/api/question/{id}?question=",
            f"/api/debate/{id}/step_000001/",
        )
        ends = (
            "secret",
            "etc/passwd",
            "run.json",
            "config.toml",
            "app.py",
            "index.py",
            "__init__.py",
            "debates/step_000009",
            "step_000009/0",
            "proc/self/environ",
        )
        attempts = 0
        for _ in range(700):
            path = rng.choice(bases) + rng.choice(ups) * rng.randint(1, 9) + rng.choice(ends)
            status, _, body = raw(server, path, [("Host", host), ("Authorization", f"Bearer {TOKEN}")])
            assert SECRET not in body
            assert b"root:" not in body
            assert b"import annotations" not in body
            if status == 200:  # a query that finds nothing, or the page
                assert b"<!doctype html>" in body or json.loads(body).get("rows") == [], (path, body[:200])
            attempts += 1
        names = (
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.2",
            "0.0.0.0",
            "[::2]",
            "",
            " ",
            "127.0.0.1@evil",
            "localhost:80:80",
            "LOCALHOST",
            "127.1",
            "2130706433",
        )
        for index in range(200):
            name = names[index % len(names)]
            name += rng.choice(("", f":{server.port}", ":80", ":x", "/", "#")) if index >= len(names) else ""
            sent = [("Authorization", f"Bearer {TOKEN}")] + ([("Host", name)] if index else [])
            status, _, body = raw(server, "/api/sources", sent)
            assert status in (400, 421), (name, status)
            assert b"parrot" not in body
            attempts += 1
        origins = (
            "http://evil.example",
            "null",
            "https://127.0.0.1",
            "http://127.0.0.1",
            "http://localhost",
            "file://",
            "",
            f"https://{host}",
            f"http://{host}.evil.example",
            f"http://{host}/",
            f"HTTP://{host}",
        )
        for index in range(100):
            if index % 2:
                extra = [("Origin", origins[index % len(origins)])]
            else:
                extra = [("Sec-Fetch-Site", rng.choice(("cross-site", "same-site", "odd")))]
            status, _, body = raw(server, "/api/sources", [("Host", host), ("Authorization", f"Bearer {TOKEN}"), *extra])
            assert status == 403, extra
            attempts += 1
        for index in range(100):
            wrong = rng.choice((TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "\xff", "Bearer", TOKEN[::-1]))
            sent = (
                [("Authorization", f"Bearer {wrong}")]
                if index % 2
                else [("Cookie", f"peergrad_view_{server.port}={wrong}; x={TOKEN}")]
            )
            assert raw(server, "/api/sources", [("Host", host), *sent])[0] == 401
            attempts += 1
        assert attempts >= 1000
        assert (
            raw(server, "/api/sources", [("Host", f"localhost:{server.port + 1}"), ("Authorization", f"Bearer {TOKEN}")])[0]
            == 200
        )


def test_links_pipes_and_odd_files_are_not_read(own, tmp_path):
    run = own / "runs" / "parrot"
    (own.parent / "secret").write_bytes((run / "debates" / "step_000001.jsonl").read_bytes().replace(b"What", SECRET))
    (run / "debates" / "step_000007.jsonl").symlink_to(own.parent / "secret")
    os.mkfifo(run / "debates" / "step_000008.jsonl")
    (run / "debates" / "step_000009.jsonl").mkdir()
    (run / "debates" / "..%2f.jsonl").write_bytes(b"{}")
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    (run / "config.toml").rename(own.parent / "config.toml")
    (run / "config.toml").symlink_to(own.parent / "config.toml")
    (run / "skipped").symlink_to(own.parent)
    (own / "runs" / "linked").symlink_to(own / "evals" / "before")
    (own / "runs" / "loop").symlink_to(own / "runs")
    assert [source.name.rpartition("/")[2] for source in find([own / "runs"])] == ["parrot"]
    with serving([own / "runs"], tmp_path / "cache") as server:
        id = server.id("parrot")
        until(lambda: server.get(f"debates/{id}")["total"] == 11)
        page = server.get(f"source/{id}")
        assert {part["name"] for part in page["parts"]} & {"step_000007", "step_000008", "step_000009"} == set()
        assert (page["preset"], page["skipped"]) == (None, [])
        assert "is a link" in page["source"]["problem"]
        assert server.get(f"debates/{id}", q="the secret")["matched"] == 0


def test_the_command_prints_an_address_that_works_and_stops_when_told(made, tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "peergrad", "view", str(made / "evals"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"peergrad-mode" in cookies.open(address, timeout=300).read()
        listed = json.loads(cookies.open(address.partition("?")[0] + "api/sources", timeout=300).read())
        assert len(listed["sources"]) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(300) in (0, 130)
        assert process.stderr
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.glob("peergrad/view/*.sqlite"))
    for wrong, why in (("nowhere", "is not there"), (str(tmp_path), "holds no run")):
        done = subprocess.run([*command[:4], wrong], capture_output=True, text=True, env=env)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert why in done.stderr


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "config.toml", "outcomes.jsonl"])
@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a": ' * 50_000, b"\x00\xff\xfe", b'{"model": 1e999, "created": {}, "task": []}\n', b""]
)
def test_a_damaged_folder_is_shown_as_damaged(made, tmp_path, name, content):
    """Nothing that a file may hold keeps the other pages from being shown."""
    import shutil

    from peergrad.web.app_files import encode
    from peergrad.web.library import Library

    run = tmp_path / "runs" / "parrot"
    (run / "debates").mkdir(parents=True)
    for file in ("run.json", "metrics.jsonl", "config.toml"):
        shutil.copy(made / "runs" / "parrot" / file, run)
    (run / name).write_bytes(content)
    (run / "debates" / "step_000001.jsonl").write_bytes(
        b"\n".join([b"{", b"[" * 100_000, b"\x00", b'{"id": "\\ud800"}']) + b"\n"
    )
    library = Library([run], None)
    while library.update(None):
        pass
    (id,) = library.shelves
    for key in ("sources", f"source/{id}", f"metrics/{id}", f"debates/{id}", f"alarms/{id}/1"):
        json.loads(encode(library.get(key)))
    assert library.get(f"debates/{id}")["flags"]["damaged"] == 4
